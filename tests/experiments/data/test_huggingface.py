"""Data sets of Hugging Face, saved to disk; skipped where `datasets` is not installed."""

import importlib.util

import pytest

from experiments.data import corpora
from experiments.data.corpora import CorpusError
from experiments.data.corpora.huggingface import MISSING
from experiments.settings import HuggingFaceData

PAIRS = {"en": [f"a {i}" for i in range(30)], "de": [f"ein {i}" for i in range(30)]}
SPLITS = ("train", "validation", "test")


def opened(folder, **more):
    return corpora.open(HuggingFaceData(dataset=str(folder), **more))


def texts(source, split):
    return [pair for block in source.read(split) for pair in zip(*block, strict=True)]


@pytest.fixture(params=["columns", "translation"])
def folder(request, tmp_path):
    """A data set with columns by language, or with a column translation."""
    datasets = pytest.importorskip("datasets")
    rows = PAIRS
    if request.param == "translation":
        keys = ("en", "de")
        both = zip(*PAIRS.values(), strict=True)
        rows = {"translation": [dict(zip(keys, pair, strict=True)) for pair in both]}
    made = {split: datasets.Dataset.from_dict(rows) for split in SPLITS}
    datasets.DatasetDict(made).save_to_disk(str(tmp_path))
    return tmp_path


def test_a_folder_is_read(folder):
    source = opened(folder)
    assert texts(source, "test") == list(zip(*PAIRS.values(), strict=True))
    assert source.place("test", 3).endswith("test, row 3")
    turned = opened(folder, source="de", target="en")
    assert texts(turned, "train")[1] == ("ein 1", "a 1")
    assert turned.fingerprint() != source.fingerprint() == opened(folder).fingerprint()


def test_heldout_pairs_come_from_training(folder):
    source = opened(folder, validation="train", test="train", heldout=4)
    parts = [texts(source, split) for split in SPLITS]
    assert list(map(len, parts)) == [22, 4, 4]
    assert set().union(*parts) == set(texts(opened(folder), "train"))


def saved(folder, **columns):
    """A data set of a training split, and two others of a row."""
    datasets = pytest.importorskip("datasets")
    held = {"en": ["held"], "de": ["gehalten"]}
    made = {"train": columns, "validation": held, "test": held}
    made = {split: datasets.Dataset.from_dict(rows) for split, rows in made.items()}
    datasets.DatasetDict(made).save_to_disk(str(folder))
    return opened(folder)


def test_other_borders_are_another_corpus(tmp_path):
    """Sentences, sides and splits may each end elsewhere in the same letters."""
    columns = [
        dict(en=["a\nb", "c"], de=["d", "e"]),
        dict(en=["a", "b\nc"], de=["d", "e"]),
        dict(en=["a", "b", "c"], de=["d", "e", None]),
        dict(en=["a", "b", "c"], de=["d", "e", ""]),
        dict(en=["a\nb"], de=["c"]),
        dict(en=["a"], de=["b\nc"]),
    ]
    prints = {
        saved(tmp_path / str(i), **each).fingerprint() for i, each in enumerate(columns)
    }
    assert len(prints) == len(columns)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (dict(en=["a", None], de=["b", "c"]), "train, row 1: no text but None"),
        (dict(en=["a", "b"], de=[1, 2]), "2 bad lines: .*train, row 0: no text but 1"),
    ],
)
def test_rows_without_text_are_bad(tmp_path, columns, message):
    with pytest.raises(CorpusError, match=message):
        texts(saved(tmp_path, **columns), "train")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (dict(test="dev"), "no split 'dev' .*data.test"),
        (dict(target="fr"), "no language 'fr' .*data.target"),
    ],
)
def test_what_is_not_there_is_one_line(folder, more, message):
    with pytest.raises(CorpusError, match=message):
        opened(folder, **more)


def test_a_data_set_that_cannot_be_had_is_one_line(tmp_path):
    pytest.importorskip("datasets")
    with pytest.raises(
        CorpusError, match=r"^data\.dataset=.*nowhere: \w+: .*save_to_disk"
    ):
        opened(tmp_path / "nowhere")


def test_without_the_package_one_line_says_how(monkeypatch):
    find = importlib.util.find_spec
    hide = lambda name, *rest: None if name == "datasets" else find(name, *rest)
    monkeypatch.setattr(importlib.util, "find_spec", hide)
    with pytest.raises(CorpusError, match="^" + MISSING.replace("[", r"\[")):
        opened("x")
