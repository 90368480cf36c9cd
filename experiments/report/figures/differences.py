"""Draws a forest plot: differences to base with their intervals."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.report.comparison import Difference
from experiments.report.figures.style import (
    Picture,
    Spot,
    finished,
    short_label,
    styled,
)

# Two of Okabe and Ito's colours, which all eyes tell apart.
_VERDICTS = {"better": "#0072B2", "worse": "#D55E00"}


def forest(
    rows: Sequence[tuple[str, Difference, str, str]], heading: str, scale: float = 1.0
) -> Picture | None:
    """Draws each row's difference to base as a dot with its 95 % interval.

    The dot is filled where the verdict takes a side. `rows` are (label, difference, verdict,
    text at the right) from top to bottom; values are times `scale`, and `heading` is the
    metric's. A row far outside of the others ends in an arrow at the edge. None without
    finite differences.
    """
    finite = [
        (label, scale * np.array([d.low, d.mean, d.high]), verdict, text)
        for label, d, verdict, text in rows
        if np.isfinite([d.low, d.mean, d.high]).all()
    ]
    if not finite:
        return None
    edge = _edge([values for _, values, _, _ in finite])
    with styled(axes__spines__left=False):
        figure = Figure(figsize=(9.2, 0.9 + 0.24 * len(finite)), layout="constrained")
        axes = figure.subplots()
        axes.axvline(0, color="#808080", linewidth=0.8)
        beside = dict(transform=axes.get_yaxis_transform(), va="center", fontsize=8)
        spots = []
        for y, (label, values, verdict, text) in enumerate(finite):
            _draw_interval(axes, y, values, edge, verdict)
            axes.text(1.02, y, f"{text}  {verdict}", **beside)
            x = float(np.clip(values[1], -edge, edge))
            spots.append(Spot(axes, x, y, f"{short_label(label)}: {text}, {verdict}"))
        axes.set(
            xlabel=f"{heading}, difference to base",
            xlim=(-edge, edge),
            # Upside down, so that the first row is at the top as in the table.
            ylim=(len(finite) - 0.4, -0.6),
            yticks=range(len(finite)),
            yticklabels=[short_label(label) for label, *_ in finite],
        )
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        return finished(figure, f"forest {heading}", spots)


def _edge(intervals):
    """Returns the end of the scale: outliers among the rows do not set it."""
    reach = np.array([max(np.abs(values).max(), 1e-12) for values in intervals])
    # At least half of the rows are within 8 medians, so the choice is never empty.
    return 1.08 * reach[reach <= 8 * np.median(reach)].max()


def _draw_interval(axes, y, values, edge, verdict):
    # What lies beyond the edge ends there in an arrow.
    low, mean, high = np.clip(values, -edge, edge)
    colour = _VERDICTS.get(verdict, "#000000")
    axes.add_line(Line2D([low, high], [y, y], color=colour, linewidth=1.4))
    arrow = dict(color=colour, markersize=5, clip_on=False)
    if values[0] < -edge:
        axes.add_line(Line2D([-edge], [y], marker="<", **arrow))
    if values[2] > edge:
        axes.add_line(Line2D([edge], [y], marker=">", **arrow))
    if abs(values[1]) <= edge:
        face = colour if verdict in _VERDICTS else "#ffffff"
        dot = dict(marker="o", markersize=5.5, markeredgecolor=colour)
        line = Line2D([mean], [y], color=colour, markerfacecolor=face, **dot)
        axes.add_line(line)
