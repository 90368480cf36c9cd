"""The contract of a metric: ours keep it, and each fault is found and named."""

import dataclasses

import numpy as np
import pytest

from experiments.evaluation.contract import check_metric
from experiments.evaluation.metrics import BLEU, CHRF, EXACT_MATCH, Metric
from experiments.stats.variance_stabilising import PERCENT

pytestmark = pytest.mark.quick


def right(translations, references, tokens_of):
    """Returns (S, 2): the words that stand in their places, and all words of references."""
    rows = []
    for ours, theirs in zip(translations, references, strict=True):
        words = zip(ours.split(), theirs.split(), strict=False)
        rows.append([sum(a == b for a, b in words), len(theirs.split())])
    return np.array(rows).reshape(-1, 2)


def share(sums, sentences):
    return sums[..., 0] / np.maximum(sums[..., 1], 1)


def of_corpus(translations, references, tokens_of):
    return float(share(right(translations, references, tokens_of).sum(0), 0))


RIGHT = Metric(
    key="right",
    heading="right, %",
    scale=100.0,
    of_corpus=of_corpus,
    of_sentences=right,
    of_sums=share,
    columns=2,
)


def failures(**changes):
    rows = check_metric(dataclasses.replace(RIGHT, **changes))
    return {row.what: row.detail for row in rows if not row.ok}


@pytest.mark.parametrize(
    "metric", [RIGHT, BLEU, CHRF, EXACT_MATCH], ids=lambda metric: metric.key
)
def test_a_metric_meets_the_contract(metric):
    rows = check_metric(metric)
    assert len(rows) == 11 and [row for row in rows if not row.ok] == []


def test_a_metric_without_sentences_is_not_asked_for_them():
    rows = check_metric(dataclasses.replace(RIGHT, of_sentences=None, of_sums=None))
    assert len(rows) == 7 and all(row.ok for row in rows)


def test_sources_are_given_where_they_are_needed():
    def with_sources(translations, references, tokens_of, sources):
        assert len(sources) == len(translations)
        return right(translations, references, tokens_of)

    def corpus_with_sources(*texts):
        return float(share(with_sources(*texts).sum(0), 0))

    needing = dict(of_corpus=corpus_with_sources, of_sentences=with_sources)
    assert failures(**needing, needs_source=True) == {}
    assert "a corpus has a finite score" in failures(**needing)


@pytest.mark.parametrize(
    ("changes", "what", "message"),
    [
        (dict(key="bleu"), "its key is a name of its own", "'bleu' is that of another"),
        (dict(key="a b"), "its key is a name of its own", "'a b' is no name"),
        (
            dict(of_corpus=lambda *texts: float("nan")),
            "a corpus has a finite score",
            "of_corpus gives nan",
        ),
        (
            dict(higher_is_better=False),
            "perfect translations are better than broken ones",
            "perfect translations have 1, broken ones 0, with higher_is_better=False",
        ),
        (
            dict(of_corpus=lambda ours, *rest: float(len(ours[0]))),
            "the order of sentences does not matter",
            "in another order the score is",
        ),
        (
            dict(of_corpus=lambda ours, *rest: 1 / len(ours[0])),
            "empty translations have a score",
            "ZeroDivisionError: division by zero (test_metric_contract.py:",
        ),
        (
            dict(columns=3),
            "each sentence contributes `columns` numbers",
            "not (S, 3)",
        ),
        (
            dict(of_sentences=lambda *texts: right(*texts)[:3]),
            "each sentence contributes `columns` numbers",
            "6 sentences have 3 rows",
        ),
        (
            dict(of_sentences=lambda *texts: np.array([*map(list, right(*texts))])),
            "no sentences contribute nothing",
            "shapes [(0,)], not (S, 2)",
        ),
        (
            dict(of_sums=lambda sums, sentences: sums[..., 0] / sentences),
            "sums over sentences give the corpus's score",
            "of the sums the score is",
        ),
        (
            dict(of_sums=lambda sums, sentences: sums.sum() / sums.sum()),
            "sums of many test sets give the score of each",
            "of sums (3, 2, k) the scores have shape ()",
        ),
        (
            dict(link=PERCENT, of_corpus=lambda *texts: 100 * of_corpus(*texts) + 3),
            "its scale takes its scores",
            "103 is outside of 0 to 100, the bounds of its link, angle",
        ),
    ],
)
def test_a_fault_is_found(changes, what, message):
    assert message in failures(**changes)[what]
