"""Answers SQL about trials: DuckDB tables of all trials and of their metrics.

    trials   a row a trial: workdir, row, name, directory, label, seed, status, error, and role,
             which is compared, untuned or tuning in a sweep with --tune; every setting as a column,
             "model.h"; every number and text of result.json, as bleu or
             "beside.ema.test.bleu"; and of record.json, "versions.jax"
    metrics  a row a line of metrics.jsonl: workdir, row, name, directory, label, seed, step, split,
             loss, ...

The tables come from one workdir or many. A name with a dot, and row, which is a word of SQL,
are quoted. "row" is the name of a trial's row in the report's table, so a mean over seeds is
grouped by it: select "row", count(bleu) as seeds, avg(bleu) from trials group by all.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import rich.console
import rich.text

from experiments.errors import UserError, one_line
from experiments.report.results import (
    Results,
    TrialResult,
    flatten_settings,
    read_results,
)
from experiments.report.terminal import drawn_table, plain_columns
from experiments.report.tuning import row_names
from experiments.system.console import stdout_console

TRIAL = (
    "workdir",
    "row",
    "name",
    "directory",
    "label",
    "role",
    "seed",
    "status",
    "error",
)

LINE = ("workdir", "row", "name", "directory", "label", "seed", "step", "split")

_LOCKED = {
    "enable_external_access": "false",
    "lock_configuration": "true",
    # DuckDB may use its folder for temporary files, by default ./.tmp, in spite of the first.
    "temp_directory": "",
}
"""A query reads the two tables: no file, no network, no variable of the program that asks."""


class QueryError(UserError):
    """Raised for SQL that DuckDB refuses; the message is DuckDB's own, in one line."""


class Answer(NamedTuple):
    """Holds the rows that a query selects."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]


def run_query(workdirs: Iterable[str | Path], sql: str) -> Answer:
    """Runs `sql` over the trials of `workdirs`.

    Raises ResultsError for a workdir without results, and QueryError.
    """
    with database([read_results(workdir) for workdir in workdirs]) as tables:
        try:
            answer = tables.execute(sql)
            if answer is None:
                example = "select name, label, bleu from trials"
                raise QueryError(f'{sql!r} asks nothing; try "{example}"')
            columns = tuple(column[0] for column in answer.description)
            return Answer(columns, answer.fetchall())
        except duckdb.Error as error:
            # The rest repeats the query with a mark below it, over several lines.
            message = str(error).partition("\n\nLINE ")[0]
            raise QueryError(one_line(message)) from None


def database(workdirs: Sequence[Results]) -> duckdb.DuckDBPyConnection:
    """Builds a database in memory with the tables `trials` and `metrics`."""
    trials = []
    lines = []
    for results in workdirs:
        rows = row_names(results)
        for trial in results.trials:
            name = _identity(results, trial, rows[str(trial.directory)])
            trials.append(_trial(results, trial, name))
            lines += [dict(line) | name for line in trial.metrics]
    tables = duckdb.connect(":memory:", config=_LOCKED)
    _fill(tables, "trials", TRIAL, trials)
    _fill(tables, "metrics", LINE, lines)
    return tables


def show_answer(answer: Answer, console: rich.console.Console | None = None) -> None:
    """Prints rows; outside of a terminal numbers keep all their digits."""
    console = console or stdout_console()
    is_drawn = console.is_terminal
    lines = []
    for row in answer.rows:
        lines.append([_cell_text(value, is_drawn) for value in row])
    is_number = []
    for i in range(len(answer.columns)):
        column = [row[i] for row in answer.rows]
        is_number.append(all(isinstance(v, (int, float, type(None))) for v in column))
    if is_drawn:
        console.print(_drawn(answer.columns, lines, is_number))
    else:
        left = [not number for number in is_number]
        text = plain_columns([answer.columns, *lines], left)
        console.print(text, soft_wrap=True)


def _identity(results: Results, trial: TrialResult, row: str) -> dict[str, Any]:
    return {
        "workdir": str(results.workdir),
        "row": row,
        "name": trial.name,
        "directory": str(trial.directory),
        "label": trial.label,
        "seed": trial.seed,
    }


def _trial(
    results: Results, trial: TrialResult, name: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns a row of `trials`.

    A trial that has not started has the settings that the sweep gives it.
    """
    # Settings, result and record share one row, so that a query needs no join.
    settings = flatten_settings(trial.config)
    if not settings:
        settings = flatten_settings(results.base) | dict(trial.point)
    result = flatten_settings(trial.result or {})
    record = flatten_settings(trial.record)
    row = dict(name)
    row |= {"role": trial.role, "status": trial.status, "error": trial.error}
    for values in (settings, result, record):
        for key, value in values.items():
            # Of two values of one name the first stands.
            if not key.startswith(("traceback", "point.")):
                row.setdefault(key, value)
    return row


