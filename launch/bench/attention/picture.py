"""Draws time and memory of attention over n, a line a library."""

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from launch.bench.harness import plot


def _milliseconds(cell):
    # None stays None: a library that was not timed has no point there.
    return cell.median and 1e3 * cell.median


def _mebibytes(cell):
    return cell.memory and cell.memory / 2**20


_ROWS = {
    "time, ms": _milliseconds,
    "memory beside arguments and results, MiB": _mebibytes,
}


def over_n(results) -> bytes:
    """Returns a PNG: time above, memory below, log-log.

    A column holds the cases that differ in nothing but n. Where some columns have
    several lengths no others are shown, as one point is no curve.
    """
    columns = {}
    for case, cells in results.items():
        key = (case.score, case.mask, case.direction, case.b, case.h, case.d)
        columns.setdefault(key, []).append((case.n, cells))
    curves = {key: points for key, points in columns.items() if len(points) > 1}
    columns = curves or columns
    # A library keeps its colour in every column, also where it is absent from one.
    names = {}
    for cells in results.values():
        names |= dict.fromkeys(cells)
    with plot.style():
        size = (3.2 * len(columns) + 1.6, 6)
        # Not pyplot's, which keeps each figure until it is closed.
        figure = Figure(figsize=size, layout="constrained")
        shape = (len(_ROWS), len(columns))
        grid = figure.subplots(*shape, squeeze=False, sharex="col")
        for axes, (key, points) in zip(grid.T, columns.items(), strict=True):
            for ax, value in zip(axes, _ROWS.values(), strict=True):
                _draw(ax, names, points, value)
            axes[0].set_title(" ".join(key[:3]).replace("_", " "))
            axes[-1].set_xlabel("n")
        for ax, label in zip(grid[:, 0], _ROWS, strict=True):
            ax.set_ylabel(label)
        legend = grid[0, 0].get_legend_handles_labels()
        figure.legend(*legend, loc="outside right upper")
        return plot.png(figure)


def _draw(ax, names, points, value):
    for row, name in enumerate(names):
        values = {n: value(cells[name]) for n, cells in points if name in cells}
        known = {n: values[n] for n in sorted(values) if values[n]}
        plot.line(ax, row, known, name)
    if not any(len(line.get_xdata()) for line in ax.lines):
        # A logarithmic scale of nothing is an error.
        ax.set_axis_off()
        return
    ax.set(xscale="log", yscale="log")
    ax.xaxis.set_major_locator(FixedLocator(sorted({n for n, _ in points})))
    ax.yaxis.set_major_locator(LogLocator(subs=_ticks(*ax.get_ylim())))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,.6g}"))
        axis.set_minor_locator(NullLocator())


def _ticks(low, high):
    """Returns the labelled multiples of a power of ten: more on a shorter axis."""
    if high > 1000 * low:
        return (1,)
    return (1, 2, 5) if high > 10 * low else (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)
