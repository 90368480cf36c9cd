"""Draws perplexity over the number of parameters, each point beside its label."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.report.figures.style import (
    line_style,
    short_label,
    styled,
    to_svg,
    use_log_scale,
)
from experiments.report.results import LARGEST_DRAWN
from experiments.report.statistics import Summary

_CHARACTER = 6.2
"""Pixels that a character of a label takes at 7.5 points, about."""

_LINE_HEIGHT = 11.0
"""Pixels of a label's height."""

_GAP = 6
"""Pixels between a point and its label."""

_LIFTS = (0, 11, -11, 22, -22, 33, -33)
"""Pixels that a label may stand above its point, in the order in which they are tried."""


def size_and_perplexity(
    rows: Sequence[tuple[str, Summary | None, Summary | None]],
) -> str | None:
    """Draws a point for each row with ± its spread over seeds, and the row's label.

    `rows` are (label, parameters, perplexity). None where fewer than two rows have both.
    """
    points = [
        (row, label, size.mean, perplexity.mean, perplexity.spread or 0.0)
        for row, (label, size, perplexity) in enumerate(rows)
        if _is_drawn(size) and _is_drawn(perplexity)
    ]
    if len(points) < 2:
        return None
    with styled():
        figure = Figure(figsize=(9.2, 5.2), layout="constrained")
        axes = figure.subplots()
        for row, _, x, y, spread in points:
            colour, _ = line_style(row)
            # Perplexity is never below 1, whatever its spread is.
            ends = [max(y - spread, 1.0), y + spread]
            axes.add_line(Line2D([x, x], ends, color=colour, linewidth=0.9))
            axes.add_line(Line2D([x], [y], color=colour, marker="o", markersize=4))
        axes.set(title="validation perplexity, per token", xlabel="parameters")
        axes.margins(0.12, 0.08)
        axes.autoscale_view()
        for name in "xy":
            use_log_scale(axes, name)
        _label_points(figure, axes, points)
        return to_svg(figure, "size and perplexity")


def _is_drawn(summary):
    """Returns whether a summary has a place on a log scale."""
    if summary is None or not 0 < summary.mean < LARGEST_DRAWN:
        return False
    return bool(np.isfinite(summary.spread or 0.0))


def _label_points(figure, axes, points):
    """Writes each label beside its point, where there is room for it.

    It stands to the right or the left of the point, level with it, above or below.
    """
    # The layout must stand before room can be measured.
    figure.draw_without_rendering()
    places = axes.transData.transform([(x, y) for _, _, x, y, _ in points])
    # The points' own boxes come first, so that no label hides a point.
    taken = [(x - 3, y - 3, x + 3, y + 3) for x, y in places]
    # Boxes are compared in pixels, but annotate takes points.
    points_per_pixel = 72 / figure.dpi
    for (_, label, x, y, _), place in zip(points, places, strict=True):
        text = short_label(label)
        side, lift = _free_place(text, place, taken)
        axes.annotate(
            text,
            (x, y),
            (_GAP * side * points_per_pixel, lift * points_per_pixel),
            fontsize=7.5,
            va="center",
            textcoords="offset points",
            ha="left" if side > 0 else "right",
            annotation_clip=False,
        )


def _free_place(text, place, taken):
    """Returns (side, lift) of a label at the pixel `place`, and adds its box to `taken`.

    The first place that overlaps nothing is best; where there is none, the first of all.
    """
    boxes = {}
    for lift in _LIFTS:
        for side in (1, -1):
            boxes[side, lift] = _box(text, *place, side, lift)
    free = [spot for spot, box in boxes.items() if not _overlaps_any(box, taken)]
    best = next(iter([*free, *boxes]))
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
