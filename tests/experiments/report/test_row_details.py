"""Sentences in which rows differ, and the head that a map opens at."""

import dataclasses

import numpy as np
import pytest

from experiments.evaluation.metrics import EXACT_MATCH
from experiments.report.comparison import compare
from experiments.report.packed_attention import first_beside, read_maps, telling_head
from experiments.report.row_details import differing
from experiments.report.trial_files import ResultsError, read_results
from experiments.report.trial_outputs import read_texts
from experiments.report.write import compare_rows
from tests.experiments import fakes


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    results = read_results(fakes.table_3(tmp_path_factory.mktemp("texts"), seeds=2))
    return compare_rows(results)


def test_sentences_are_those_of_the_largest_difference(rows):
    pairs = differing(rows, [EXACT_MATCH])
    assert [(pair.label, pair.other, pair.seed) for pair in pairs] == [
        ("(A) h=1", "base", 0),
        ("(B) d_k=16", "base", 0),
        ("(E) learned positions", "base", 0),
        ("big", "base", 0),
    ]
    for source, reference, theirs, ours, before, after in pairs[0].sentences:
        assert source.split()[1] == reference.split()[1]
        assert (theirs == reference, ours == reference) == (before == 100, after == 100)
        assert before != after


def test_the_largest_difference_comes_first(rows):
    pairs = differing(rows, fakes.REPORTED)
    assert {pair.metric.key for pair in pairs} == {"chrf"}
    for pair in pairs:
        sizes = [abs(after - before) for *_, before, after in pair.sentences]
        assert (
            len(sizes) == 6 and sizes == sorted(sizes, reverse=True) and sizes[-1] > 0
        )


def test_without_a_base_or_texts_no_sentences_are_compared(rows):
    without = compare([dataclasses.replace(row, base=None) for row in rows[1:4]])
    assert differing(without, [EXACT_MATCH]) == []
    texts = rows[1].trials[0].directory / "sources.txt"
    texts.rename(texts.with_suffix(".away"))
    pairs = differing(rows[:2], [EXACT_MATCH])
    texts.with_suffix(".away").rename(texts)
    assert pairs == []


def test_texts_that_do_not_belong_together_are_refused(tmp_path, rows):
    trial = rows[0].trials[0]
    texts = read_texts(trial)
    assert len(texts.sources) == 200 and len(texts.some()) == 3
    path = trial.directory / "references.txt"
    whole = path.read_bytes()
    path.write_bytes(whole + b"one more\n")
    with pytest.raises(ResultsError, match=r"references\.txt 201.*restore the files"):
        read_texts(trial)
    path.write_bytes(whole)


def test_a_line_ends_only_where_a_line_ends(rows):
    trial = rows[0].trials[1]
    path = trial.directory / "sources.txt"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"source 0", "source\u2028\r0".encode(), 1))
    assert read_texts(trial).sources[0] == "source\u2028\r0 of 200"
    path.write_bytes(whole)


def test_the_telling_head_is_the_one_that_follows_its_queries():
    """Of a head on one token, one on all, one on the diagonal, one that half follows it."""
    n = 5
    one = np.zeros((n, n))
    one[:, 0] = 1
    even = np.full((n, n), 1 / n)
    diagonal = np.eye(n)
    heads = np.stack([one, even, (even + diagonal) / 2, diagonal])[None]
    assert telling_head([{"cross": heads}], "cross") == [0, 3]
    assert telling_head([{"cross": heads[:, :3]}], "cross") == [0, 2]
    assert telling_head([{"cross": heads}], "decoder") == [0, 0]


def test_the_map_beside_the_first_is_of_the_row_that_differs_most(rows):
    maps = read_maps(rows)
    assert maps[0].label == "base"
    assert maps[first_beside(maps, rows)].label in ("(A) h=1", "big")
    assert first_beside(maps[:1], rows) is None
    # A run of another corpus kept none of the first one's sentences.
    beside = first_beside(maps, rows)
    kept = maps[beside].examples
    other = [dataclasses.replace(example, source="else") for example in kept]
    changed = [*maps]
    changed[beside] = maps[beside]._replace(examples=other)
    assert first_beside(changed, rows) not in (None, beside)
