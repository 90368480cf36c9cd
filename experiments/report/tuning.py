"""Shows what was chosen for each row of a sweep with --tune, beside the rows as they were.

The table of such a sweep compares rows at the values that were chosen for them. Here the same
rows stand at their own values, each compared with the base at its own.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from experiments.evaluation.metrics import PERPLEXITY, Metric
from experiments.report.comparison import Row
from experiments.report.results import Results, TrialResult, look_up_setting
from experiments.report.statistics import Group, groups
from experiments.report.table import (
    MISSING,
    VERDICTS,
    Grid,
    Table,
    group_labels,
    measured,
    number,
    row_labels,
    short_names,
    varied,
    verdict,
)

CHOSEN = "chosen"
TRIED = "validation perplexity of each"
UNTUNED = "untuned"
UNTUNED_VERDICTS = f"{VERDICTS}, {UNTUNED}"


def compared_groups(results: Results) -> list[Group]:
    """Groups the trials that are compared by their rows, whatever was chosen for these."""
    compared = (t for t in results.trials if t.role in ("", "compared"))
    return groups(compared, lambda trial: _row_of(results, trial))


def untuned_groups(results: Results) -> list[Group]:
    """Groups the trials of all rows at their own values.

    Those of a row that is compared at its own are the same trials.
    """
    untuned = (t for t in results.trials if t.role != "tuning" and _is_own(results, t))
    return groups(untuned, lambda trial: _row_of(results, trial))


def row_names(results: Results) -> dict[str, str]:
    """Returns {directory of a trial: the name of its row in the table}, for all trials."""
    found = groups(results.trials, lambda trial: _row_of(results, trial))
    labels = group_labels(results, found)
    names = {}
    for label, group in zip(labels, found, strict=True):
        names |= {str(trial.directory): label for trial in group.trials}
    return names


def with_tuning(
    table: Table,
    results: Results,
    rows: Sequence[Row],
    untuned: Sequence[Row],
    metrics: Sequence[Metric],
) -> Table:
    """Returns the table of `rows` with what was chosen for them, and `untuned` beside it.

    Rows whose values are not chosen yet stand there alone.
    """
    chosen = {_identity(row.group): row.group for row in rows}
    texts = {}
    for row in untuned:
        group = row.group
        texts[_identity(group)] = _chosen(results, chosen.get(_identity(group)))
    cells = [texts[_identity(row.group)] for row in rows]
    return dataclasses.replace(
        table,
        results=_with_column(table.results, CHOSEN, cells),
        tuning=_tuning_grid(results, untuned, [*texts.values()], metrics),
        notes=(*table.notes, _note(results)),
    )


def _tuning_grid(results, untuned, chosen, metrics):
    trials = (trial for trial in results.trials if trial.role == "tuning")
    tried = {}
    for group in groups(trials, lambda trial: _row_of(results, trial)):
        tried[_identity(group)] = group
    columns = {
        "": row_labels(results, untuned),
        CHOSEN: chosen,
        TRIED: [_tried(results, tried.get(_identity(row.group))) for row in untuned],
    }
    for metric in metrics:
        columns[untuned_heading(metric)] = [
            measured(row.group.summary(metric.key), metric) for row in untuned
        ]
    verdicts = [verdict(row, metrics) for row in untuned]
    if any(verdicts):
        columns[UNTUNED_VERDICTS] = verdicts
    cells = tuple(zip(*columns.values(), strict=True))
    return Grid("Before tuning", tuple(columns), cells)


def _with_column(grid, heading, cells):
    """Returns a grid with one column more, after that of the rows' names."""
    first, *others = grid.headings
    rows = []
    for row, cell in zip(grid.rows, cells, strict=True):
        rows.append((row[0], cell, *row[1:]))
    return Grid(grid.title, (first, heading, *others), tuple(rows))


def untuned_heading(metric: Metric) -> str:
    """Returns the heading of a metric's column of rows at their own values."""
    return f"{UNTUNED} {metric.heading}"


def _note(results):
    """Says how values were chosen."""
    seeds = {trial.seed for trial in results.trials if trial.role == "tuning"}
    listed = ", ".join(str(seed) for seed in sorted(seeds - {None}))
    names = ", ".join(_names(results).values())
    return (
        f"{CHOSEN}: the {names} of the lowest validation perplexity on seed"
        f"{'s' if len(seeds) > 1 else ''} {listed}, which no comparison has, among those "
        f"tried and the row’s own; {UNTUNED}: every row, base too, at its own"
    )


def _names(results):
    return short_names(results.tuned, varied(results))


def _row_of(results, trial):
    """Returns what a trial's row changes, the values that were chosen left out."""
    changes = results.changes(trial)
    return {key: value for key, value in changes.items() if key not in results.tuned}


def _is_own(results, trial):
    """Whether a trial has its row's own values: a sweep does not set what it tunes."""
    return not trial.point.keys() & set(results.tuned)


def _identity(group):
    return frozenset(group.point.items())


def _chosen(results, group):
    """Says which values a row is compared at; MISSING before they are chosen."""
    if group is None:
        return MISSING
    first = group.trials[0]
    names = _names(results)
    values = _values(results, first)
    listed = ", ".join(f"{names[key]}={_text(value)}" for key, value in values.items())
    return f"{listed} (its own)" if _is_own(results, first) else listed


def _tried(results, group):
    """Lists the values that a row was tried at, each with its perplexity."""
    if group is None:
        return MISSING
    by_values: dict[tuple, list[TrialResult]] = {}
    for trial in group.trials:
        values = tuple(_values(results, trial).values())
        by_values.setdefault(values, []).append(trial)
    parts = []
    for values in sorted(by_values, key=_order):
        text = "/".join(map(_text, values))
        parts.append(f"{text}: {_perplexity(by_values[values])}")
    return ", ".join(parts)


def _values(results, trial) -> dict[str, Any]:
    """Returns the values of a trial's tuned settings."""
    values = {}
    for key in results.tuned:
        own = look_up_setting(results.base, key)
        # A trial that has not begun has no config yet.
        values[key] = trial.point.get(key, look_up_setting(trial.config, key, own))
    return values


def _perplexity(trials):
    """Returns the geometric mean, by which values are chosen, or why there is none."""
    for status in ("diverged", "failed", "unfinished"):
        if any(trial.status == status for trial in trials):
            return status
    found = [trial.result.get(PERPLEXITY.key) for trial in trials]
    if not all(value is not None and 0 < value < math.inf for value in found):
        return MISSING
    mean = math.exp(math.fsum(map(math.log, found)) / len(found))
    return number(mean, PERPLEXITY.decimals)


def _text(value):
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


def _order(values):
    # Numbers by size, and what a damaged file has in their place by its text.
    return [
        (0, x, "") if isinstance(x, (int, float)) else (1, 0, str(x)) for x in values
    ]
