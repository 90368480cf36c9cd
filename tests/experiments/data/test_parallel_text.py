"""Parallel files: what counts as a line, and one clear error for each thing that is
wrong with them."""

import gzip
import itertools

import pytest

from experiments.data import corpora
from experiments.data.corpora import CorpusError, Pairs, parallel
from experiments.settings import FilesData

pytestmark = pytest.mark.quick


@pytest.fixture
def folder(tmp_path):
    """Two good pairs in each split; tests overwrite what they are about."""
    for split in ("train", "val", "test"):
        (tmp_path / f"{split}.en").write_bytes(f"a {split}\na dog\n".encode())
        (tmp_path / f"{split}.de").write_bytes(f"ein {split}\nein Hund\n".encode())
    return tmp_path


def opened(folder, **more):
    return corpora.open(FilesData(directory=str(folder), **more))


def read(folder, split="train", **more):
    """All pairs of a split, after its blocks were looked at."""
    blocks = list(opened(folder, **more).read(split))
    assert all(
        len(block.source) == len(block.target) <= parallel.BLOCK for block in blocks
    )
    return Pairs(
        *(
            list(itertools.chain.from_iterable(sides))
            for sides in zip(*blocks, strict=True)
        )
    )


def test_three_splits(folder):
    assert read(folder) == Pairs(["a train", "a dog"], ["ein train", "ein Hund"])
    assert read(folder, "validation").source[0] == "a val"
    assert read(folder, "test").target[0] == "ein test"
    assert read(folder, "test", test="val") == read(folder, "validation")


def test_blocks_of_a_long_file(folder, monkeypatch):
    """Of which the last is not full; an error is at its line all the same, and a file
    that is shorter is found."""
    monkeypatch.setattr(parallel, "BLOCK", 3)
    lines = [f"line {i}" for i in range(1, 9)]
    for language in ("en", "de"):
        (folder / f"train.{language}").write_text("\n".join(lines) + "\n")
    assert read(folder) == Pairs(lines, lines)
    assert [len(block.source) for block in opened(folder).read("train")] == [3, 3, 2]
    assert opened(folder).place("train", 4) == f"{folder}/train.en:5"
    (folder / "train.de").write_bytes(
        "\n".join(lines).encode().replace(b"line 5", b"l\xefne 5")
    )
    with pytest.raises(CorpusError, match=r"train\.de:5: invalid UTF-8 \(byte 0xef\)"):
        read(folder)
    for count in (3, 4, 6):
        (folder / "train.de").write_text("\n".join(lines[:count]) + "\n")
        with pytest.raises(
            CorpusError, match=rf"train\.en has 8 lines but .*train\.de has {count}"
        ):
            read(folder)


def test_the_fingerprint_sees_every_word_and_every_border(folder):
    plain = opened(folder).fingerprint()
    assert plain == opened(folder).fingerprint()
    (folder / "test.de").write_bytes(b"ein test\nein Hund.\n")
    changed = opened(folder).fingerprint()
    (folder / "test.de").write_bytes(b"ein testein\n Hund.\n")
    prints = {plain, changed, opened(folder).fingerprint()}
    prints.add(opened(folder, test="val").fingerprint())
    prints.add(opened(folder, bad_lines="skip").fingerprint())
    assert len(prints) == 5


def test_a_missing_file_is_named_with_what_there_is(folder):
    (folder / "val.de").unlink()
    with pytest.raises(
        CorpusError,
        match=r"val\.de: no such file.*the folder has test\.de, test\.en, train\.de",
    ):
        read(folder)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(CorpusError, match=r"nowhere: no such folder; data\.directory"):
        read(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "cut", [slice(20), slice(3, None)], ids=["truncated", "no gzip"]
)
def test_a_damaged_gzip_file_is_named(folder, cut):
    (folder / "train.en").unlink()
    (folder / "train.en.gz").write_bytes(gzip.compress(b"a sentence\nanother\n")[cut])
    with pytest.raises(CorpusError, match=r"train\.en\.gz: damaged or no gzip file"):
        read(folder)
