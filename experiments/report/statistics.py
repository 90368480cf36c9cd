"""Computes means, spreads and intervals over seeds, and scores on resampled test sets.

R resamples, S sentences, k numbers that a sentence contributes to a metric.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from experiments.evaluation.metrics import Metric
from experiments.report.results import TrialResult

LEVEL = 0.05
"""The significance level of every test; intervals are for 1 − LEVEL."""

RESAMPLES = 1000


@dataclasses.dataclass(frozen=True)
class Summary:
    """Holds mean, spread and 95 % interval of n values.

    x̄ = Σ xᵢ / n, s = √(Σ (xᵢ − x̄)² / (n − 1)), and x̄ ± t(n − 1) s / √n. Spread and interval
    are None for one value.
    """

    mean: float
    spread: float | None
    n: int
    low: float | None = None
    high: float | None = None


class Score(NamedTuple):
    """Holds a run's score on its test set, and on R resamples of the test set."""

    value: float
    draws: np.ndarray
    """(R,)"""
    sentences: int


@dataclasses.dataclass(frozen=True)
class Group:
    """Holds the trials at one point of a sweep, whatever their seed and status."""

    point: Mapping[str, Any]
    trials: tuple[TrialResult, ...]
    label: str = ""
    """The row's name; empty where the sweep gave none."""

    @property
    def finished(self) -> tuple[TrialResult, ...]:
        return tuple(trial for trial in self.trials if trial.status == "finished")

    def summary(self, key: str) -> Summary | None:
        """Summarises the number `key` of the finished trials' results; None without any."""
        values = [trial.result.get(key) for trial in self.finished]
        # A metric may be newer than the run, or not apply to its corpus.
        values = [value for value in values if value is not None]
        return summarise(values) if values else None


def groups(
    trials: Iterable[TrialResult], point: Callable[[TrialResult], Mapping[str, Any]]
) -> list[Group]:
    """Groups `trials` with equal `point(trial)`, the seed left out.

    Groups are in the order in which each point first appears.
    """
    points: dict[frozenset, Mapping[str, Any]] = {}
    members: dict[frozenset, list[TrialResult]] = {}
    for trial in trials:
        # Runs that differ in their seed alone are one row.
        changes = {key: value for key, value in point(trial).items() if key != "seed"}
        # A set, because the order in which a sweep names its settings says nothing.
        key = frozenset(changes.items())
        points.setdefault(key, changes)
        members.setdefault(key, []).append(trial)
    return [
        Group(points[key], tuple(group), _first_label(group))
        for key, group in members.items()
    ]


def summarise(values: Iterable[float]) -> Summary:
    """Computes mean, sample standard deviation, number and interval of `values`.

    A NaN or infinity among them shows in each. Raises ValueError for no values.
    """
    values = [float(value) for value in values]
    n = len(values)
    if n == 0:
        raise ValueError("no values to summarise")
    mean = sum(values) / n
    # One value has no spread, which is other than a spread of 0.
    if n == 1:
        return Summary(mean, None, 1)
    spread = math.sqrt(sum((x - mean) * (x - mean) for x in values) / (n - 1))
    # Student's t, because the spread is estimated from few seeds.
    reach = _t(n - 1, LEVEL) * spread / math.sqrt(n)
    return Summary(mean, spread, n, mean - reach, mean + reach)


def resamples(sentences: int, seed: int = 0, count: int = RESAMPLES) -> np.ndarray:
    """Draws `count` test sets of `sentences` from one of that size, with replacement.

    Returns (count, sentences): how often each sentence is in each. Raises ValueError for
    fewer than 2 sentences.
    """
    if sentences < 2:
        raise ValueError(f"{sentences} sentence(s) cannot be resampled; 2 are needed")
    # A fixed seed, so that the same files give the same report.
    rng = np.random.default_rng(seed)
    shares = [1 / sentences] * sentences
    # Counts in place of drawn sentences, so that sums over them are a matrix product.
    return rng.multinomial(sentences, shares, count).astype(float)


def resampled_scores(
    metric: Metric, tables: Mapping[int, np.ndarray], weights: np.ndarray
) -> dict[int, Score]:
    """Scores a metric on the test set and on its resamples.

    `tables` are {seed: (S, k)}, what each sentence contributes (`Metric.statistics`), and
    `weights` (R, S) the `resamples`. One matrix product serves all seeds.
    """
    if not tables:
        return {}
    sentences = weights.shape[1]
    # In float64, because sums over many sentences lose digits in float32.
    columns = [np.asarray(table, np.float64) for table in tables.values()]
    columns = np.concatenate(columns, axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.concatenate([columns.sum(0, keepdims=True), weights @ columns])
        sums = sums.reshape(len(sums), len(tables), -1)
        scores = metric.of_sums(sums, sentences)
    return {
        seed: Score(float(column[0]), column[1:], sentences)
        for seed, column in zip(tables, scores.T, strict=True)
    }


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusts p-values for their number, in the same order (Holm 1979).

    Those ≤ α make α the chance of any false one among all. The k-th smallest of m becomes
    max over j ≤ k of min(1, (m − j + 1) p_j). Raises ValueError for one outside [0, 1].
    """
    if wrong := [p for p in p_values if not 0 <= p <= 1]:
        raise ValueError(f"p-values lie between 0 and 1, not at {wrong[0]}")
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    ranked = sorted(range(len(p_values)), key=lambda i: p_values[i])
    for rank, i in enumerate(ranked):
        # A running maximum keeps the order of the p-values.
        largest = max(largest, min(1.0, (len(p_values) - rank) * float(p_values[i])))
        adjusted[i] = largest
    return adjusted


def _first_label(trials):
    return next((trial.label for trial in trials if trial.label), "")


def _t(freedom, level):
    """Returns the t that |T| exceeds with probability `level`."""
    # The lower tail, because 1 − level / 2 rounds to 1 for small levels.
    return -float(special.stdtrit(freedom, level / 2))
