"""Puts the scores of a table's rows into columns, on the scales on which rows vary alike.

K rows, S sentences.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from experiments.evaluation.metrics import Metric
from experiments.report import statistics
from experiments.report.fits import Column
from experiments.report.results import TrialResult
from experiments.report.statistics import Group

USUAL_SENTENCES = 1000
"""The size of a test set that a run does not say."""

ReadSentences = Callable[[TrialResult], Mapping[str, np.ndarray]]
"""Returns what a trial's sentences.npz holds, {} for nothing."""


class Runs(NamedTuple):
    """Holds a group's runs in one metric."""

    values: Mapping[int, float]
    """{seed: score}; infinite where the run diverged."""
    tables: Mapping[int, np.ndarray]
    """{seed: what each sentence contributes}, where the runs kept their sentences."""
    sentences: int
    answers: int
    """Sentences, or the answers of all of them where the metric counts these."""
    vocabularies: frozenset[str]

    def bound(self, metric: Metric) -> float | None:
        """Returns the bound of the metric that all finite runs are at; None for others."""
        values = set(filter(math.isfinite, self.values.values()))
        if len(values) != 1:
            return None
        (value,) = values
        is_bound = value <= metric.link.lowest or value >= metric.link.highest
        return value if is_bound else None


def columns_of(
    groups: Sequence[Group],
    sentences: ReadSentences,
    metrics: Sequence[Metric],
    base: int,
    originals: Sequence[int],
) -> tuple[dict[Metric, list[Runs]], dict[Metric, Column]]:
    """Returns {metric: each group's Runs} and {metric: its Column}, where the base has runs.

    `base` is the place of the base among the groups, `originals` are those of
    `contrasts.contrast`.
    """
    stored = [
        {trial.seed: sentences(trial) for trial in group.finished} for group in groups
    ]
    runs = {}
    columns = {}
    for metric in metrics:
        of_metric = [_runs(*pair, metric) for pair in zip(groups, stored, strict=True)]
        column = column_of(of_metric, base, metric, originals)
        if column is not None:
            columns[metric] = column
            runs[metric] = of_metric
    return runs, columns


def _runs(group, stored, metric):
    values = {}
    for trial in group.finished:
        value = trial.result.get(metric.key)
        # A metric may be newer than the run, or not apply to its corpus.
        if value is not None:
            values[trial.seed] = float(value) if math.isfinite(value) else math.inf
    for trial in group.trials:
        if trial.status == "diverged":
            values[trial.seed] = math.inf
    tables = {seed: metric.statistics(arrays) for seed, arrays in stored.items()}
    tables = {seed: table for seed, table in tables.items() if table is not None}
    sizes = {len(table) for table in tables.values()}
    sizes |= {trial.result.get(f"{metric.split}_sentences") for trial in group.finished}
    sizes = [size for size in sizes if type(size) is int and size > 0]
    sentences = sizes[0] if len(sizes) == 1 else USUAL_SENTENCES
    answers = sentences
    if metric.answers is not None and tables:
        answers = int(next(iter(tables.values()))[:, metric.answers].sum())
    return Runs(
        values,
        tables,
        sentences,
        answers,
        frozenset(str(t.record.get("vocabulary")) for t in group.finished),
    )


def column_of(
    runs: Sequence[Runs], base: int, metric: Metric, originals: Sequence[int]
) -> Column | None:
    """Returns the Column of a metric; None where the base has no runs in it."""
    known = {seed for group in runs for seed in group.values}
    # A run of which no seed is known is one more.
    seeds = sorted(known, key=lambda seed: (seed is not None, seed or 0))
    values = np.full((len(runs), len(seeds)), np.nan)
    for i, group in enumerate(runs):
        # Perplexities are a token's, and other vocabularies have other tokens.
        if metric.per_token and len(group.vocabularies | runs[base].vocabularies) > 1:
            continue
        for seed, value in group.values.items():
            if math.isfinite(value):
                values[i, seeds.index(seed)] = metric.link.forward(value)
    if not np.isfinite(values[base]).any():
        return None
    at_bound = np.array([group.bound(metric) is not None for group in runs])
    noise = _sentence_noise(runs, base, metric, originals)
    return Column(values, noise.own, noise.shared, at_bound, noise.level, noise.cross)


