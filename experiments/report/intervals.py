"""Places the intervals of a metric's differences on one scale, a line for each row."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from experiments.evaluation.metrics import Metric
from experiments.report.comparison import Row

MOST_MEDIANS = 8
"""A row whose interval reaches farther than so many medians does not set the scale."""


class Bar(NamedTuple):
    """Holds a difference as it stands in a table's line, on a scale from 0 to 100."""

    low: float
    mean: float
    high: float
    is_cut_low: bool
    is_cut_high: bool
    verdict: str


def bars(rows: Sequence[Row], metric: Metric) -> list[Bar | None]:
    """Returns the intervals of a metric to one scale with base in the middle, at 50.

    Rows far outside of the others are cut at its ends.
    """
    values = {}
    for i, row in enumerate(rows):
        difference = row.differences.get(metric.key)
        if difference is not None:
            ends = (difference.low, difference.mean, difference.high)
            if all(map(math.isfinite, ends)):
                values[i] = ends
    if not values:
        return [None] * len(rows)
    reaches = sorted(max(map(abs, ends)) for ends in values.values())
    median = reaches[len(reaches) // 2]
    edge = max(reach for reach in reaches if reach <= MOST_MEDIANS * median) or 1.0
    scaled = []
    for i, row in enumerate(rows):
        if i not in values:
            scaled.append(None)
            continue
        places = [50 + 46 * value / edge for value in values[i]]
        cut = [round(min(max(place, 2), 98), 1) for place in places]
        verdict = row.verdicts[metric.key].words
        scaled.append(Bar(*cut, places[0] < 2, places[2] > 98, verdict))
    return scaled
