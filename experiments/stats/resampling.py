"""Puts the scores of a table's rows into a column, with the variance that sentences give.

K rows, J seeds, P pairs of rows, S sentences, k numbers that a sentence contributes,
R resampled test sets.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from experiments.stats.least_squares import Column, Pairs
from experiments.stats.variance_stabilising import Link

RESAMPLES = 1000

OfSums = Callable[[np.ndarray, int], np.ndarray]
"""Returns scores (...) from sums (..., k) over S sentences, and S."""


class Runs(NamedTuple):
    """Holds the runs of a row in one metric."""

    values: Mapping[int | None, float]
    """{seed: score}; infinite where the run diverged."""
    tables: Mapping[int | None, np.ndarray]
    """{seed: (S, k)}: what each sentence contributes, where the runs kept their sentences."""
    sentences: int
    answers: int
    """Sentences, or the answers of all of them where the metric counts these."""

    def bound(self, link: Link) -> float | None:
        """Returns the bound of the metric that all finite runs are at; None for others."""
        values = set(filter(math.isfinite, self.values.values()))
        if len(values) != 1:
            return None
        (value,) = values
        return value if value <= link.lowest or value >= link.highest else None


def column_of(
    runs: Sequence[Runs],
    pairs: Pairs,
    link: Link,
    originals: Sequence[int],
    of_sums: OfSums | None = None,
) -> Column | None:
    """Returns the Column of a metric; None where no base has runs in it.

    `runs` has each row's, and `pairs` and `originals` are those of `contrasts.contrast`.
    Without `of_sums` test sets are not resampled.
    """
    known = {seed for row in runs for seed in row.values}
    # A run of which no seed is known is one more.
    seeds = sorted(known, key=lambda seed: (seed is not None, seed or 0))
    values = np.full((len(runs), len(seeds)), np.nan)
    for i, row in enumerate(runs):
        for seed, value in row.values.items():
            if math.isfinite(value):
                values[i, seeds.index(seed)] = link.forward(value)
    if not np.isfinite(values[pairs.bases]).any():
        return None
    at_bound = np.array([row.bound(link) is not None for row in runs])
    scores = [_resampled(row, link, of_sums) for row in runs]
    noise = sentence_noise(runs, scores, pairs, originals)
    noise = _with_bounds(noise, runs, at_bound, pairs, link)
    return Column(values, noise.own, noise.shared, at_bound, noise.level, noise.cross)


class Noise(NamedTuple):
    """Holds the variances that sentences add, see `Column`; 0 where they are not known."""

    own: np.ndarray
    shared: np.ndarray
    level: np.ndarray
    cross: np.ndarray


def sentence_noise(
    runs: Sequence[Runs],
    scores: Sequence[np.ndarray | None],
    pairs: Pairs,
    originals: Sequence[int],
) -> Noise:
    """Returns the variances that sentences give to scores and to differences.

    `scores` (J, R) of each row are on resampled test sets, where they vary by sentences
    alone (the bootstrap of Koehn 2004, "Statistical significance tests for machine
    translation evaluation"): the part that the runs of a row do not share is its own, and
    what else a difference to base has is shared. For copies of one row it is that of the
    difference itself, as their runs are paired.
    """
    own = np.zeros(len(runs))
    for i, draws in enumerate(scores):
        if draws is not None and len(draws) > 1:
            apart = draws - draws.mean(0)
            own[i] = _unbiased(runs[i]) * apart.var(1, ddof=1).sum() / (len(draws) - 1)
    noise = Noise(own, *np.zeros((3, len(pairs.rows))))
    for place, (i, base) in enumerate(zip(*pairs, strict=True)):
        of_base = scores[base]
        if of_base is None:
            continue
        factor = _unbiased(runs[base])
        mine = own[base] / len(of_base)
        level = factor * of_base.mean(0).var(ddof=1) - mine
        noise.level[place] = max(level, 0.0)
        draws = scores[i]
        is_same_size = runs[i].sentences == runs[base].sentences
        if i == base or draws is None or not is_same_size:
            continue
        if draws.shape[1:] != of_base.shape[1:]:
            continue
        gap = draws.mean(0) - of_base.mean(0)
        together = np.cov(of_base.mean(0), gap)[0, 1] * factor
        noise.cross[place] = together + mine
        apart = own[i] / len(draws) + mine
        is_paired = originals[i] == originals[base]
        if is_paired and _seeds(runs[i]) == _seeds(runs[base]) and len(draws) > 1:
            gaps = draws - of_base
            each = (gaps - gaps.mean(0)).var(1, ddof=1).sum() / (len(gaps) - 1)
            apart = factor * each / len(gaps)
            # The pairs' own part is no part of the base's.
            noise.cross[place] = together
        noise.shared[place] = max(factor * gap.var(ddof=1) - apart, 0.0)
    return noise


def _with_bounds(noise, runs, at_bound, pairs, link):
    """Adds what the answers of rows at a bound leave open: all their resamples are equal."""
    answers = np.array([max(row.answers, 1) for row in runs])
    hidden = np.where(at_bound, link.variance_of_one / answers, 0.0)
    of_base = hidden[pairs.bases]
    shared = np.where(pairs.differ, noise.shared + hidden[pairs.rows] + of_base, 0.0)
    level = noise.level + of_base
    # No covariance is larger than its variances allow.
    most = np.sqrt(level * shared)
    cross = np.clip(noise.cross - of_base, -most, most)
    return Noise(noise.own, shared, level, cross)


def _unbiased(row):
    """Returns by what the bootstrap's variance, (S − 1) / S of the right one, is too small."""
    return row.sentences / max(row.sentences - 1, 1)


def _seeds(row) -> set[int | None]:
    """Returns the seeds whose runs have a finite score."""
    return {seed for seed, value in row.values.items() if math.isfinite(value)}


def _resampled(row, link, of_sums):
    """Returns (J, R) scores on the link's scale; None where there are none.

    There are none for several test sets, or for one too small to resample.
    """
    sizes = {len(table) for table in row.tables.values()}
    seeds = _seeds(row)
    if of_sums is None or len(sizes) != 1 or min(sizes) < 2:
        return None
    if not seeds or not seeds <= row.tables.keys():
        return None
    tables = [row.tables[seed] for seed in sorted(seeds)]
    draws = link.forward(resampled_scores(of_sums, tables, resamples(*sizes)))
    return draws if np.isfinite(draws).all() else None


# One set of resamples for each number of sentences, so that scores can be paired.
@functools.lru_cache(maxsize=4)
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
    of_sums: OfSums, tables: Sequence[np.ndarray], weights: np.ndarray
) -> np.ndarray:
    """Returns the scores (J, R) of J runs on resampled test sets.

    `tables` are (S, k), what each sentence contributes, and `weights` (R, S) the
    `resamples`. One matrix product serves all runs.
    """
    # In float64, because sums over many sentences lose digits in float32.
    columns = [np.asarray(table, np.float64) for table in tables]
    with np.errstate(over="ignore", invalid="ignore"):
        sums = weights @ np.concatenate(columns, axis=1)
        sums = sums.reshape(len(weights), len(tables), -1)
        # In rows that are contiguous, so that means over them sum in one order.
        return np.ascontiguousarray(of_sums(sums, weights.shape[1]).T)
