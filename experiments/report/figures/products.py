"""Draws a metric over the settings of a product of sweeps: lines over one, a map of two."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

from experiments.evaluation.metrics import PERPLEXITY, Metric
from experiments.report.figures.style import (
    COLUMNS,
    Picture,
    Spot,
    add_colour_bar,
    add_legend,
    add_panels,
    finished,
    legend_height,
    panel_lines,
    short_label,
    styled,
    styled_line,
    thinned,
    use_log_scale,
)

_MOST_NUMBERS = 80
"""Cells of a map that have their number written in them."""


_ROOM = 3
"""Bars may take so many times the range of the means; longer ones end at the axes' edge."""


class Point(NamedTuple):
    """Holds a row's mean in one metric, with the ends of its interval."""

    x: float
    y: float
    low: float
    high: float


Line = tuple[str, Sequence[Point]]
"""A label with the points of a line by rising x."""


def over_setting(
    panels: Mapping[Metric, Sequence[Line]], setting: str, title: str, name: str
) -> Picture | None:
    """Draws each metric over a numeric setting, a line for each other setting.

    `title` stands below the axes. All metrics have the same lines in the same order. None
    without any panel.
    """
    if not panels:
        return None
    labels = [label for label, _ in next(iter(panels.values()))]
    lines = panel_lines(len(panels))
    width = 5.4 * min(len(panels), COLUMNS) + 1
    with styled():
        size = (width, lines * legend_height(len(labels) / lines))
        figure = Figure(figsize=size, layout="constrained")
        grid = add_panels(figure, len(panels))
        spots = []
        for axes, (metric, drawn) in zip(grid, panels.items(), strict=True):
            spots += _draw_lines(axes, metric, drawn, setting)
            axes.set_xlabel(title)
        if any(labels):
            add_legend(figure, labels)
        return finished(figure, name, spots)


def map_of_two(
    maps: Mapping[Metric, np.ndarray],
    rows: tuple[str, Sequence[str]],
    columns: tuple[str, Sequence[str]],
    name: str,
) -> Picture | None:
    """Draws each metric as a map: `rows` and `columns` are (setting, its values).

    NaN is drawn as nothing. None without any map.
    """
    if not maps:
        return None
    height = panel_lines(len(maps)) * (1.1 + 0.34 * len(rows[1]))
    size = (5.6 * min(len(maps), COLUMNS), max(height, 2.4))
    with styled(axes__grid=False, axes__spines__left=False, axes__spines__bottom=False):
        figure = Figure(figsize=size, layout="constrained")
        grid = add_panels(figure, len(maps))
        spots = []
        for axes, (metric, values) in zip(grid, maps.items(), strict=True):
            spots += _draw_map(figure, axes, metric, values, rows, columns)
        return finished(figure, name, spots)


def _draw_lines(axes, metric, lines, setting):
    """Draws a panel, and returns its spots."""
    spots = []
    values = sorted({point.x for _, points in lines for point in points})
    for row, (label, points) in enumerate(lines):
        xs = [point.x for point in points]
        ys = [metric.scale * point.y for point in points]
        options = dict(linewidth=1.2, marker="o", markersize=3.5)
        line = styled_line(xs, ys, row, **options)
        axes.add_line(line)
        # Bars of several lines at one value stand beside each other.
        points_aside = 2.5 * (row - (len(lines) - 1) / 2)
        inches = axes.figure.dpi_scale_trans
        beside = ScaledTranslation(points_aside / 72, 0, inches)
        for x, y, point in zip(xs, ys, points, strict=True):
            low = metric.scale * point.low
            high = metric.scale * point.high
            text = f"{short_label(label)}, " if label else ""
            text += f"{setting}={x:g}: {y:.4g}"
            if high > low:
                bar = dict(color=line.get_color(), linewidth=0.9)
                axes.vlines(x, low, high, transform=axes.transData + beside, **bar)
                text += f" [{low:.4g}, {high:.4g}]"
            spots.append(Spot(axes, x, y, text))
    _make_room(axes, metric, [point for _, points in lines for point in points])
    # Values that double are evenly apart on a log scale.
    if min(values) > 0 and max(values) >= 4 * min(values):
        axes.set_xscale("log")
    if metric is PERPLEXITY:
        use_log_scale(axes, "y")
    shown = [values[i] for i in thinned(len(values), 10)]
    axes.set_xticks(shown, [f"{value:g}" for value in shown])
    axes.set_xticks([], minor=True)
    unit = f", {metric.unit}" if metric.unit else ""
    axes.set(title=f"{metric.name}{unit}")
    return spots


def _make_room(axes, metric, points):
    """Scales the axes to the bars, or to the means alone where bars would hide them."""
    means = [metric.scale * point.y for point in points]
    ends = [metric.scale * end for point in points for end in (point.low, point.high)]
    if np.ptp(ends) <= _ROOM * np.ptp(means):
        xs = [point.x for point in points]
        axes.update_datalim([(min(xs), min(ends)), (max(xs), max(ends))])
    axes.autoscale_view()


def _draw_map(figure, axes, metric, values, rows, columns):
    """Draws a map with its numbers, and returns its spots."""
    values = metric.scale * values
    # Light is good, whichever way the metric goes.
    colours = "cividis" if metric.higher_is_better else "cividis_r"
    image = axes.imshow(values, aspect="auto", interpolation="none", cmap=colours)
    middle = (np.nanmin(values) + np.nanmax(values)) / 2
    spots = []
    for i, j in np.ndindex(values.shape):
        if not np.isfinite(values[i, j]):
            continue
        number = f"{values[i, j]:.{metric.decimals}f}"
        text = f"{rows[0]}={rows[1][i]}, {columns[0]}={columns[1][j]}: {number}"
        spots.append(Spot(axes, j, i, text))
        if values.size <= _MOST_NUMBERS:
            is_light = (values[i, j] >= middle) == metric.higher_is_better
            # Not pure black and white, which the page turns for a dark background.
            ink = "#101010" if is_light else "#f8f8f8"
            place = dict(ha="center", va="center", fontsize=8)
            axes.text(j, i, number, color=ink, **place)
    axes.set_xticks(range(len(columns[1])), columns[1])
    axes.set_yticks(range(len(rows[1])), rows[1])
    axes.tick_params(length=0)
    unit = f", {metric.unit}" if metric.unit else ""
    axes.set(title=f"{metric.name}{unit}", xlabel=columns[0], ylabel=rows[0])
    add_colour_bar(figure, image, ax=axes, aspect=30, pad=0.02)
    return spots
