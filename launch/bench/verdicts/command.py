"""Says by simulation how often a report's verdicts are false, and what they find.

Cells are judged a few hundred tables at a time, in a process for each core. What results.json
holds of the same code is not simulated again, so a call that was stopped goes on.
"""

import concurrent.futures
import dataclasses
import hashlib
import itertools
import json
import multiprocessing
import os
from collections.abc import Mapping
from pathlib import Path

from absl import flags

from experiments.stats import (
    contrasts,
    least_squares,
    resampling,
    spreads,
    variance_stabilising,
)
from experiments.system import machine
from launch.bench.harness import record
from launch.bench.harness.benchmark import Benchmark, Outcome, Request
from launch.bench.harness.table import Table, show
from launch.bench.verdicts import simulation
from launch.bench.verdicts.simulation import Cell, Counts, simulate

PART = 100
"""Tables without differences that a process judges at a time."""

_SIZES = list(itertools.product((8, 20), (2, 3, 5)))

CELLS = [
    *(Cell(*size, spread, metrics=1) for spread in (0.0, 0.4, 0.8) for size in _SIZES),
    *(Cell(*size, spread) for spread in (0.0, 0.4, 0.8) for size in _SIZES),
    *(
        Cell(*size, kind=kind)
        for kind in ("bound", "blocks", "sentences", "tails", "odd", "copies")
        for size in _SIZES
    ),
]

TINY = [Cell(8, 2, metrics=1), Cell(8, 3, kind="bound")]

NOTES = {
    "false": "tables without any difference that get a verdict of better or worse, for any row "
    "and metric (with rows near a bound, which do differ, for any of the others)",
    "all hold": "tables of which every interval holds the truth, on the scale that is printed",
    "each holds": "intervals that hold the truth",
    "width": "median width of the intervals, in units of that of joint intervals of somebody "
    "who knows the true spreads",
    "power": "rows that differ by 4 standard deviations and get the verdict, in one metric",
    "in any": "the same, in any metric of the column",
    "claims": "undecided rows that show the difference which would have shown, as the report "
    "says, with probability 80 %, when the table is run again with it",
}


def define_flags() -> None:
    """Defines --tables."""
    flags.DEFINE_integer(
        "tables",
        4000,
        "Tables without differences a cell, and a quarter as many with",
        lower_bound=1,
    )


def measure(request: Request) -> Outcome:
    """Simulates the cells; shows and writes the table, a cell at a time."""
    tables = 20 if request.cases == TINY else request.flags.tables
    counts = _of_an_earlier_call(request.directory, tables)
    # Each process has one thread: the tables are small.
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(machine.threads(), context) as pool:
        for cell in request.cases:
            if cell in counts:
                continue
            with request.console.status(cell.name):
                parts = [
                    range(tables)[start : start + PART]
                    for start in range(0, tables, PART)
                ]
                cells = itertools.repeat(cell)
                sizes = [len(part) for part in parts]
                results = pool.map(simulate, cells, sizes, range(len(parts)))
                counts[cell] = sum(results, Counts())
            # A run that is interrupted leaves the cells that it has done.
            _write(request, counts)
    show(table(counts), request.console)
    return Outcome(_write(request, counts))


def _of_an_earlier_call(directory, tables):
    """Returns {cell: counts} of so many tables each that the same code has judged."""
    path = directory / "results.json"
    record = json.loads(path.read_text()) if path.exists() else {}
    if record.get("code") != _code():
        return {}
    names = [field.name for field in dataclasses.fields(Cell)]
    counts = {}
    for values in record["cells"]:
        cell = Cell(**{name: values.pop(name) for name in names})
        values["widths"] = tuple(values["widths"])
        if values["nulls"] == tables:
            counts[cell] = Counts(**values)
    return counts


def _in_order(counts):
    """Returns (cell, counts) in the order of CELLS, whichever call has judged them."""
    return [(cell, counts[cell]) for cell in CELLS if cell in counts]


def _code():
    """Returns a hash of the sources that decide the counts."""
    modules = (resampling, contrasts, least_squares, variance_stabilising, simulation)
    modules += (spreads,)
    sources = [Path(module.__file__).read_bytes() for module in modules]
    return hashlib.sha256(b"".join(sources)).hexdigest()[:16]


def _write(request, counts):
    return record.write(
        request.directory,
        "verdicts",
        title="Verdicts of simulated tables",
        tables=[table(counts)],
        results={
            "code": _code(),
            "cells": [
                {**dataclasses.asdict(cell), **dataclasses.asdict(count)}
                for cell, count in _in_order(counts)
            ],
        },
    )


def table(counts: Mapping[Cell, Counts]) -> Table:
    """Returns the table, a row a cell."""
    filled = Table("verdicts", ())
    filled.headings = ("tables", *(filled.noted(*pair) for pair in NOTES.items()))
    for cell, count in _in_order(counts):
        tables = count.nulls + count.tables
        shares = (
            (count.false, count.nulls),
            (count.covered, tables),
            (count.intervals_covered, count.intervals),
            (count.shown, count.real),
            (count.shown_in_any, count.real),
            (count.claims_true, count.claims),
        )
        cells = [_percent(*share) for share in shares]
        cells.insert(3, f"{count.median_width():.2f}")
        filled.rows.append((_description(cell), *cells))
    return filled


def _description(cell):
    metrics = "1 metric" if cell.metrics == 1 else f"{cell.metrics} metrics"
    kind = "" if cell.kind == "plain" else f", {cell.kind}"
    return f"{cell.rows} rows, {cell.seeds} seeds, {metrics}, e^{cell.spread:g}{kind}"


def _percent(count, total):
    return f"{100 * count / total:.1f} %" if total else "–"


BENCHMARK = Benchmark(
    name="verdicts",
    cases=CELLS,
    tiny=TINY,
    run=measure,
    table=table,
    cases_flag=True,
    define_flags=define_flags,
)
