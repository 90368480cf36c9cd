"""Draws rows as points: differences with their intervals, and metrics over costs or sizes."""

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from experiments.report.figures.style import (
    COLOURS,
    LONGEST_LABEL,
    Picture,
    Spot,
    add_panels,
    columns_for,
    finished,
    line_style,
    new_figure,
    panel_lines,
    printed_width,
    short_label,
    styled,
    use_log_scale,
)
from experiments.report.trial_files import LARGEST_DRAWN
from experiments.stats.differences import Difference
from experiments.stats.summary import Summary

# Two of Okabe and Ito's colours, which all eyes tell apart.
_VERDICTS = {"better": "#0072B2", "worse": "#D55E00"}

LEAST_RATIO = 1.2
"""Rows whose largest value is below this many times the smallest are alike."""

MARKERS = ("o", "s", "^", "D")
"""Marks of points; colours repeat with the next one."""

MOST_LABELS = 12
"""Points with a label beside them; more are told apart by a legend."""

_CHARACTER = 6.2
"""Pixels that a character of a label takes at 7.5 points, about."""

_LINE_HEIGHT = 11.0
"""Pixels of a label's height."""

_GAP = 6
"""Pixels between a point and its label."""

_LIFTS = (0, 11, -11, 22, -22, 33, -33)
"""Pixels that a label may stand above its point, in the order in which they are tried."""


class Compared(NamedTuple):
    """Holds a row's difference in one metric, for a panel of `forests`."""

    difference: Difference | None
    verdict: str
    seeds: Sequence[float] = ()
    """Each seed's value, less the base's mean."""


class Forest(NamedTuple):
    """Holds one metric's panel of `forests`: a difference for each of its rows."""

    heading: str
    scale: float
    rows: Sequence[Compared]
    edge: float | None = None
    """The end of its scale; None chooses by the rows."""
    xlabel: str = "row − base"


def forests(
    labels: Sequence[str], panels: Sequence[Forest], name: str
) -> Picture | None:
    """Draws the differences of rows to base, a panel for each metric over one list of rows.

    A dot with its interval is filled where the verdict takes a side; small dots are seeds. A
    row far outside of the others ends in an arrow at the edge. None without finite differences.
    """
    panels = [p for p in panels if any(_is_finite(row.difference) for row in p.rows)]
    if not panels:
        return None
    with styled(axes__spines__left=False):
        beside = columns_for(len(panels), len(panels))
        lines = panel_lines(len(panels), beside)
        shown = [textwrap.fill(label, LONGEST_LABEL) for label in labels]
        # A label of several lines needs their height.
        pitch = max(0.24, 0.15 * max(label.count("\n") + 1 for label in shown))
        figure = new_figure(2.6 + 2.4 * beside, lines * (1.1 + pitch * len(labels)))
        grid = figure.subplots(lines, beside, sharey=True, squeeze=False).flatten()
        for axes in grid[len(panels) :]:
            axes.set_visible(False)
        spots = []
        for axes, panel in zip(grid, panels, strict=False):
            spots += _draw_forest(axes, panel, labels)
        grid[0].set(yticks=range(len(labels)), yticklabels=shown)
        # Upside down, so that the first row is at the top as in the table.
        grid[0].set_ylim(len(labels) - 0.4, -0.6)
        return finished(figure, name, spots)


def _is_finite(d: Difference | None) -> bool:
    return d is not None and bool(np.isfinite([d.low, d.mean, d.high]).all())


def _draw_forest(axes, panel, labels):
    values = {}
    for y, row in enumerate(panel.rows):
        if _is_finite(row.difference):
            ends = (row.difference.low, row.difference.mean, row.difference.high)
            values[y] = panel.scale * np.array(ends)
    edge = panel.edge or _edge([*values.values()])
    axes.axvline(0, color="#808080", linewidth=0.8)
    spots = []
    for y, ends in values.items():
        row = panel.rows[y]
        _draw_interval(axes, y, ends, edge, row.verdict)
        seeds = panel.scale * np.array(row.seeds)
        seeds = seeds[np.abs(seeds) <= edge]
        dots = dict(marker="o", markersize=2.4, linestyle="", color="#808080")
        axes.add_line(Line2D(seeds, [y + 0.27] * len(seeds), markeredgewidth=0, **dots))
        x = float(np.clip(ends[1], -edge, edge))
        text = f"{ends[1]:+.3g} [{ends[0]:+.3g}, {ends[2]:+.3g}], {row.verdict}"
        spots.append(Spot(axes, x, y, f"{short_label(labels[y])}: {text}"))
    axes.set(title=panel.heading, xlabel=panel.xlabel, xlim=(-edge, edge))
    axes.xaxis.set_major_locator(MaxNLocator(4, symmetric=True))
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    return spots


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


class Panel(NamedTuple):
    """Holds one plot of a figure: y over x for each row."""

    title: str
    xlabel: str
    rows: Sequence[tuple[str, Summary | None, Summary | None]]
    """(label, x, y) in the order of the rows' line styles."""
    least: float = -np.inf
    """The least value that y can have."""


class _Point(NamedTuple):
    row: int
    label: str
    x: float
    y: float
    spread: float


