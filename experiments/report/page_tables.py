"""Lays out the tables of results of a page: the columns of its rows, and a product's pivots."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from experiments.evaluation.metrics import Metric
from experiments.report.cells import MISSING, Grid, measured
from experiments.report.costs import COSTS
from experiments.report.factors import Pivot, settings_of_rows
from experiments.report.rows import Row
from experiments.report.table import VERDICTS

MOST_SETTINGS = 12
"""Settings that vary, of a table that has columns for them."""

MARKS = {"better": "▲", "worse": "▼", "equal": "="}
"""What stands behind a mean in a pivot table, for those who see no colours."""


class Column(NamedTuple):
    """Holds a column of the table of rows."""

    heading: str
    texts: Sequence[str]
    best: frozenset[int] = frozenset()
    """The places of the rows with the best mean."""
    is_name: bool = False
    """Whether it says which row it is."""
    is_hidden: bool = False
    """Whether a reader has to ask for it."""


def columns_of(
    grid: Grid, rows: Sequence[Row], metrics: Sequence[Metric]
) -> list[Column]:
    """Returns the columns of the results, and hidden ones: settings that vary, and costs."""
    best = _best(rows, metrics)
    own = []
    for i, heading in enumerate(grid.headings):
        texts = grid.column(heading)
        is_name = i < grid.named_by
        own.append(Column(heading, texts, best.get(heading, frozenset()), is_name))
    settings = settings_of_rows(rows)
    # Of a product they name the rows.
    if len(settings) > MOST_SETTINGS or grid.named_by > 1:
        settings = {}
    more = [Column(name, texts, is_hidden=True) for name, texts in settings.items()]
    for cost in COSTS:
        known = any(row.summary(cost.key) for row in rows)
        if known and cost.heading not in grid.headings:
            texts = [cost.text_of_row(row) or MISSING for row in rows]
            more.append(Column(cost.heading, texts, is_hidden=True))
    # Verdicts stay last.
    place = len(own) - (own[-1].heading == VERDICTS)
    return [*own[:place], *more, *own[place:]]


def _best(rows, metrics) -> dict[str, frozenset[int]]:
    """Returns {heading: rows with the best mean}, where there is more than one row."""
    best = {}
    for metric in metrics:
        means = {}
        for i, row in enumerate(rows):
            summary = row.summary(metric.key)
            if summary is not None and math.isfinite(summary.mean):
                means[i] = summary.mean
        if len(means) > 1:
            choose = max if metric.higher_is_better else min
            top = choose(means.values())
            of_top = frozenset(i for i, mean in means.items() if mean == top)
            best[metric.heading] = of_top
    return best


class PivotCell(NamedTuple):
    """Holds a row's place, mean and kind of verdict in one metric; "base" of a base."""

    row: int
    text: str
    kind: str


def pivot_cells(
    pivot: Pivot, rows: Sequence[Row], metric: Metric
) -> list[list[PivotCell | None]]:
    """Returns the cells of the lines of a pivot table; None for a row there is not."""
    bases = {row.base for row in rows} - {None}

    def cell(i):
        if i is None:
            return None
        verdict = rows[i].verdicts.get(metric.key)
        kind = "base" if i in bases else verdict.kind if verdict else ""
        return PivotCell(i, measured(rows[i].summary(metric.key), metric), kind)

    return [[cell(i) for i in places] for _, places in pivot.lines]
