"""Draws lines over sizes on logarithmic axes, for the pictures of benchmarks."""

import io
from collections.abc import Mapping

import matplotlib
from matplotlib.figure import Figure

from experiments.report.figures.style import line_style

STYLE = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.which": "major",
    "grid.alpha": 0.3,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
}


def style():
    """Returns the context in which all pictures are drawn."""
    return matplotlib.rc_context(STYLE)


def line(ax, row: int, points: Mapping[float, float], label: str) -> None:
    """Draws {x: y} as a line with the colour and the dashes of this row."""
    colour, dashes = line_style(row)
    ax.plot(
        list(points.keys()),
        list(points.values()),
        label=label,
        color=colour,
        linestyle=(0, dashes) if dashes else "-",
        marker="o",
        markersize=4,
    )


def png(figure: Figure) -> bytes:
    """Returns the figure as a PNG file."""
    # In memory, so that the caller can write the file whole or not at all.
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()
