"""Chooses the rows that a figure shows where there is no room for all."""

import math
from collections.abc import Sequence

import numpy as np

from experiments.evaluation.metrics import METRICS, Metric
from experiments.report.rows import Row, base_of
from experiments.stats.differences import Difference


def notable(
    rows: Sequence[Row], most: int, metrics: Sequence[Metric] = METRICS
) -> list[int]:
    """Returns the places of at most `most` rows, in the table's order.

    The base is among them, then the rows whose difference is decided or largest for its
    interval; without any differences those farthest from the median of the first metric.
    """
    if len(rows) <= most:
        return list(range(len(rows)))
    weights = list(map(_weight, rows))
    if not any(weights):
        weights = _distances(rows, metrics)
    base = base_of(rows)
    if base is not None:
        weights[base] = math.inf
    # Rows of equal weight in the table's order.
    ranked = sorted(range(len(rows)), key=lambda i: -weights[i])
    return sorted(ranked[:most])


def by_size(rows: Sequence[Row]) -> list[int]:
    """Returns the places of all rows that differ from base, the clearest difference first."""
    weights = list(map(_weight, rows))
    places = [i for i, weight in enumerate(weights) if weight > 0]
    return sorted(places, key=lambda i: -weights[i])


def _weight(row):
    return max(map(_clearness, row.differences.values()), default=0.0)


def _clearness(difference: Difference) -> float:
    """Returns a difference in halves of its interval: above 1 where 0 is left out."""
    if not math.isfinite(difference.half):
        return 0.0
    return abs(difference.mean) / difference.half if difference.half > 0 else 1e9


def _distances(rows, metrics):
    """Returns how far each row is from the median in the first metric that has values."""
    for metric in metrics:
        means = [row.summary(metric.key) for row in rows]
        values = np.array([mean.mean if mean else np.nan for mean in means])
        if np.isfinite(values).any():
            apart = np.abs(values - np.nanmedian(values[np.isfinite(values)]))
            return list(np.where(np.isfinite(apart), apart, 0.0))
    return [0.0] * len(rows)
