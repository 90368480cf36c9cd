"""Says by simulation how often entries at the bar beat a record, by what is true of them."""

import concurrent.futures
import dataclasses
import itertools
import multiprocessing

import numpy as np
from absl import flags

from experiments.bar import judge, rules
from experiments.system import machine
from launch.bench.harness import report
from launch.bench.harness.benchmark import Benchmark, Outcome, Request
from launch.bench.harness.report import Table

PART = 250
"""Entries that a process judges at a time."""
TASKS = rules.tasks_of("small")


@dataclasses.dataclass(frozen=True)
class Cell:
    """Holds what is true of an entry beside the record that it meets."""

    name: str
    better: tuple[float, ...] = ()
    """By how many standard deviations of a run its mean is better, a task each; then 0."""
    spread: float = 1.0
    """Its standard deviation of a run, that of the record's being 1."""
    learned: float | None = None
    """Share of the record's runs that learn a task, others being at chance; None: all are
    normal. Better by x standard deviations is a share that is so much larger."""


CELLS = [
    Cell("equal"),
    Cell("equal, half of the runs learn", learned=0.5),
    Cell("equal, 9 of 10 runs learn", learned=0.9),
    Cell("equal means, spread × 3", spread=3.0),
    Cell("equal means, spread / 3", spread=1 / 3),
    Cell("three tasks, 2 sd better", better=(2.0,) * 3),
    Cell("three tasks, 1 sd better", better=(1.0,) * 3),
    Cell("all tasks, 1 sd better", better=(1.0,) * len(TASKS)),
    Cell("all tasks, 0.5 sd better", better=(0.5,) * len(TASKS)),
    Cell("one task, 3 sd better", better=(3.0,)),
    Cell("one task, all runs learn in place of half", better=(1.0,), learned=0.5),
    Cell("three tasks, 2 sd worse", better=(-2.0,) * 3),
]


@dataclasses.dataclass
class Counts:
    """Counts entries, and what became of them."""

    entries: int = 0
    better: int = 0
    """Those that beat the record."""
    worse: int = 0
    stopped: int = 0
    """Those that were worse than record and base after the first look."""
    false_tasks: int = 0
    """Those said to be better or worse in a task in which they are equal."""
    covered: int = 0
    """Intervals that hold the true share of wins."""

    def __add__(self, other):
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Counts(*(a + b for a, b in pairs))


def simulate(cell: Cell, entries: int, seed: int) -> Counts:
    """Judges entries as `launch.bar` does, each with a record and a base of its own."""
    rng = np.random.default_rng(seed)
    counts = Counts(entries=entries)
    full = max(rules.LOOKS)
    truth = true_share(cell)
    for _ in range(entries):
        base = _runs(rng, Cell("", learned=cell.learned), rules.BASE_SEEDS)
        record = _runs(rng, Cell("", learned=cell.learned), full)
        ours = _runs(rng, cell, full)
        first = judge.first_seeds(ours, min(rules.LOOKS))
        if judge.is_hopeless(first, [base, record], TASKS):
            counts.stopped += 1
            ours = first
        found = judge.judge(ours, record, TASKS)
        counts.better += found.word == "better"
        counts.worse += found.word == "worse"
        equal = [task.name for task in TASKS[len(cell.better) :]]
        counts.false_tasks += any(found.tasks[name] != "undecided" for name in equal)
        counts.covered += found.low <= truth <= found.high
    return counts


def true_share(cell: Cell, draws: int = 200_000) -> float:
    """Returns the share of wins that a cell's entry has in the long run."""
    rng = np.random.default_rng(0)
    ours = _runs(rng, cell, draws)
    theirs = _runs(rng, Cell("", learned=cell.learned), draws)
    shares = []
    for task in TASKS:
        x, y = (np.array([*side[task.name].values()]) for side in (ours, theirs))
        shares.append(np.mean((x > y) + 0.5 * (x == y)))
    return float(np.average(shares, weights=[task.weight for task in TASKS]))


def _runs(rng, cell, seeds):
    """Draws runs: normal ones, or of accuracy 1 where learned and near chance elsewhere."""
    runs = {}
    for task, better in itertools.zip_longest(TASKS, cell.better, fillvalue=0.0):
        if cell.learned is None:
            values = better + cell.spread * rng.standard_normal(seeds)
        else:
            deviation = (cell.learned * (1 - cell.learned)) ** 0.5
            is_learned = rng.random(seeds) < cell.learned + better * deviation
            # Of 500 answers.
            values = np.where(is_learned, 1.0, rng.binomial(500, 0.2, seeds) / 500)
        runs[task.name] = dict(enumerate(values))
    return runs


NOTES = {
    "beats": "entries that beat the record; of equal ones at most 1 % may",
    "worse": "entries that are found to be worse; of equal ones at most 1 %",
    "stopped": "entries that are not trained beyond the first look",
    "tasks": "entries said to be better or worse in a task in which they are equal",
    "holds": "intervals of the share of wins, of 98 %, that hold the true one",
}


def define_flags() -> None:
    """Defines --entries."""
    flags.DEFINE_integer("entries", 4000, "Entries of each kind", lower_bound=1)


def measure(request: Request) -> Outcome:
    """Simulates the cells; shows and writes the table."""
    entries = 20 if request.cases == TINY else request.flags.entries
    counts = {}
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(machine.threads(), context) as pool:
        for cell in request.cases:
            with request.console.status(cell.name):
                parts = [min(PART, entries - at) for at in range(0, entries, PART)]
                cells = itertools.repeat(cell)
                results = pool.map(simulate, cells, parts, range(len(parts)))
                counts[cell] = sum(results, Counts())
            written = _write(request, counts)
    report.show(table(counts), request.console)
    return Outcome(written)


def _write(request, counts):
    cells = [
        {**dataclasses.asdict(cell), **dataclasses.asdict(count)}
        for cell, count in counts.items()
    ]
    return report.write(request.directory, "bar", [table(counts)], {"cells": cells})


def table(counts) -> Table:
    """Returns the table, a row a cell."""
    filled = Table("bar", ())
    filled.headings = ("entries", *(filled.noted(*pair) for pair in NOTES.items()))
    for cell, count in counts.items():
        numbers = (
            count.better,
            count.worse,
            count.stopped,
            count.false_tasks,
            count.covered,
        )
        cells = [f"{100 * number / count.entries:.1f} %" for number in numbers]
        filled.rows.append((cell.name, *cells))
    return filled


TINY = [CELLS[0], CELLS[5]]

BENCHMARK = Benchmark(
    name="bar", cases=CELLS, tiny=TINY, run=measure, define_flags=define_flags
)
