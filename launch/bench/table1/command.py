"""Measures Table 1 of the paper: time and memory, sequential operations, and paths.

Exponents are slopes of a line through log time over log n or log d, in a range where
the term that is looked for dominates.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path

import rich.console
from matplotlib.figure import Figure

from experiments.system.files import write_bytes
from launch.bench.harness import plot, record
from launch.bench.harness.benchmark import Benchmark, Outcome, Request
from launch.bench.harness.exponent import exponent
from launch.bench.harness.table import Table, show
from launch.bench.table1.kinds import KINDS, TINY, Kind
from launch.bench.table1.measures import path, sequential, timed

EXPONENTS = (
    "exponent ± standard error, in brackets that of the paper's term; attention of "
    "either form keeps blocks of its weights alone, so that its memory grows with n "
    "where the paper's grows with n²"
)


def measure(request: Request) -> Outcome:
    """Times all kinds at all sizes in turns, forward; shows and writes the table."""
    arguments = (request.rounds, request.directory, request.console)
    return Outcome(measure_kinds(request.cases, *arguments))


def measure_kinds(
    kinds: Sequence[Kind], turns: int, directory: Path, console: rich.console.Console
) -> list[Path]:
    """Measures these kinds; returns the table, the numbers and the picture."""
    seconds = {}
    memory = {}
    for kind in kinds:
        with console.status(kind.name):
            # The size where both ranges meet is timed once.
            sizes = dict.fromkeys((*kind.over_n, *kind.over_d))
            seconds[kind], memory[kind] = timed(kind, sizes, turns)
    filled = table(seconds, memory)
    layers = {kind.name: _entries(seconds[kind], memory[kind]) for kind in kinds}
    files = record.write(
        directory,
        "layers",
        title="Table 1 of the paper, measured",
        tables=[filled],
        results={"layers": layers},
    )
    image = directory / "layers.png"
    write_bytes(image, picture(seconds))
    show(filled, console)
    return [*files, image]


def _entries(seconds, memory):
    return [
        {"n": n, "d": d, "seconds": values, "temporary_bytes": memory[n, d]}
        for (n, d), values in seconds.items()
    ]


def table(seconds: dict[Kind, dict], memory: dict[Kind, dict]) -> Table:
    """Returns the table, a row a kind.

    It has exponents with their standard errors beside those of the term that
    dominates, and what was counted.
    """
    over = ("time over n", "time over d", "memory over n")
    filled = Table("layers", ("", "paper", *over, "sequential", "path"))
    lengths = next(iter(seconds)).lengths
    filled.notes += [
        EXPONENTS,
        f"for n = {_listed(lengths)}, in brackets the paper's",
        "the same, without the last n",
    ]
    for kind in seconds:
        n_exponent, d_exponent = kind.expected
        over_n = _fit(_medians(seconds[kind], kind.over_n))
        over_d = _fit(_medians(seconds[kind], kind.over_d))
        trips = _listed(sequential(kind, n) for n in kind.lengths)
        # A path takes a Jacobian of n² blocks, so the longest is left out.
        paths = _listed(path(kind, n) for n in kind.lengths[:-1])
        row = (
            kind.name,
            kind.complexity,
            f"{over_n} ({n_exponent})",
            f"{over_d} ({d_exponent})",
            _fit(_along(memory[kind], kind.over_n)),
            f"{trips} ({kind.sequential})",
            f"{paths} ({kind.path})",
        )
        filled.rows.append(row)
    return filled


def _listed(numbers):
    return ", ".join(map(str, numbers))


def _along(values, sizes):
    """Returns {n or d, whichever differs: value} at the sizes (n, d)."""
    axis = 0 if sizes[0][1] == sizes[1][1] else 1
    return {size[axis]: values[size] for size in sizes}


def _medians(seconds, sizes):
    along = _along(seconds, sizes)
    return {size: statistics.median(values) for size, values in along.items()}


def _fit(values):
    return "{:.2f} ± {:.2f}".format(*exponent(values))


def picture(seconds: dict[Kind, dict]) -> bytes:
    """Returns a PNG: time over n and over d, log-log, a line a kind."""
    with plot.style():
        # Not pyplot's, which keeps each figure until it is closed.
        figure = Figure(figsize=(9, 4), layout="constrained")
        over_n, over_d = figure.subplots(1, 2)
        for row, kind in enumerate(seconds):
            d = kind.over_n[0][1]
            _line(over_n, row, kind, _medians(seconds[kind], kind.over_n), f"d = {d}")
            n = kind.over_d[0][0]
            _line(over_d, row, kind, _medians(seconds[kind], kind.over_d), f"n = {n}")
        over_n.set(yscale="log", xlabel="n", ylabel="ms")
        over_d.set(yscale="log", xlabel="d", ylabel="")
        for ax in (over_n, over_d):
            # All sizes are powers of two.
            ax.set_xscale("log", base=2)
            ax.legend(fontsize=7, title="exponent")
        return plot.png(figure)


def _line(ax, row, kind, medians, constant):
    slope, _ = exponent(medians)
    milliseconds = {size: 1e3 * seconds for size, seconds in medians.items()}
    plot.line(ax, row, milliseconds, f"{kind.name}, {constant}: {slope:.2f}")


BENCHMARK = Benchmark(
    name="layers",
    cases=KINDS,
    tiny=TINY,
    run=measure,
    table=table,
    rounds_flag=True,
)
