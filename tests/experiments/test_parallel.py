"""Parallel files: what counts as a line, and one clear error for each thing that is wrong with them."""

import gzip

import pytest

from experiments import corpora
from experiments.corpora import CorpusError, Pairs, parallel
from experiments.settings import Data

SPLITS = ("train", "val", "test")


@pytest.fixture
def folder(tmp_path):
    """Two good pairs in each split; tests overwrite what they are about."""
    for split in SPLITS:
        (tmp_path / f"{split}.en").write_bytes(f"a {split}\na dog\n".encode())
        (tmp_path / f"{split}.de").write_bytes(f"ein {split}\nein Hund\n".encode())
    return tmp_path


def read(folder):
    return parallel.read(str(folder), "en", "de", *SPLITS)


def test_three_splits_with_their_counts(folder):
    corpus = read(folder)
    assert corpus.train == Pairs(["a train", "a dog"], ["ein train", "ein Hund"])
    assert corpus.validation.source[0] == "a val"
    assert corpus.test.target[0] == "ein test"
    empty = {"train_empty": 0, "validation_empty": 0, "test_empty": 0}
    assert corpus.counts == {"train": 2, "validation": 2, "test": 2} | empty


def test_load_reads_files(folder):
    data = Data(corpus="files", directory=str(folder), test="val")
    assert corpora.load(data).test == read(folder).validation


def test_digest_sees_every_word_and_every_border(folder):
    plain = corpora.digest(read(folder))
    assert plain == corpora.digest(read(folder))
    assert len(plain) == 16
    (folder / "test.de").write_bytes(b"ein test\nein Hund.\n")
    changed = corpora.digest(read(folder))
    (folder / "test.de").write_bytes(b"ein testein\n Hund.\n")
    assert len({plain, changed, corpora.digest(read(folder))}) == 3


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        pytest.param(b"one\r\ntwo\r\n", ["one", "two"], id="CRLF"),
        pytest.param(b"one\ntwo", ["one", "two"], id="no last newline"),
        pytest.param(b"\xef\xbb\xbfone\ntwo\n", ["one", "two"], id="BOM"),
        pytest.param("o\u2028n\x85e\x0b\x0c\ntw\ro\n".encode(), ["o\u2028n\x85e\x0b\x0c", "tw\ro"], id="U+2028"),
    ],
)
def test_only_a_newline_ends_a_line(folder, data, lines):
    (folder / "train.en").write_bytes(data)
    assert read(folder).train.source == lines


def test_gzip_is_read_where_there_is_no_plain_file(folder):
    plain = read(folder)
    data = (folder / "train.de").read_bytes()
    (folder / "train.de").unlink()
    (folder / "train.de.gz").write_bytes(gzip.compress(data))
    assert read(folder) == plain


def test_pairs_with_an_empty_side_are_dropped_and_counted(folder):
    (folder / "train.en").write_bytes(b"a\n\nc\nd\n")
    (folder / "train.de").write_bytes(b"A\nB\n \t\nD\n")
    corpus = read(folder)
    assert corpus.train == Pairs(["a", "d"], ["A", "D"])
    assert (corpus.counts["train"], corpus.counts["train_empty"]) == (2, 2)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(b"a\nb\nc\n", r"train\.en has 3 lines but .*train\.de has 2; line i of one must", id="unequal"),
        pytest.param(b"", r"train\.en: the file is empty; give one sentence a line", id="empty"),
        pytest.param(b"\xef\xbb\xbf", r"train\.en: the file is empty", id="only a BOM"),
        pytest.param(b"good\nb\xe4d\n", r"train\.en:2: invalid UTF-8 \(byte 0xe4\); convert", id="Latin-1"),
        pytest.param(b"good\nb\0d\n", r"train\.en:2: NUL character", id="NUL"),
        pytest.param(b"\n \n", "train: every pair of en and de has an empty side", id="nothing left"),
    ],
)
def test_bad_text_is_one_clear_line(folder, data, message):
    (folder / "train.en").write_bytes(data)
    with pytest.raises(CorpusError, match=message) as error:
        read(folder)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named_with_what_there_is(folder):
    (folder / "val.de").unlink()
    with pytest.raises(CorpusError, match=r"val\.de: no such file.*the folder has test\.de, test\.en, train\.de"):
        read(folder)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(CorpusError, match=r"nowhere: no such folder; data\.directory"):
        read(tmp_path / "nowhere")


@pytest.mark.parametrize("cut", [slice(20), slice(3, None)], ids=["truncated", "no gzip"])
def test_a_damaged_gzip_file_is_named(folder, cut):
    (folder / "train.en").unlink()
    (folder / "train.en.gz").write_bytes(gzip.compress(b"a sentence\nanother\n")[cut])
    with pytest.raises(CorpusError, match=r"train\.en\.gz: damaged or no gzip file"):
        read(folder)