class _Noise(NamedTuple):
    """Holds what sentences add to variances, see `fits.Column`; 0 where it is not known."""

    own: np.ndarray
    shared: np.ndarray
    level: float
    cross: np.ndarray


def _sentence_noise(runs, base, metric, originals):
    """Returns the variances that sentences give to scores and to differences.

    Scores on resampled test sets vary by sentences alone (the bootstrap of Koehn 2004,
    "Statistical significance tests for machine translation evaluation"): the part that the
    runs of a row do not share is its own, and what else a difference to base has is shared.
    Of a copy of the base it is so of the difference itself, as their runs are paired. Of
    scores at a bound all resamples are equal; what their answers leave open is added.
    """
    scores = [_scores(metric, group) for group in runs]
    own = np.zeros(len(runs))
    for i, draws in enumerate(scores):
        if draws is not None and len(draws) > 1:
            apart = draws - draws.mean(0)
            own[i] = _unbiased(runs[i]) * apart.var(1, ddof=1).sum() / (len(draws) - 1)
    shared = np.zeros(len(runs))
    cross = np.zeros(len(runs))
    level = 0.0
    of_base = scores[base]
    if of_base is not None:
        mine = own[base] / len(of_base)
        level = max(_unbiased(runs[base]) * of_base.mean(0).var(ddof=1) - mine, 0.0)
        for i, draws in enumerate(scores):
            if i == base or not _is_paired(draws, of_base, runs[i], runs[base]):
                continue
            gap = draws.mean(0) - of_base.mean(0)
            together = np.cov(of_base.mean(0), gap)[0, 1] * _unbiased(runs[base])
            cross[i] = together + mine
            apart = own[i] / len(draws) + mine
            if originals[i] == base and len(draws) == len(of_base) > 1:
                gaps = draws - of_base
                each = (gaps - gaps.mean(0)).var(1, ddof=1).sum() / (len(gaps) - 1)
                apart = _unbiased(runs[base]) * each / len(gaps)
                # The pairs' own part is no part of the base's.
                cross[i] = together
            shared[i] = max(_unbiased(runs[base]) * gap.var(ddof=1) - apart, 0.0)
    return _with_bounds(_Noise(own, shared, level, cross), runs, base, metric)


def _with_bounds(noise, runs, base, metric):
    """Returns the noise with that of scores at a bound."""
    hidden = np.zeros(len(runs))
    for i, group in enumerate(runs):
        if group.bound(metric) is not None:
            hidden[i] = metric.link.variance_of_one / max(group.answers, 1)
    shared = noise.shared + hidden + hidden[base]
    shared[base] = 0.0
    level = noise.level + hidden[base]
    # No covariance is larger than its variances allow.
    most = np.sqrt(level * shared)
    return _Noise(
        noise.own, shared, level, np.clip(noise.cross - hidden[base], -most, most)
    )


def _is_paired(draws, of_base, group, base):
    """Returns whether a group and the base were scored on the same sentences."""
    return (
        draws is not None
        and draws.shape[1:] == of_base.shape[1:]
        and group.sentences == base.sentences
    )


def _unbiased(group):
    """Returns by what the bootstrap's variance, (S − 1) / S of the right one, is too small."""
    return group.sentences / max(group.sentences - 1, 1)


# One set of resamples for each number of sentences, so that scores can be paired.
_resamples = functools.lru_cache(maxsize=4)(statistics.resamples)


def _scores(metric, runs):
    """Returns (seeds, resamples) scores on the metric's scale; None where there are none.

    Also for several test sets, or one too small to resample.
    """
    sizes = {len(table) for table in runs.tables.values()}
    finite = {seed for seed, value in runs.values.items() if math.isfinite(value)}
    if metric.of_sums is None or len(sizes) != 1 or min(sizes) < 2:
        return None
    if not finite or not finite <= runs.tables.keys():
        return None
    tables = {seed: runs.tables[seed] for seed in sorted(finite)}
    scores = statistics.resampled_scores(metric, tables, _resamples(*sizes))
    draws = metric.link.forward(np.stack([score.draws for score in scores.values()]))
    return draws if np.isfinite(draws).all() else None
