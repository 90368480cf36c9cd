"""Draws the accuracy of a task's answers by distance and by position."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from experiments.report.figures.style import (
    Picture,
    Spot,
    add_legend,
    finished,
    legend_height,
    short_label,
    styled,
    styled_line,
)

Accuracies = Mapping[str, Mapping[int, tuple[str, float]]]
"""As `experiments.report.answers.read_accuracies` returns them."""


def accuracy_by(
    rows: Sequence[tuple[str, Sequence[Accuracies]]], kinds: Mapping[str, str]
) -> Picture | None:
    """Draws accuracy over buckets, a panel for each kind and a line for each row.

    Values are means over the seeds that have a bucket. `rows` are (label, the accuracies of
    each seed), `kinds` {kind: what its buckets count}. None where there are no answers.
    """
    drawn = {
        kind: _buckets(rows, kind) for kind in kinds if len(_buckets(rows, kind)) > 1
    }
    if not drawn:
        return None
    with styled():
        size = (5.4 * len(drawn) + 1, legend_height(len(rows)))
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(1, len(drawn), squeeze=False)[0]
        spots = []
        for axes, (kind, buckets) in zip(panels, drawn.items(), strict=True):
            spots += _draw_panel(axes, rows, kind, buckets)
            axes.set(title=f"accuracy by {kind}, %", xlabel=kinds[kind])
        add_legend(figure, [label for label, _ in rows])
        return finished(figure, "accuracy of answers", spots)


def _buckets(rows, kind):
    """Returns {first of a bucket: its name} of all seeds, rising."""
    names = {}
    for _, seeds in rows:
        for seed in seeds:
            names |= {first: name for first, (name, _) in seed.get(kind, {}).items()}
    return dict(sorted(names.items()))


def _draw_panel(axes, rows, kind, buckets):
    """Draws a panel, and returns its spots."""
    places = {first: place for place, first in enumerate(buckets)}
    spots = []
    for row, (label, seeds) in enumerate(rows):
        of_bucket = {}
        for seed in seeds:
            for first, (_, accuracy) in seed.get(kind, {}).items():
                of_bucket.setdefault(first, []).append(accuracy)
        # Rows of a sweep over lengths have buckets of their own.
        firsts = sorted(of_bucket)
        means = [np.mean(of_bucket[first]) for first in firsts]
        at = [places[first] for first in firsts]
        options = dict(linewidth=1.1, marker="o", markersize=3)
        axes.add_line(styled_line(at, means, row, **options))
        for first, mean in zip(firsts, means, strict=True):
            text = f"{short_label(label)}, {kind} {buckets[first]}: {mean:.4g} %"
            spots.append(Spot(axes, places[first], mean, text))
    axes.autoscale_view()
    axes.set(ylim=(-4, 104), xticks=range(len(buckets)))
    axes.set_xticklabels(buckets.values())
    return spots
