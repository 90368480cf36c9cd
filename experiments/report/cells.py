"""Formats numbers, verdicts and intervals for the cells of tables."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from experiments.evaluation.metrics import Metric
from experiments.report.rows import Row
from experiments.stats.differences import Difference, seeds_text
from experiments.stats.summary import Summary

MISSING = "–"

MOST_MEDIANS = 8
"""A row whose interval reaches farther than this many medians does not set the scale."""


@dataclasses.dataclass(frozen=True)
class Grid:
    """Holds cells under headings; the first columns name the rows."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    named_by: int = 1
    """How many columns name the rows."""

    @classmethod
    def of(
        cls, title: str, columns: Mapping[str, Sequence[str]], named_by: int = 1
    ) -> "Grid":
        """Returns a grid of columns {heading: cells}."""
        cells = tuple(zip(*columns.values(), strict=True))
        return cls(title, tuple(columns), cells, named_by)

    def column(self, heading: str) -> list[str]:
        place = self.headings.index(heading)
        return [row[place] for row in self.rows]


def number(value: float, decimals: int, sign: str = "-") -> str:
    """Formats `value` for a cell; with many digits, as of a diverged trial, as 1.2e+17."""
    if math.isfinite(value) and abs(value) >= 1e5:
        return f"{value:{sign}.3g}"
    return f"{value:{sign}.{decimals}f}"


def measured(summary: Summary | None, metric: Metric) -> str:
    """Formats mean ± spread; MISSING where there is no summary."""
    if summary is None:
        return MISSING
    values = [summary.mean, summary.spread]
    # One seed has no spread.
    values = [metric.scale * value for value in values if value is not None]
    return " ± ".join(number(value, metric.decimals) for value in values)


def mean_and_interval(difference: Difference, metric: Metric) -> tuple[str, str]:
    """Formats a difference and its 95 % interval: ("+0.31", "[+0.10, +0.52]")."""
    mean, low, high = (
        number(metric.scale * value, metric.difference_decimals, "+")
        for value in (difference.mean, difference.low, difference.high)
    )
    return mean, f"[{low}, {high}]"


def p_value(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def listed(names: Sequence[str]) -> str:
    """Returns "a, b and c"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def verdict_text(row: Row, metrics: Sequence[Metric]) -> str:
    """Returns a row's verdicts in a few words.

    "worse", or where metrics disagree "worse (BLEU); undecided (perplexity): about 2 more
    seeds".
    """
    # By verdict, so that metrics which agree are named in one.
    names: dict[str, list[str]] = {}
    for metric in metrics:
        if verdict := row.verdicts.get(metric.key):
            names.setdefault(verdict.words, []).append(metric.name)
    parts = []
    for words, agreeing in names.items():
        part = words if len(names) == 1 else f"{words} ({', '.join(agreeing)})"
        if words == "undecided" and (needed := _needed(row, metrics)):
            part += f": {needed}"
        parts.append(part)
    return "; ".join(parts)


def _needed(row, metrics):
    """Returns what decides one of a row's undecided metrics, the nearest first."""
    verdicts = {m: row.verdicts[m.key] for m in metrics if m.key in row.verdicts}
    open_ones = {m: v for m, v in verdicts.items() if not v.is_decided}
    by_seeds = {m: v.more_seeds for m, v in open_ones.items() if v.more_seeds}
    if by_seeds:
        # The fewest, because the first metric that decides is news.
        nearest = min(by_seeds, key=lambda metric: by_seeds[metric])
        of_which = f" for {nearest.name}" if len(open_ones) > 1 else ""
        return f"{seeds_text(by_seeds[nearest])}{of_which}"
    return next((v.needs for v in open_ones.values() if v.needs), "")


class Bar(NamedTuple):
    """Holds an interval as it is drawn in a table's line, on a scale from 0 to 100."""

    low: float
    mean: float
    high: float
    is_cut_low: bool
    is_cut_high: bool
    verdict: str


def interval_bars(rows: Sequence[Row], metric: Metric) -> list[Bar | None]:
    """Returns the intervals of a metric on one scale with base in the middle, at 50.

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
    bars: list[Bar | None] = [None] * len(rows)
    for i, ends in values.items():
        places = [50 + 46 * value / edge for value in ends]
        cut = [round(min(max(place, 2), 98), 1) for place in places]
        verdict = rows[i].verdicts[metric.key].words
        bars[i] = Bar(*cut, places[0] < 2, places[2] > 98, verdict)
    return bars
