"""Shows what was chosen for each row of a sweep with --tune, beside the rows as they were.

The table of such a sweep compares rows at the values that were chosen for them. Here the same
rows stand at their own values, each compared with the base at its own.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from experiments.errors import few
from experiments.evaluation.metrics import PERPLEXITY, Metric
from experiments.evaluation.perplexity import of_scores
from experiments.report.cells import MISSING, Grid, measured, number, verdict_text
from experiments.report.rows import Row, rows_of, short_names, varied
from experiments.report.table import VERDICTS, Table
from experiments.report.trial_files import Results, look_up_setting
from experiments.stats.summary import summarise

CHOSEN = "chosen"
TRIED = "validation perplexity of each"
UNTUNED = "untuned"
UNTUNED_VERDICTS = f"{VERDICTS}, {UNTUNED}"


def compared_rows(results: Results) -> list[Row]:
    """Groups the trials that are compared by their rows, at whatever values."""
    return _rows(results, lambda trial: trial.role in ("", "compared"))


def untuned_rows(results: Results) -> list[Row]:
    """Groups the trials of all rows at their own values.

    Those of a row that is compared at its own are the same trials.
    """
    is_untuned = lambda trial: trial.role != "tuning" and _is_own(results, trial)
    return _rows(results, is_untuned)


def _rows(results, is_chosen) -> list[Row]:
    """Groups the trials that are chosen, without the values of tuned settings."""

    def point(trial):
        changes = results.changes(trial)
        return {k: value for k, value in changes.items() if k not in results.tuned}

    return rows_of(results, filter(is_chosen, results.trials), point)


def with_tuning(
    table: Table, results: Results, rows: Sequence[Row], untuned: Sequence[Row]
) -> Table:
    """Returns the table of `rows` with what was chosen for them, and `untuned` beside it.

    Rows whose values are not chosen yet stand there alone.
    """
    settings = short_names(results.tuned, varied(results))
    compared = {_identity(row): row for row in rows}
    chosen = {}
    for row in untuned:
        key = _identity(row)
        chosen[key] = _chosen(results, settings, compared.get(key))
    grid = table.results
    names = slice(grid.named_by)
    rest = slice(grid.named_by, None)
    cells = []
    for row, line in zip(rows, grid.rows, strict=True):
        cells.append((*line[names], chosen[_identity(row)], *line[rest]))
    headings = (*grid.headings[names], CHOSEN, *grid.headings[rest])
    return dataclasses.replace(
        table,
        results=dataclasses.replace(grid, headings=headings, rows=tuple(cells)),
        tuning=_tuning_grid(results, untuned, [*chosen.values()]),
        notes=(
            *table.notes,
            _note(results, settings),
            *_chosen_for_the_worse(compared, untuned),
            *_chosen_at_an_edge(results, settings, compared),
        ),
    )


def _tuning_grid(results, untuned, chosen):
    tried = _tuning_rows(results)
    columns = {
        "": [row.name for row in untuned],
        CHOSEN: chosen,
        TRIED: [_tried(results, tried.get(_identity(row))) for row in untuned],
    }
    for metric in results.metrics:
        summaries = [row.summary(metric.key) for row in untuned]
        columns[untuned_heading(metric)] = [measured(s, metric) for s in summaries]
    verdicts = [verdict_text(row, results.metrics) for row in untuned]
    if any(verdicts):
        columns[UNTUNED_VERDICTS] = verdicts
    return Grid.of("Before tuning", columns)


def _tuning_rows(results) -> dict[frozenset, Row]:
    """Returns the tuning trials of each row, by its identity."""
    rows = _rows(results, lambda trial: trial.role == "tuning")
    return {_identity(row): row for row in rows}


def untuned_heading(metric: Metric) -> str:
    """Returns the heading of a metric's column of rows at their own values."""
    return f"{UNTUNED} {metric.heading}"


def _note(results, names):
    """Returns a note on how values were chosen."""
    seeds = {trial.seed for trial in results.trials if trial.role == "tuning"}
    listed = ", ".join(str(seed) for seed in sorted(seeds - {None}))
    return (
        f"{CHOSEN}: the {', '.join(names.values())} of the lowest validation perplexity on seed"
        f"{'s' if len(seeds) > 1 else ''} {listed}, which no comparison has, among those "
        f"tried and the row’s own; {UNTUNED}: every row, base too, at its own"
    )


