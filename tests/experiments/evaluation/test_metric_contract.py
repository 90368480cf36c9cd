"""The contract of a metric: ours keep it, and each fault is found and named."""

import numpy as np
import pytest

from experiments.evaluation.contract import check_metric
from experiments.evaluation.metrics import BLEU, CHRF, EXACT_MATCH, Metric
from experiments.stats.variance_stabilising import PERCENT

pytestmark = pytest.mark.quick


class Right(Metric):
    """The share of the words of references that stand in their places."""

    key = "right"
    heading = "right, %"
    scale = 100.0
    columns = 2

    def of_sentences(self, texts):
        """Returns (S, 2): the words that stand in their places, and all words."""
        rows = []
        for ours, theirs in texts.pairs:
            words = zip(ours.split(), theirs.split(), strict=False)
            rows.append([sum(a == b for a, b in words), len(theirs.split())])
        return np.array(rows).reshape(-1, 2)

    def of_sums(self, sums, sentences):
        return sums[..., 0] / np.maximum(sums[..., 1], 1)


RIGHT = Right()


def failures(**changes):
    """The checks that fail of RIGHT with other attributes; functions are methods."""
    rows = check_metric(type("Changed", (Right,), changes)())
    return {row.what: row.detail for row in rows if not row.ok}


@pytest.mark.parametrize(
    "metric", [RIGHT, BLEU, CHRF, EXACT_MATCH], ids=lambda metric: metric.key
)
def test_a_metric_meets_the_contract(metric):
    rows = check_metric(metric)
    assert len(rows) == 11 and [row for row in rows if not row.ok] == []


def test_a_metric_without_sentences_is_not_asked_for_them():
    class Corpus(Right):
        columns = 0

        def of_corpus(self, texts):
            # Sources are as many as the translations.
            assert len(texts.sources) == len(texts.translations)
            return RIGHT.of_corpus(texts)

    rows = check_metric(Corpus())
    assert len(rows) == 7 and all(row.ok for row in rows)


@pytest.mark.parametrize(
    ("changes", "what", "message"),
    [
        (dict(key="bleu"), "its key is a name of its own", "'bleu' is that of another"),
        (dict(key="a b"), "its key is a name of its own", "'a b' is no name"),
        (
            dict(of_corpus=lambda self, texts: float("nan")),
            "a corpus has a finite score",
            "of_corpus gives nan",
        ),
        (
            dict(higher_is_better=False),
            "perfect translations are better than broken ones",
            "perfect translations have 1, broken ones 0, with higher_is_better=False",
        ),
        (
            dict(of_corpus=lambda self, texts: float(len(texts.translations[0]))),
            "the order of sentences does not matter",
            "in another order the score is",
        ),
        (
            dict(of_corpus=lambda self, texts: 1 / len(texts.translations[0])),
            "empty translations have a score",
            "ZeroDivisionError: division by zero (test_metric_contract.py:",
        ),
        (
            dict(columns=3),
            "each sentence contributes `columns` numbers",
            "not (S, 3)",
        ),
        (
            dict(of_sentences=lambda self, texts: RIGHT.of_sentences(texts)[:3]),
            "each sentence contributes `columns` numbers",
            "6 sentences have 3 rows",
        ),
        (
            dict(
                of_sentences=lambda self, texts: np.array(
                    RIGHT.of_sentences(texts).tolist()
                )
            ),
            "no sentences contribute nothing",
            "shapes [(0,)], not (S, 2)",
        ),
        (
            dict(
                of_sums=lambda self, sums, sentences: sums[..., 0] / sentences,
                of_corpus=lambda self, texts: RIGHT.of_corpus(texts),
            ),
            "sums over sentences give the corpus's score",
            "of the sums the score is",
        ),
        (
            dict(of_sums=lambda self, sums, sentences: sums.sum() / sums.sum()),
            "sums of many test sets give the score of each",
            "of sums (3, 2, k) the scores have shape ()",
        ),
        (
            dict(
                link=PERCENT,
                of_corpus=lambda self, texts: 100 * RIGHT.of_corpus(texts) + 3,
            ),
            "its scale takes its scores",
            "103 is outside of 0 to 100, the bounds of its link, angle",
        ),
    ],
)
def test_a_fault_is_found(changes, what, message):
    assert message in failures(**changes)[what]
