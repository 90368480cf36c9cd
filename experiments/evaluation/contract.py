"""Validates a custom metric: it must meet the contract of `experiments.evaluation.metrics`.

S sentences, k numbers that a sentence contributes, R resampled test sets.
"""

import math

import numpy as np

from attn.contract.common import Row, run
from experiments.evaluation.metrics import METRICS, OF_ATTENTION, Metric, Texts, summary

SOURCES = (
    "3 days ago",
    "the old cat sees a small bird",
    "in 1,250.50 dollars",
    "yes",
    "one two three four five six",
    "she reads a long letter at night",
)
REFERENCES = (
    "vor 3 Tagen",
    "die alte Katze sieht einen kleinen Vogel",
    "in 1.250,50 Dollar",
    "ja",
    "eins zwei drei vier fünf sechs",
    "sie liest nachts einen langen Brief",
)
TRANSLATIONS = (
    "vor 3 Tagen",
    "die alte Katze sieht den Vogel",
    "in 1.250,50 Euro",
    "",
    "eins zwei drei vier fünf sechs sieben",
    "sie liest am Abend einen langen Brief",
)
"""Right, nearly right, and none at all."""

BROKEN = ("", "x", "?", "nein nein", "0 0 0 0 0 0 0 0", "der")
"""Translations of none of the references."""

TOLERANCE = 1e-6
"""How far sums over sentences may be from the corpus's score, as a share of it or of 1."""


def check_metric(metric: Metric) -> list[Row]:
    """Checks that a value meets the contract of `Metric`.

    Returns:
      Rows on its name, its score of a corpus, and on what each sentence contributes.
    """
    checks = {
        "its key is a name of its own": lambda: _key(metric),
        "a corpus has a finite score": lambda: _finite(metric),
        "a table can show it": lambda: _shown(metric),
        "the order of sentences does not matter": lambda: _order(metric),
        "empty translations have a score": lambda: _empty(metric),
        "perfect translations are better than broken ones": lambda: _better(metric),
        "its scale takes its scores": lambda: _scale(metric),
    }
    if metric.columns:
        checks |= {
            "each sentence contributes `columns` numbers": lambda: _sentences(metric),
            "no sentences contribute nothing": lambda: _none(metric),
            "sums over sentences give the corpus's score": lambda: _sums(metric),
            "sums of many test sets give the score of each": lambda: _many(metric),
        }
    return list(run(checks))


def _texts(translations, references=REFERENCES, sources=SOURCES):
    return Texts(list(translations), list(references), "", list(sources))


def _score(metric, *texts):
    return metric.of_corpus(_texts(*texts))


def _contributed(metric, *texts):
    """Returns the (S, k) numbers of some sentences, as a report reads them."""
    array = metric.of_sentences(_texts(*texts))
    (name,) = metric.arrays
    return metric.statistics({name: np.asarray(array)})


def _key(metric):
    if not isinstance(metric.key, str) or not metric.key.isidentifier():
        raise ValueError(f"key={metric.key!r} is no name, such as ter")
    others = [m for m in (*METRICS, *OF_ATTENTION) if type(m) is not type(metric)]
    if metric.key in [other.key for other in others]:
        raise ValueError(f"key={metric.key!r} is that of another metric")


def _finite(metric):
    score = _score(metric, TRANSLATIONS)
    if score is None:
        return "it does not apply to plain text"
    if not math.isfinite(score):
        raise ValueError(f"of_corpus gives {score!r}")
    return f"{score:.4g}"


def _shown(metric):
    score = _score(metric, TRANSLATIONS)
    return "" if score is None else summary({metric.key: score}, [metric])


def _order(metric):
    backwards = slice(None, None, -1)
    one = _score(metric, TRANSLATIONS)
    other = _score(
        metric, TRANSLATIONS[backwards], REFERENCES[backwards], SOURCES[backwards]
    )
    _close(other, one, "in another order")


def _empty(metric):
    score = _score(metric, [""] * len(REFERENCES))
    if score is not None and not math.isfinite(score):
        raise ValueError(f"of_corpus gives {score!r}")


def _better(metric):
    perfect = _score(metric, REFERENCES)
    broken = _score(metric, BROKEN)
    if perfect is None or broken is None:
        return "it does not apply to plain text"
    is_better = perfect > broken if metric.higher_is_better else perfect < broken
    if not is_better:
        raise ValueError(
            f"perfect translations have {perfect:.4g}, broken ones {broken:.4g}, with "
            f"higher_is_better={metric.higher_is_better}"
        )
    return f"{perfect:.4g} and {broken:.4g}"


def _scale(metric):
    scores = [_score(metric, each) for each in (REFERENCES, TRANSLATIONS, BROKEN)]
    values = np.array([score for score in scores if score is not None], float)
    link = metric.link
    if not np.isfinite(link.forward(values)).all():
        raise ValueError(f"{link.name} of {values.tolist()} is NaN or Inf")
    # sacreBLEU's 100 is rounded.
    rounding = TOLERANCE * np.maximum(1, np.abs(values))
    outside = (values < link.lowest - rounding) | (values > link.highest + rounding)
    if outside.any():
        raise ValueError(
            f"{values[outside][0]:.4g} is outside of {link.lowest:g} to {link.highest:g}, "
            f"the bounds of its link, {link.name}"
        )
    return link.name


def _sentences(metric):
    numbers = _contributed(metric, TRANSLATIONS)
    if len(numbers) != len(TRANSLATIONS):
        raise ValueError(f"{len(TRANSLATIONS)} sentences have {len(numbers)} rows")
    if not np.isfinite(numbers.astype(float)).all():
        raise ValueError("a number is NaN or Inf")
    return f"{metric.columns} each"


def _none(metric):
    shape = _contributed(metric, (), (), ()).shape
    if shape != (0, metric.columns):
        raise ValueError(f"an array of shape {shape}, not {(0, metric.columns)}")


def _sums(metric):
    for translations in (TRANSLATIONS, REFERENCES, BROKEN):
        sums = _contributed(metric, translations).astype(float).sum(0)
        score = metric.of_sums(sums, len(translations))
        _close(score, _score(metric, translations), "of the sums")


def _many(metric):
    numbers = _contributed(metric, TRANSLATIONS).astype(float)
    rng = np.random.default_rng(0)
    weights = rng.multinomial(len(numbers), [1 / len(numbers)] * len(numbers), (3, 2))
    sums = weights @ numbers
    together = np.asarray(metric.of_sums(sums, len(numbers)))
    if together.shape != (3, 2):
        raise ValueError(f"of sums (3, 2, k) the scores have shape {together.shape}")
    for place in np.ndindex(3, 2):
        one = metric.of_sums(sums[place], len(numbers))
        _close(together[place], one, "of one of many")


def _close(score, expected, of):
    error = abs(float(score) - float(expected))
    if not error <= TOLERANCE * max(1.0, abs(float(expected))):
        raise ValueError(f"{of} the score is {score:.6g}, not {expected:.6g}")
