"""Scales on which all scores of a metric vary alike, whether they are high or low.

A run with a perplexity of 5 differs from seed to seed by more than one with 1.1, and one with
an exact match of 50 % by more than one with 99 %. Square roots and angles stabilise such
variances (Bartlett 1936, "The square root transformation in analysis of variance"; Fisher
1954, "The analysis of variance with various statistical models used in approximating the
genetic law"), and have a finite value at every bound: scores at a bound and near it stay
apart, and none has to be moved.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

Values = np.ndarray


@dataclasses.dataclass(frozen=True)
class Link:
    """Holds a rising function from a metric's values to a scale, and its inverse."""

    name: str
    forward: Callable[[Values], Values]
    inverse: Callable[[Values], Values]
    lowest: float = -np.inf
    highest: float = np.inf
    """The metric's bounds; `inverse` stays within them."""
    variance_of_one: float = 0.0
    """n times the variance, on the scale, of a share of n answers: what they leave open even
    where all are right, or none."""


def _angle_of(largest):
    def forward(values):
        shares = np.asarray(values, float) / largest
        return np.arcsin(np.sqrt(np.clip(shares, 0.0, 1.0)))

    def inverse(values):
        return largest * np.sin(np.clip(values, 0.0, np.pi / 2)) ** 2

    # d angle = d share / (2 √(share (1 − share))), and a share of n answers has the
    # variance share (1 − share) / n.
    return Link("angle", forward, inverse, 0.0, largest, variance_of_one=0.25)


def _root_of_cross_entropy(perplexities):
    # A perplexity is rounded to a little less than 1 at most; NaN stays NaN.
    return np.sqrt(np.log(np.maximum(np.asarray(perplexities, float), 1.0)))


def _perplexity(roots):
    with np.errstate(over="ignore"):
        return np.exp(_square(roots))


def _same(values):
    return np.asarray(values, float)


def _root(values):
    return np.sqrt(np.maximum(np.asarray(values, float), 0.0))


def _square(roots):
    return np.square(np.maximum(roots, 0.0))


IDENTITY = Link("identity", _same, _same)
ROOT = Link("root", _root, _square, lowest=0.0)
"""√x, of a cross-entropy."""
ROOT_CROSS_ENTROPY = Link(
    "root of cross-entropy", _root_of_cross_entropy, _perplexity, lowest=1.0
)
"""√(log perplexity)."""
PERCENT = _angle_of(100.0)
"""arcsin √(x / 100)."""
SHARE = _angle_of(1.0)
"""arcsin √x."""