def _chosen_for_the_worse(compared, untuned) -> list[str]:
    """Names the rows that do better at their own values, on every seed that has ended at both."""
    named = []
    for row in untuned:
        chosen = compared.get(_identity(row))
        if chosen is None or not _is_worse_on_every_seed(chosen, row):
            continue
        here, own = (_mean_perplexity(x) for x in (chosen, row))
        named.append(f"{row.name} ({here}, at its own {own})")
    if not named:
        return []
    return [
        f"{CHOSEN} for the worse: on every compared seed perplexity is higher than at the "
        f"row’s own values for {', '.join(named)}; choose on more seeds, --tune_seeds=3, "
        "before you believe a verdict of these"
    ]


def _chosen_at_an_edge(results, names, compared) -> list[str]:
    """Names the rows at the lowest or the highest of the numbers that they were tried at."""
    tried = _tuning_rows(results)
    found: dict[str, list[str]] = {}
    for identity, row in compared.items():
        of_row = tried[identity].trials if identity in tried else ()
        by_setting = zip(*(_values(results, trial) for trial in of_row), strict=True)
        chosen = _values(results, row.trials[0])
        for name, own, values in zip(names.values(), chosen, by_setting, strict=False):
            if not all(map(_is_number, values)):
                continue
            for edge, value in (("lowest", min(values)), ("highest", max(values))):
                if own == value:
                    found.setdefault(f"the {edge} {name}", []).append(row.name)
    if not found:
        return []
    listed = "; ".join(f"{edge} for {few(rows)}" for edge, rows in found.items())
    return [
        f"{CHOSEN} at the edge of what was tried, beyond which a row may do better: {listed}"
    ]


def _is_number(value):
    return isinstance(value, (int, float))


def _mean_perplexity(row):
    values = [value for value in _by_seed(row).values() if value < math.inf]
    return measured(summarise(values), PERPLEXITY) if values else "diverged"


def _is_worse_on_every_seed(chosen, own):
    """Compares perplexities by seed; a run that diverged is worse than any other."""
    of_chosen, of_own = _by_seed(chosen), _by_seed(own)
    seeds = of_chosen.keys() & of_own.keys()
    return bool(seeds) and all(of_chosen[seed] > of_own[seed] for seed in seeds)


def _by_seed(row):
    """Returns {seed: perplexity} of the runs that have ended."""
    found = {t.seed: math.inf for t in row.trials if t.status == "diverged"}
    return found | {trial.seed: of_scores(trial.result) for trial in row.finished}


def _is_own(results, trial):
    """Returns whether a trial has its row's own values: a sweep does not set what it tunes."""
    return not trial.point.keys() & set(results.tuned)


def _identity(row):
    return frozenset(row.point.items())


def _chosen(results, names, row):
    """Returns the values that a row is compared at; MISSING before they are chosen."""
    if row is None:
        return MISSING
    first = row.trials[0]
    values = zip(names.values(), _values(results, first), strict=True)
    listed = ", ".join(f"{name}={_text(value)}" for name, value in values)
    return f"{listed} (its own)" if _is_own(results, first) else listed


def _tried(results, row):
    """Lists the values that a row was tried at, each with its perplexity."""
    if row is None:
        return MISSING
    by_values = {}
    for trial in row.trials:
        by_values.setdefault(_values(results, trial), []).append(trial)
    parts = []
    for values in sorted(by_values, key=_order):
        text = "/".join(map(_text, values))
        parts.append(f"{text}: {_perplexity(by_values[values])}")
    return ", ".join(parts)


def _values(results, trial) -> tuple[Any, ...]:
    """Returns the values of a trial's tuned settings."""
    values = []
    for key in results.tuned:
        own = look_up_setting(results.base, key)
        # A trial that has not begun has no config yet.
        values.append(trial.point.get(key, look_up_setting(trial.config, key, own)))
    return tuple(values)


def _perplexity(trials):
    """Returns the geometric mean, by which values are chosen, or why there is none."""
    for status in ("diverged", "failed", "unfinished"):
        if any(trial.status == status for trial in trials):
            return status
    found = [of_scores(trial.result) for trial in trials]
    if not all(0 < value < math.inf for value in found):
        return MISSING
    mean = math.exp(math.fsum(map(math.log, found)) / len(found))
    return number(mean, PERPLEXITY.decimals)


def _text(value):
    return f"{value:g}" if _is_number(value) else str(value)


def _order(values):
    # Numbers by size, and what a damaged file has in their place by its text.
    return [(0, x, "") if _is_number(x) else (1, 0, str(x)) for x in values]