def _fill(
    tables, name: str, first: Sequence[str], rows: Sequence[Mapping[str, Any]]
) -> None:
    """Makes a table of `rows` with the columns `first`, then every other.

    The others are in the order in which each first appears.
    """
    columns = dict.fromkeys(first)
    for row in rows:
        columns |= dict.fromkeys(row)
    typed = []
    for column in columns:
        typed.append(_column([row.get(column) for row in rows]))
    kinds = [kind for kind, _ in typed]
    names = map(_quoted, _names(columns))
    declared = ", ".join(
        f"{column} {kind}" for column, kind in zip(names, kinds, strict=True)
    )
    # Values are passed beside the query, so that no text of a file becomes a part of it.
    tables.execute(f"create table {name} ({declared})")
    # A list for each column inserts all rows by one statement.
    lists = ", ".join(f"unnest(${i}::{kind}[])" for i, kind in enumerate(kinds, 1))
    values = [values for _, values in typed]
    tables.execute(f"insert into {name} select {lists}", values)


def _names(columns: Iterable[str]) -> list[str]:
    """Returns `columns` as names that SQL tells apart.

    SQL ignores case, and has neither an empty name nor a NUL in one.
    """
    names = {}
    for column in columns:
        # Columns are keys of files that anyone may have written.
        name = column.replace("\0", "") or "_"
        while name.lower() in names:
            name += "_"
        names[name.lower()] = name
    return list(names.values())


def _column(values: Sequence[Any]) -> tuple[str, list[Any]]:
    """Returns (SQL type, values) of JSON values: the narrowest type that holds them all.

    Lists and mixtures become text.
    """
    present = [value for value in values if value is not None]
    kinds = {type(value) for value in present}
    if kinds == {bool}:
        return "BOOLEAN", list(values)
    if kinds == {int} and all(-(2**63) <= value < 2**63 for value in present):
        # Larger integers become floats below.
        return "BIGINT", list(values)
    # A whole number may stand as 90 in one file and as 96.0 in another.
    if kinds and kinds <= {int, float}:
        return "DOUBLE", [None if value is None else float(value) for value in values]
    is_text = lambda value: value is None or isinstance(value, str)
    texts = [value if is_text(value) else json.dumps(value) for value in values]
    return "VARCHAR", texts


def _quoted(column):
    return '"' + column.replace('"', '""') + '"'


def _cell_text(value, is_drawn):
    if value is None:
        return "NULL"
    if isinstance(value, float) and is_drawn and math.isfinite(value):
        return f"{value:.6g}"
    return one_line(str(value))


def _drawn(columns, lines, is_number):
    grid = drawn_table()
    for column, number in zip(columns, is_number, strict=True):
        heading = rich.text.Text(column)
        side = "right" if number else "left"
        grid.add_column(heading, justify=side, no_wrap=number)
    for line in lines:
        # As Text, a name such as [red] is no markup.
        grid.add_row(*map(rich.text.Text, line))
    return grid
