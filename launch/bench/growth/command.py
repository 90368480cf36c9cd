"""Measures how time and memory grow, and draws them as curves with their slopes.

A slope is that of a line through the logarithms: 1 where twice as much takes twice as long,
2 where it takes four times as long, 0 where it takes no longer.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import rich.console
from matplotlib.figure import Figure

from experiments.system.files import write_bytes
from launch.bench.growth.curve import Cost, Curve, in_process
from launch.bench.growth.curves import CURVES, TINY
from launch.bench.harness import plot, record
from launch.bench.harness.benchmark import Benchmark, Outcome, Request
from launch.bench.harness.exponent import exponent
from launch.bench.harness.table import Table, mebibytes, number, show

Measured = Mapping[Curve, Mapping[int, Sequence[Cost]]]
"""{curve: {size: what it took in each round}}."""


def measure(request: Request) -> Outcome:
    """Measures all curves; shows and writes the table, and draws the picture."""
    arguments = (request.rounds, request.directory, request.console)
    return Outcome(measure_curves(request.cases, *arguments))


def measure_curves(
    curves: Sequence[Curve], rounds: int, directory: Path, console: rich.console.Console
) -> list[Path]:
    """Measures these curves, their sizes in turns; returns the files that it writes."""
    measured = {}
    for curve in curves:
        costs = {size: [] for size in curve.sizes}
        for _ in range(rounds):
            for size in curve.sizes:
                with console.status(f"{curve.name}: {size:,} {curve.axis}"):
                    costs[size].append(in_process(curve, size))
        measured[curve] = costs
        # An interrupted call keeps the curves that were done.
        files = _write(measured, directory)
    show(table(measured), console)
    return files


def _write(measured, directory):
    entries = [_entry(curve, costs) for curve, costs in measured.items()]
    files = record.write(
        directory,
        "growth",
        title="How time and memory grow",
        tables=[table(measured)],
        results={"curves": entries},
    )
    image = directory / "growth.png"
    write_bytes(image, picture(measured))
    return [*files, image]


def _entry(curve, costs):
    sizes = {size: [cost._asdict() for cost in taken] for size, taken in costs.items()}
    return {"name": curve.name, "axis": curve.axis, "sizes": sizes}


def table(measured: Measured) -> Table:
    """Returns the table, a row a curve: its ends, and its slopes with standard errors."""
    headings = ("", "over", "seconds", "slope", "MiB", "slope")
    filled = Table("growth", headings)
    for curve, costs in measured.items():
        seconds, memory = _medians(costs)
        first, last = curve.sizes[0], curve.sizes[-1]
        row = (
            filled.noted(curve.name, curve.note) if curve.note else curve.name,
            f"{first:,} to {last:,} {curve.axis}",
            f"{number(seconds[first])} to {number(seconds[last])}",
            _slope(seconds),
            f"{mebibytes(memory[first])} to {mebibytes(memory[last])}",
            _slope(memory),
        )
        filled.rows.append(row)
    return filled


def _medians(costs):
    """Returns ({size: seconds}, {size: bytes})."""
    seconds = {}
    memory = {}
    for size, taken in costs.items():
        seconds[size] = statistics.median(cost.seconds for cost in taken)
        # A byte at least, for the logarithm.
        memory[size] = max(1, statistics.median(cost.bytes for cost in taken))
    return seconds, memory


def _slope(values):
    slope, error = exponent(values)
    return f"{slope:z.2f} ± {error:.2f}"


def picture(measured: Measured) -> bytes:
    """Returns a PNG: time above memory, log-log, a column for what the sizes count."""
    axes = list(dict.fromkeys(curve.axis for curve in measured))
    with plot.style():
        # Not pyplot's, which keeps each figure until it is closed.
        figure = Figure(figsize=(3 * len(axes), 6), layout="constrained")
        above, below = figure.subplots(2, len(axes), squeeze=False)
        for axis, of_time, of_memory in zip(axes, above, below, strict=True):
            curves = [curve for curve in measured if curve.axis == axis]
            for row, curve in enumerate(curves):
                seconds, memory = _medians(measured[curve])
                mib = {size: count / 2**20 for size, count in memory.items()}
                for ax, values in ((of_time, seconds), (of_memory, mib)):
                    slope, _ = exponent(values)
                    plot.line(ax, row, values, f"{curve.name}: {slope:z.2f}")
            of_time.set(title=f"over {axis}")
            of_memory.set(xlabel=axis)
            for ax in (of_time, of_memory):
                _scale(ax)
                ax.legend(fontsize=7, title="slope", title_fontsize=7)
        above[0].set_ylabel("seconds")
        below[0].set_ylabel("MiB")
        return plot.png(figure)


def _scale(ax):
    """Makes both axes logarithmic, and that of the values a factor of ten long at least."""
    ax.set(xscale="log", yscale="log")
    low, high = ax.get_ylim()
    if high < 10 * low:
        middle = (low * high) ** 0.5
        low, high = middle / 10**0.5, middle * 10**0.5
    # Above the lines there is room for their names.
    ax.set_ylim(low, high * (high / low) ** 0.3)
    if ax.get_xlim()[1] < 100:
        # Numbers at each tick between would run into each other.
        ax.set_xscale("log", base=2)
    ax.minorticks_off()


BENCHMARK = Benchmark(
    name="growth",
    cases=CURVES,
    tiny=TINY,
    run=measure,
    table=table,
    rounds_flag=True,
    cases_flag=True,
)
