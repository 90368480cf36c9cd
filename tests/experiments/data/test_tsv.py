"""Files with tab-separated columns: which columns, and one clear error for each fault."""

import gzip

import pytest

from experiments.data import corpora, dataset
from experiments.data.corpora import CorpusError, Pairs, parallel
from experiments.settings import TsvData


@pytest.fixture
def folder(tmp_path):
    """Two pairs in each split, in columns 1 and 0; tests overwrite what they are about."""
    for split in ("train", "val", "test"):
        text = f"ein {split}\ta {split}\tx\nein Hund\ta dog\ty\n"
        (tmp_path / f"{split}.tsv").write_text(text)
    return tmp_path


def opened(folder, **more):
    columns = {"source_column": "1", "target_column": "0"}
    return corpora.open(TsvData(directory=str(folder), **(columns | more)))


def read(folder, split="train", **more):
    (pairs,) = opened(folder, **more).read(split)
    return pairs


def test_columns_by_number(folder):
    assert read(folder) == Pairs(["a train", "a dog"], ["ein train", "ein Hund"])
    assert read(folder, "test", source_column="2").source == ["x", "y"]


def test_columns_by_name(folder):
    for split in ("train", "val", "test"):
        path = folder / f"{split}.tsv"
        path.write_text("german\tenglish\n" + path.read_text())
    names = {"source_column": "english", "target_column": "german"}
    assert read(folder, **names) == read(folder, source_column="english")
    assert read(folder, **names).source == ["a train", "a dog"]
    assert opened(folder, **names).place("train", 0).endswith("train.tsv:2")


def test_gzipped(folder):
    path = folder / "train.tsv"
    with gzip.open(folder / "train.tsv.gz", "wb") as file:
        file.write(path.read_bytes())
    plain = read(folder)
    path.unlink()
    assert read(folder) == plain


def test_a_header_is_skipped_in_the_first_block_alone(folder, monkeypatch):
    monkeypatch.setattr(parallel, "BLOCK", 2)
    lines = ["de\ten", *(f"{i}\tline {i}" for i in range(5))]
    (folder / "train.tsv").write_text("\n".join(lines) + "\n")
    source = opened(folder, source_column="en", target_column="de")
    texts = []
    for pairs in source.read("train"):
        texts += pairs.source
    assert texts == [f"line {i}" for i in range(5)]


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("a\tb\nonly one\n", {}, r"train.tsv:2: 1 columns, so there is no column 1 "),
        ("a\tb\n", {"target_column": "7"}, r"no column 7 .*data.target_column names"),
        (
            "a\tb\n",
            {"source_column": "en"},
            r"train.tsv:1: no column 'en' .* has a, b\)",
        ),
        ("", {}, "train.tsv: the file is empty"),
        ("a\tb\0\n", {}, "train.tsv:1: NUL character"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(folder, text, columns, message):
    (folder / "train.tsv").write_text(text)
    with pytest.raises(CorpusError, match=message):
        list(opened(folder, **columns).read("train"))


def test_a_missing_file_is_named(folder):
    with pytest.raises(CorpusError, match=r"dev.tsv: no such file.*val.tsv"):
        opened(folder, validation="dev.tsv")


def test_other_columns_are_another_corpus(folder):
    prints = {opened(folder, source_column=str(i)).fingerprint() for i in (1, 2)}
    assert len(prints) == 2


def test_empty_sides_are_dropped_and_counted(folder, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    lines = [f"das ist Satz {i}\tthis is sentence {i}" for i in range(300)]
    (folder / "train.tsv").write_text("\n".join(["\tno German", *lines]) + "\n")
    data = opened_data(folder)
    counts = dataset.prepare(data).counts
    assert (counts["train"], counts["train_empty"]) == (300, 1)


def opened_data(folder):
    return TsvData(
        directory=str(folder),
        source_column="1",
        target_column="0",
        vocabulary_size=400,
        max_length=40,
    )
