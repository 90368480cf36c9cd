"""The scales on which rows of a table vary alike.

A run with a perplexity of 5 differs from seed to seed by more than one with 1.1, and one with
an exact match of 50 % by more than one with 99 %. On the scales here their spreads are close:
over the 20 rows of Table 3 on CLDR (`experiments/results/table3/tiny.md`), the logarithms of
the rows' standard deviations vary by 0.0 (log cross-entropy), 0.48 (logit of BLEU), 0.66 (of
chrF) and 0.53 (of exact match), after the chance of few seeds is taken out; by 1.1 on the
metrics' own scales.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
from scipy import special

Values = np.ndarray


@dataclasses.dataclass(frozen=True)
class Link:
    """Holds a rising function from a metric's values to a scale, and its inverse."""

    name: str
    forward: Callable[[Values, float], Values]
    """Takes values, and the number of sentences that they are of."""
    inverse: Callable[[Values], Values]
    lowest: float = -np.inf
    highest: float = np.inf
    """The metric's bounds."""


def _logit_of(largest):
    def forward(values, sentences):
        # Half a sentence from a bound: a score at the bound would be infinitely far away.
        least = 0.5 / max(sentences, 100)
        return special.logit(
            np.clip(np.asarray(values, float) / largest, least, 1 - least)
        )

    def inverse(values):
        return largest * special.expit(values)

    return forward, inverse


def _log_cross_entropy(values, sentences):
    # A perplexity of 1 has no cross-entropy; what float32 cannot tell from 1 is not below.
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.log(np.maximum(np.log(np.asarray(values, float)), 1e-7))


def _perplexity(values):
    with np.errstate(over="ignore"):
        return np.exp(np.exp(values))


def _same(values, sentences=1):
    return np.asarray(values, float)


IDENTITY = Link("identity", _same, _same)
LOG_CROSS_ENTROPY = Link(
    "log cross-entropy", _log_cross_entropy, _perplexity, lowest=1.0
)
"""log log perplexity."""
PERCENT = Link("logit", *_logit_of(100.0), lowest=0.0, highest=100.0)
"""logit(x / 100), half a sentence of 100 or more from 0 and 100."""
SHARE = Link("logit", *_logit_of(1.0), lowest=0.0, highest=1.0)
"""logit(x), half a sentence of 100 or more from 0 and 1."""
