"""The contract of a corpus: one that keeps it passes, and each fault is found and named."""

import itertools

import pytest

from experiments.data import contract
from experiments.data.corpora import Pairs
from tests.experiments import own_parts
from tests.experiments.own_parts import PLACE

pytestmark = pytest.mark.quick


def failures(name="Symbols", **more):
    rows = contract.check_corpus(f"{PLACE}:{name}", elsewhere=False)
    return {row.what: row.detail for row in rows if not row.ok}


@pytest.mark.parametrize(("name", "count"), [("Symbols", 7), ("Labels", 7)])
def test_a_corpus_meets_the_contract(name, count):
    rows = contract.check_corpus(f"{PLACE}:{name}", elsewhere=False)
    assert len(rows) == count and all(row.ok for row in rows)
    assert rows[0].detail == "train 40, validation 4, test 4"


COUNTER = itertools.count()
WORDS = ["s1", "s2"]
FAULTS = {
    "no pairs": (
        dict(read=lambda self, split: iter(())),
        "each split has pairs of texts, as many on both sides",
        "no pairs in train, validation, test",
    ),
    "numbers": (
        dict(read=lambda self, split: iter([Pairs([1], ["s1"])])),
        "each split has pairs of texts, as many on both sides",
        "3 bad lines: train:0: no text but 1; validation:0: no text but 1",
    ),
    "random texts": (
        dict(
            read=lambda self, split: iter([Pairs([f"s{next(COUNTER) % 10}"], ["s1"])])
        ),
        "texts are the same when they are read again",
        "the texts of train are others: draw with a seed of their own",
    ),
    "a new fingerprint each time": (
        dict(fingerprint=lambda self: str(next(COUNTER))),
        "another instance has the same texts and fingerprint",
        "equal texts have the fingerprints",
    ),
    "no fingerprint": (
        dict(fingerprint=lambda self: None),
        "the fingerprint is a text",
        "fingerprint() gives None, not a text",
    ),
    "no place": (
        dict(place=lambda self, split, i: i),
        "place names the first and last pair of a split",
        "place('train', 0) gives 0, not a line",
    ),
    "counts in a list": (
        dict(counts=lambda self: [3]),
        "counts are numbers by name",
        "counts() gives [3], not a dict",
    ),
    "a count that is none": (
        dict(counts=lambda self: {"dropped": "some"}),
        "counts are numbers by name",
        "counts() has 'dropped': 'some', not a name and a number",
    ),
    "symbols as an attribute": (
        dict(symbols=WORDS),
        "it can be opened",
        "symbols must be a method that returns a list or tuple",
    ),
    "too few symbols": (
        dict(symbols=lambda self: WORDS),
        "each split has pairs of texts, as many on both sides",
        "bad lines: train:0: 's0' is none of the words of symbols()",
    ),
    "a symbol twice": (
        dict(symbols=lambda self: WORDS + WORDS),
        "it can be opened",
        "symbols() has 's1' more than once",
    ),
    "too few labels": (
        dict(
            objective="answer",
            read=lambda self, split: iter([Pairs(["s1 s2"], ["s1"])]),
        ),
        "each split has pairs of texts, as many on both sides",
        "bad lines: train:0: 2 words and 1 answers",
    ),
    "distances of one answer": (
        dict(distances=lambda self: [[1], [1], [1], [1]]),
        "distances are of all answers of the test",
        "test:0: 1 distances of 2 answers",
    ),
    "distances of one text": (
        dict(distances=lambda self: [[1, 2]]),
        "distances are of all answers of the test",
        "of 1 pairs, and the test has 4",
    ),
    "links of one pair": (
        dict(links=lambda self: [()]),
        "links are of all pairs of the test",
        "of 1 pairs, and the test has 4",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(monkeypatch, fault):
    changes, what, message = FAULTS[fault]
    for name, value in changes.items():
        monkeypatch.setattr(own_parts.Symbols, name, value, raising=False)
    assert message in failures()[what]


def test_options_that_change_texts_change_the_fingerprint():
    assert failures("Sized(pairs=30, named=True)") == {}
    found = failures("Sized(pairs=30)")
    assert list(found) == ["other options with other texts have another fingerprint"]
    assert "other texts and the same fingerprint, 'sized'" in next(iter(found.values()))


@pytest.mark.ci
def test_another_process_tells_what_depends_on_this_one():
    rows = contract.check_corpus(f"{PLACE}:Symbols")
    assert all(row.ok for row in rows) and len(rows) == 8
    # The order of a set of texts is drawn anew in each process.
    found = {
        row.what: row.detail
        for row in contract.check_corpus(f"{PLACE}:Unordered")
        if not row.ok
    }
    assert list(found) == ["another process has the same texts and fingerprint"]
    assert "in an order that is fixed, which that of a set is not" in found.popitem()[1]
