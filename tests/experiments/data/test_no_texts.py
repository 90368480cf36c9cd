"""What is no text, such as a column of numbers, is refused in one line that says where."""

import importlib.util

import pytest

from experiments.data import corpora
from experiments.data.corpora import SPLITS, CorpusError, Pairs, huggingface, tfds
from experiments.data.dataset import prepare
from experiments.settings import HuggingFaceData, OutsideData
from tests.experiments import own_parts


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


class Rows(dict):
    """Columns of a data set, as `datasets` gives them."""

    column_names = property(list)

    def __len__(self):
        return len(next(iter(self.values())))

    def __getitem__(self, key):
        if isinstance(key, str):
            return dict.__getitem__(self, key)
        return {name: column[key] for name, column in self.items()}


def test_a_column_of_integers_of_a_data_set(monkeypatch):
    """Whoever reads first meets it: the fingerprint is of all texts."""
    find = importlib.util.find_spec
    known = lambda name, *rest: True if name == "datasets" else find(name, *rest)
    monkeypatch.setattr(importlib.util, "find_spec", known)
    rows = Rows(en=["a", "b", "c"], label=["x", 1, 0])
    splits = dict.fromkeys(SPLITS, rows)
    monkeypatch.setattr(huggingface, "_load", lambda data: splits)
    data = HuggingFaceData(dataset="mine", source="en", target="label")
    message = (
        r"^mine, train, row 1: 1 is no text but of type int; name a column of texts"
    )
    with pytest.raises(CorpusError, match=message):
        prepare(data)


def test_a_record_of_tfds_that_is_no_text_is_left_to_who_reads_it():
    assert tfds._text(3) == 3
    assert tfds._text(b"a\nb") == tfds._text("a\nb") == "a b"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (Pairs(["a", "b"], ["c", 7]), "train:1: 7 is no text but of type int"),
        (
            Pairs(["a", None], ["c", "d"]),
            "train:1: None is no text but of type NoneType",
        ),
        (Pairs([b"a"], ["c"]), "train:0: b'a' is no text but of type bytes"),
        (Pairs(["a", "b"], ["c"]), "train:1: a block has 2 sources and 1 targets"),
    ],
)
def test_a_corpus_of_ones_own(monkeypatch, changed, message):
    monkeypatch.setattr(own_parts.Symbols, "read", lambda self, split: iter([changed]))
    data = OutsideData(corpus=f"{own_parts.PLACE}:Symbols")
    with pytest.raises(CorpusError, match=f"^{message}") as caught:
        prepare(data)
    assert "\n" not in str(caught.value)


def test_places_go_on_from_block_to_block():
    class Blocks(own_parts.Symbols):
        def read(self, split):
            yield Pairs(["a", "b"], ["c", "d"])
            yield Pairs(["e"], [1.5])

    with pytest.raises(
        CorpusError, match=r"^test:2: 1\.5 is no text but of type float"
    ):
        list(corpora.read_texts(Blocks(None), "test"))
