"""SQL over what trials left behind: DuckDB tables of all trials and of their metrics, from one workdir or many.

    trials   a row a trial: workdir, name, directory, label, seed, status, error; every setting as a column, "model.h";
             every number and text of result.json, "beside.ema.test.bleu"; and of record.json, "versions.jax"
    metrics  a row a line of metrics.jsonl: workdir, name, directory, label, seed, step, split, loss, ...

A name with a dot is quoted in SQL: select label, avg(bleu) from trials where "model.h" = 8 group by label.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import rich.text

from experiments.errors import UserError, one_line
from experiments.report.results import Results, Trial, flatten_settings, read_results

TRIAL = ("workdir", "name", "directory", "label", "seed", "status", "error")


LINE = ("workdir", "name", "directory", "label", "seed", "step", "split")


_LOCKED = {"enable_external_access": "false", "lock_configuration": "true"}
"""A query reads the two tables: no file, no network, no variable of the program that asks."""


class QueryError(UserError):
    """SQL that DuckDB refuses; the message is DuckDB's own, in one line."""


class Answer(NamedTuple):
    """What a query found."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]


def run_query(workdirs: Iterable[str | Path], sql: str) -> Answer:
    """What `sql` finds in the trials of `workdirs`.

    Raises LedgerError for a workdir without results, and QueryError.
    """
    with database([read_results(workdir) for workdir in workdirs]) as tables:
        try:
            found = tables.execute(sql)
            if found is None:
                raise QueryError(
                    f'{sql!r} asks nothing; try "select name, label, bleu from trials"'
                )
            return Answer(
                tuple(column[0] for column in found.description), found.fetchall()
            )
        except duckdb.Error as error:
            raise QueryError(one_line(str(error).partition("\n\nLINE ")[0])) from None


def database(books: Sequence[Results]) -> duckdb.DuckDBPyConnection:
    """A database in memory with the tables `trials` and `metrics` of `books`."""
    trials = [(book, trial) for book in books for trial in book.trials]
    tables = duckdb.connect(":memory:", config=_LOCKED)
    _fill(tables, "trials", TRIAL, [_trial(book, trial) for book, trial in trials])
    _fill(
        tables,
        "metrics",
        LINE,
        [
            dict(line) | _named(book, trial)
            for book, trial in trials
            for line in trial.metrics
        ],
    )
    return tables


def show_answer(answer: Answer, console: rich.console.Console | None = None) -> None:
    """Prints rows: drawn in a terminal, in plain columns elsewhere, where numbers keep all their digits."""
    console = console or rich.console.Console()
    drawn = console.is_terminal
    lines = [[_shown(value, drawn) for value in row] for row in answer.rows]
    numbers = [
        all(isinstance(row[i], (int, float, type(None))) for row in answer.rows)
        for i in range(len(answer.columns))
    ]
    console.print(
        _drawn(answer.columns, lines, numbers)
        if drawn
        else _plain(answer.columns, lines, numbers),
        soft_wrap=not drawn,
    )


def _named(book: Results, trial: Trial) -> dict[str, Any]:
    return {
        "workdir": str(book.workdir),
        "name": trial.name,
        "directory": str(trial.directory),
        "label": trial.label,
        "seed": trial.seed,
    }


def _trial(book: Results, trial: Trial) -> dict[str, Any]:
    """A row of `trials`; a trial that has not begun has the settings that the sweep gives it."""
    settings = flatten_settings(trial.config) or flatten_settings(book.base) | dict(
        trial.point
    )
    found = _named(book, trial) | {"status": trial.status, "error": trial.error}
    for more in (
        settings,
        flatten_settings(trial.result or {}),
        flatten_settings(trial.record),
    ):
        found |= {
            key: value
            for key, value in more.items()
            if key not in found and not key.startswith(("traceback", "point."))
        }
    return found


def _fill(
    tables, name: str, first: Sequence[str], rows: Sequence[Mapping[str, Any]]
) -> None:
    """A table of `rows` with the columns `first` and then every other, in the order in which each first appears."""
    columns = list(dict.fromkeys((*first, *(key for row in rows for key in row))))
    typed = [_column([row.get(column) for row in rows]) for column in columns]
    declared = ", ".join(
        f"{_quoted(name)} {kind}"
        for name, (kind, _) in zip(_names(columns), typed, strict=True)
    )
    tables.execute(f"create table {name} ({declared})")
    given = ", ".join(f"unnest(${i}::{kind}[])" for i, (kind, _) in enumerate(typed, 1))
    tables.execute(
        f"insert into {name} select {given}", [values for _, values in typed]
    )


def _names(columns: Sequence[str]) -> list[str]:
    """`columns` as names that SQL tells apart: it has no case, no empty name, and no NUL in one."""
    found = {}
    for column in columns:
        name = column.replace("\0", "") or "_"
        while name.lower() in found:
            name += "_"
        found[name.lower()] = name
    return list(found.values())


def _column(values: Sequence[Any]) -> tuple[str, list[Any]]:
    """(SQL type, values) for JSON values: the narrowest type that holds them all; lists and mixtures become text."""
    kinds = {type(value) for value in values} - {type(None)}
    if kinds == {bool}:
        return "BOOLEAN", list(values)
    if kinds == {int} and all(
        -(2**63) <= value < 2**63 for value in values if value is not None
    ):
        return "BIGINT", list(values)
    if kinds and kinds <= {int, float}:
        return "DOUBLE", [None if value is None else float(value) for value in values]
    return "VARCHAR", [
        value if value is None or isinstance(value, str) else json.dumps(value)
        for value in values
    ]


def _quoted(column):
    return '"' + column.replace('"', '""') + '"'


def _shown(value, drawn):
    if value is None:
        return "NULL"
    if isinstance(value, float) and drawn and math.isfinite(value):
        return f"{value:.6g}"
    return one_line(str(value))


def _drawn(columns, lines, numbers):
    drawn = rich.table.Table(
        box=rich.box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0)
    )
    for column, number in zip(columns, numbers, strict=True):
        drawn.add_column(
            rich.text.Text(column),
            justify="right" if number else "left",
            no_wrap=number,
        )
    for line in lines:
        drawn.add_row(
            *map(rich.text.Text, line)
        )  # Text: a name such as [red] is no markup
    return drawn


def _plain(columns, lines, numbers):
    widths = [max(map(len, column)) for column in zip(columns, *lines, strict=True)]
    return rich.text.Text(
        "\n".join(
            "  ".join(
                cell.rjust(width) if number else cell.ljust(width)
                for cell, width, number in zip(line, widths, numbers, strict=True)
            ).rstrip()
            for line in (columns, *lines)
        )
    )