def scatter(panels: Sequence[Panel], name: str) -> Picture | None:
    """Draws a point for each row with ± its spread over seeds, and the row's label.

    A panel is left out where fewer than two rows have both numbers, or where the numbers
    along x are all alike; None where that leaves none.
    """
    drawn = [(panel, _points(panel)) for panel in panels]
    drawn = [(panel, points) for panel, points in drawn if _differ(points)]
    if not drawn:
        return None
    beside = columns_for(len(drawn))
    size = (9.2, 5.2) if len(drawn) == 1 else (11.8, 4.4)
    with styled():
        lines = panel_lines(len(drawn), beside)
        # A legend of many rows is as high as they are.
        height = max(size[1] * lines, 0.2 * max(len(points) for _, points in drawn))
        figure = new_figure(size[0] if beside > 1 else 6.0, height)
        grid = add_panels(figure, len(drawn), beside)
        spots = []
        for axes, (panel, points) in zip(grid, drawn, strict=True):
            spots += _draw_points(axes, panel, points)
        most = max((points for _, points in drawn), key=len)
        if len(most) > MOST_LABELS:
            _add_legend(figure, most)
            return finished(figure, name, spots)
        # The layout must stand before room for labels can be measured.
        figure.draw_without_rendering()
        for axes, (_, points) in zip(grid, drawn, strict=True):
            _label_points(figure, axes, points)
        return finished(figure, name, spots)


def _points(panel):
    points = []
    for row, (label, x, y) in enumerate(panel.rows):
        if _is_drawn(x) and _is_drawn(y):
            points.append(_Point(row, label, x.mean, y.mean, y.spread or 0.0))
    return points


def _differ(points):
    xs = [point.x for point in points]
    return len(xs) > 1 and max(xs) >= LEAST_RATIO * min(xs)


def _is_drawn(summary):
    """Returns whether a summary has a place on a log scale."""
    if summary is None or not 0 < summary.mean < LARGEST_DRAWN:
        return False
    return bool(np.isfinite(summary.spread or 0.0))


def _draw_points(axes, panel, points):
    """Draws a panel without its labels, and returns its spots."""
    spots = []
    for point in points:
        colour, marker = _point_style(point.row)
        ends = [max(point.y - point.spread, panel.least), point.y + point.spread]
        axes.add_line(Line2D([point.x] * 2, ends, color=colour, linewidth=0.9))
        dot = dict(color=colour, marker=marker, markersize=4)
        axes.add_line(Line2D([point.x], [point.y], **dot))
        text = f"{short_label(point.label)}: {point.y:.4g} at {point.x:,.4g}"
        spots.append(Spot(axes, point.x, point.y, text))
    axes.set(title=panel.title, xlabel=panel.xlabel)
    axes.margins(0.12, 0.08)
    axes.autoscale_view()
    for name in "xy":
        use_log_scale(axes, name)
    return spots


def _point_style(row):
    """Returns (colour, marker) of a table row's points: the colour is that of its lines."""
    colour, _ = line_style(row)
    return colour, MARKERS[row // len(COLOURS) % len(MARKERS)]


def _add_legend(figure, points):
    """Adds the labels of points, where they are too many to stand beside them."""
    handles = []
    for point in points:
        colour, marker = _point_style(point.row)
        handles.append(Line2D([], [], color=colour, marker=marker, linestyle=""))
    labels = [textwrap.fill(point.label, LONGEST_LABEL) for point in points]
    place = "outside lower left" if printed_width() else "outside right upper"
    figure.legend(handles, labels, loc=place, ncols=2 if printed_width() else 1)


def _label_points(figure, axes, points):
    """Writes each label beside its point, where there is room for it.

    It is to the right or the left of the point, level with it, above or below.
    """
    within = axes.get_window_extent()
    places = axes.transData.transform([(point.x, point.y) for point in points])
    # The points' own boxes come first, so that no label hides a point.
    taken = [(x - 3, y - 3, x + 3, y + 3) for x, y in places]
    # Boxes are compared in pixels, but annotate takes points.
    points_per_pixel = 72 / figure.dpi
    for point, place in zip(points, places, strict=True):
        text = short_label(point.label)
        side, lift = _free_place(text, place, taken, within)
        axes.annotate(
            text,
            (point.x, point.y),
            (_GAP * side * points_per_pixel, lift * points_per_pixel),
            fontsize=7.5,
            va="center",
            textcoords="offset points",
            ha="left" if side > 0 else "right",
            annotation_clip=False,
        )


def _free_place(text, place, taken, within):
    """Returns (side, lift) of a label at the pixel `place`, and adds its box to `taken`.

    The first place that overlaps nothing `within` the axes is best, else the first that
    overlaps nothing, else the first of all.
    """
    boxes = {}
    for lift in _LIFTS:
        for side in (1, -1):
            boxes[side, lift] = _box(text, *place, side, lift)
    free = [spot for spot, box in boxes.items() if not _overlaps_any(box, taken)]
    inside = [s for s in free if within.x0 <= boxes[s][0] and boxes[s][2] <= within.x1]
    best = next(iter([*inside, *free, *boxes]))
    taken.append(boxes[best])
    return best


def _box(text, x, y, side, lift):
    """Returns (left, bottom, right, top) of a label in pixels."""
    width = _CHARACTER * len(text)
    left = x + (_GAP if side > 0 else -_GAP - width)
    right = x + (_GAP + width if side > 0 else -_GAP)
    return left, y + lift - _LINE_HEIGHT / 2, right, y + lift + _LINE_HEIGHT / 2


def _overlaps_any(box, others):
    left, bottom, right, top = box
    return any(
        left < other[2] and other[0] < right and bottom < other[3] and other[1] < top
        for other in others
    )
