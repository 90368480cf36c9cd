"""Describes the runs of each row: what they change, what each seed gave, where its files are."""

import os
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.errors import one_line
from experiments.evaluation.metrics import METRICS, Metric
from experiments.report.comparison import Row
from experiments.report.costs import COSTS
from experiments.report.results import Results, look_up_setting
from experiments.report.statistics import summarise
from experiments.report.table import MISSING, Grid, measured
from experiments.report.translations import read_texts, some

FILES = ("metrics.jsonl", "translations.txt")
"""The files of a run that its row links to, where they are."""


class Link(NamedTuple):
    """Holds a file's name, and its address as seen from the report."""

    text: str
    href: str


class RunsOfRow(NamedTuple):
    """Holds what the page says of one row's runs."""

    label: str
    changes: tuple[tuple[str, str, str], ...]
    """(setting, the base's value, the row's)."""
    seeds: Grid
    links: tuple[tuple[Link, ...], ...]
    """For each seed its directory, then its files."""
    translations: tuple[tuple[str, str, str], ...]
    """(source, reference, translation) of a few sentences by the first seed."""


def runs_of_rows(
    results: Results,
    labels: Sequence[str],
    rows: Sequence[Row],
    metrics: Sequence[Metric] = METRICS,
) -> list[RunsOfRow]:
    """Describes the runs of all rows, in the table's order."""
    described = []
    for label, row in zip(labels, rows, strict=True):
        trials = row.group.trials
        texts = next(filter(None, map(read_texts, row.group.finished)), None)
        described.append(
            RunsOfRow(
                label=label,
                changes=tuple(_changes(results, row)),
                seeds=_seeds(label, trials, metrics),
                links=tuple(_links(results.workdir, trial) for trial in trials),
                translations=tuple(some(texts)) if texts else (),
            )
        )
    return described


def _changes(results, row):
    for key, value in row.group.point.items():
        base = one_line(str(look_up_setting(results.base, key)))
        yield one_line(key), base, one_line(str(value))


def _seeds(label, trials, metrics):
    """Returns a line for each trial, with the columns that any of them has."""
    columns = {
        "seed": [str(trial.seed) for trial in trials],
        "status": [trial.status for trial in trials],
    }
    for metric in metrics:
        text = lambda value, metric=metric: measured(summarise([value]), metric)
        columns[metric.heading] = _numbers(trials, metric.key, text)
    for cost in COSTS:
        text = lambda value, cost=cost: cost.text(summarise([value]))
        columns[cost.heading] = _numbers(trials, cost.key, text)
    columns = {
        heading: cells
        for heading, cells in columns.items()
        if any(cell != MISSING for cell in cells)
    }
    return Grid(label, tuple(columns), tuple(zip(*columns.values(), strict=True)))


def _numbers(trials, key, text):
    cells = []
    for trial in trials:
        value = trial.result.get(key) if trial.status == "finished" else None
        cells.append(MISSING if value is None else text(value))
    return cells


def _links(workdir, trial):
    """Returns links that work where the report stands in its workdir."""
    # A report of several workdirs stands outside of most of them.
    directory = Path(os.path.relpath(trial.directory, workdir)).as_posix()
    # A directory may be called anything, "javascript:" too: ./ makes it a path.
    address = f"./{urllib.parse.quote(directory)}"
    names = [name for name in FILES if (trial.directory / name).is_file()]
    files = [Link(name, f"{address}/{name}") for name in names]
    return (Link(one_line(directory), f"{address}/"), *files)
