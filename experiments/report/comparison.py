"""Compares a table's rows with its base: which differences are real.

It also says which of the orderings that the paper printed our differences support.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from experiments.evaluation.metrics import METRICS, Metric
from experiments.report import statistics
from experiments.report.published import TABLE_3, Published
from experiments.report.results import TrialResult
from experiments.report.statistics import Difference, Group, Score


class Row(NamedTuple):
    """Holds a group and how it compares with the base, each by the keys of the metrics.

    The base, and a row that shares fewer than 2 seeds with it, have no differences.
    """

    label: str
    group: Group
    differences: Mapping[str, Difference]
    adjusted: Mapping[str, float]
    """p after Holm's correction over the rows."""
    verdicts: Mapping[str, str]
    """`statistics.verdict`."""
    published: Published | None
    """The paper's numbers for the row of this label."""
    ordering: Mapping[str, str]
    """Of published metrics: our results and the sign of the paper's row − base.

    "supported", "contradicted" or "cannot tell"; "" where the paper has no such row, or one
    number for row and base, or where there is no difference of ours.
    """


class _Runs(NamedTuple):
    """Holds a group's finished trials as {metric key: {seed: …}}."""

    values: Mapping[str, Mapping[int, float]]
    """Results as they are."""
    scores: Mapping[str, Mapping[int, Score]]
    """Scores on resampled test sets, where the trials kept their sentences."""
    corpora: frozenset[str]


def compare(
    groups: Sequence[Group],
    sentences: Callable[[TrialResult], Mapping[str, np.ndarray]],
    metrics: Sequence[Metric] = METRICS,
) -> list[Row]:
    """Compares each of `groups` with the base, and returns a Row for each in their order.

    `sentences(trial)` returns what its sentences.npz holds, {} for nothing. The base is the
    group with the label "base", else the one that changes nothing; without one nothing is
    compared. Chance is that of seeds and sentences where both sides kept their sentences of
    one corpus, else that of seeds.

    `detectable` is at the level that Holm's correction leaves to every row, 5 % divided by
    their number: such a difference is shown with probability 0.8 or more, whatever the other
    rows are.
    """
    base = base_of(groups)
    # Without a base no sentences are read, which takes a while for many trials.
    if base is None:
        return [_row(group, None, metrics, {}) for group in groups]
    # One set of resamples for each number of sentences, so that scores can be paired.
    draw = functools.cache(statistics.resamples)
    others = {}
    for i, group in enumerate(groups):
        runs = _runs(group, sentences, metrics, draw)
        if group is base:
            of_base = runs
        else:
            others[i] = runs
    tests = {metric: _differences(metric, others, of_base) for metric in metrics}
    rows = []
    for i, group in enumerate(groups):
        results = {metric: tested[i] for metric, tested in tests.items() if i in tested}
        rows.append(_row(group, base, metrics, results))
    return rows


def base_of(groups: Iterable[Group]) -> Group | None:
    """Returns the group that the others are compared with."""
    groups = list(groups)
    # By label first, because a sweep may name another row its base.
    unchanged = next((group for group in groups if not group.point), None)
    return next((group for group in groups if group.label == "base"), unchanged)


def _row(group, base, metrics, results):
    """Returns the Row of a group from {metric: (difference, adjusted p)}."""
    differences = {}
    adjusted = {}
    verdicts = {}
    for metric, (difference, p) in results.items():
        differences[metric.key] = difference
        adjusted[metric.key] = p
        verdicts[metric.key] = statistics.verdict(difference, p, metric)
    published = TABLE_3.get(group.label)
    of_base = TABLE_3.get(base.label) if base else None
    ordering = {}
    for metric in metrics:
        if not metric.published:
            continue
        ordering[metric.key] = ""
        if published and of_base and metric in results:
            gap = getattr(published, metric.key) - getattr(of_base, metric.key)
            ordering[metric.key] = _ordering(gap, *results[metric])
    return Row(group.label, group, differences, adjusted, verdicts, published, ordering)


def _ordering(published, difference, adjusted_p):
    # Where the paper printed the same number twice, it has no ordering.
    if published == 0:
        return ""
    if adjusted_p >= statistics.LEVEL:
        return "cannot tell"
    return "supported" if (published > 0) == (difference.mean > 0) else "contradicted"


def _runs(group, sentences, metrics, draw):
    trials = {trial.seed: trial for trial in group.finished}
    stored = {seed: sentences(trial) for seed, trial in trials.items()}
    values = {}
    scores = {}
    for metric in metrics:
        results = {seed: trial.result.get(metric.key) for seed, trial in trials.items()}
        values[metric.key] = {
            seed: value for seed, value in results.items() if value is not None
        }
        tables = {seed: metric.statistics(arrays) for seed, arrays in stored.items()}
        tables = {seed: table for seed, table in tables.items() if table is not None}
        scores[metric.key] = _scores(metric, tables, draw)
    corpora = {str(trial.record.get("corpus")) for trial in trials.values()}
    return _Runs(values, scores, frozenset(corpora))


def _scores(metric, tables, draw):
    """Returns {seed: Score}; {} for several test sets, or one too small to resample."""
    sizes = {len(table) for table in tables.values()}
    # Resamples of one size serve one test set; seeds that were scored on two cannot be
    # paired.
    if metric.of_sums is None or len(sizes) != 1 or min(sizes) < 2:
        return {}
    return statistics.resampled_scores(metric, tables, draw(*sizes))


def _differences(metric, rows, base):
    """Returns {place of the row: (difference, p adjusted over all of them)}."""
    tests = {i: _test(metric.key, row, base) for i, row in rows.items()}
    tests = {i: test for i, test in tests.items() if test}
    # The level that Holm's correction leaves to the smallest p-value of all rows.
    differences = {
        i: test(level=statistics.LEVEL / len(tests)) for i, test in tests.items()
    }
    adjusted = statistics.holm([difference.p for difference in differences.values()])
    pairs = zip(differences.values(), adjusted, strict=True)
    return dict(zip(differences, pairs, strict=True))


def _test(key, row, base):
    """Returns the test of a row, its level to be filled in; None where there is none."""
    shared = row.values[key].keys() & base.values[key].keys()
    if len(shared) < 2:
        return None
    scores = row.scores[key], base.scores[key]
    all_scores = itertools.chain(*[side.values() for side in scores])
    sizes = {score.sentences for score in all_scores}
    # Sentences can be paired only if both sides were scored on the same ones.
    is_one_test_set = len(row.corpora | base.corpora) == 1 and len(sizes) == 1
    if is_one_test_set and all(shared <= side.keys() for side in scores):
        return functools.partial(statistics.paired_scores, *scores)
    return functools.partial(statistics.paired, row.values[key], base.values[key])
