"""The picture of a benchmark: time and memory over n, a line a peer."""

import io

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from experiments.figures import line_style

_STYLE = {"font.size": 9, "axes.titlesize": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
          "grid.alpha": 0.3, "grid.linewidth": 0.6, "legend.frameon": False}
_ROWS = {"time, ms": lambda cell: cell.median and 1e3 * cell.median,
         "memory beside arguments and results, MiB": lambda cell: cell.memory and cell.memory / 2**20}


def over_n(results) -> bytes:
    """PNG: time above, memory below, log-log; a column for cases that differ in nothing but n.

    Columns of several lengths, where there are any, and then no others: one point is no curve.
    """
    columns = {}
    for case, cells in results.items():
        key = case.score, case.mask, case.direction, case.b, case.h, case.d
        columns.setdefault(key, []).append((case.n, cells))
    several = {key: points for key, points in columns.items() if len(points) > 1} or columns
    names = list(dict.fromkeys(name for cells in results.values() for name in cells))
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(3.2 * len(several) + 1.6, 6), layout="constrained")
        grid = figure.subplots(len(_ROWS), len(several), squeeze=False, sharex="col")
        for axes, (key, points) in zip(grid.T, several.items(), strict=True):
            for ax, (label, value) in zip(axes, _ROWS.items(), strict=True):
                _draw(ax, names, points, value)
                ax.set(ylabel=label if ax in grid[:, 0] else "")
            axes[0].set_title(" ".join(key[:3]).replace("_", " "))
            axes[-1].set_xlabel("n")
        figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside right upper")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def _draw(ax, names, points, value):
    for row, name in enumerate(names):
        colour, dashes = line_style(row)
        found = sorted((n, value(cells[name])) for n, cells in points if name in cells and value(cells[name]))
        ax.plot(*(zip(*found, strict=True) if found else ([], [])), label=name, color=colour,
                linestyle=(0, dashes) if dashes else "-", marker="o", markersize=4)
    if not any(len(line.get_xdata()) for line in ax.lines):
        ax.set_axis_off()  # a logarithmic scale of nothing is an error
        return
    ax.set(xscale="log", yscale="log")
    low, high = ax.get_ylim()
    fine = (1,) if high > 1000 * low else (1, 2, 5) if high > 10 * low else (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)
    ax.xaxis.set_major_locator(FixedLocator(sorted({n for n, _ in points})))
    ax.yaxis.set_major_locator(LogLocator(subs=fine))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,.6g}"))
        axis.set_minor_locator(NullLocator())
