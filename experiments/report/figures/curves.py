"""Draws training curves: validation perplexity and training loss over steps."""

import itertools
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.report.figures.style import (
    Picture,
    Spot,
    add_legend,
    finished,
    legend_height,
    line_style,
    short_label,
    styled,
    styled_line,
    thinned,
    use_log_scale,
)
from experiments.report.results import TrialResult

_PANELS = {
    ("validation", "perplexity"): "validation perplexity, per token (log scale)",
    ("train", "loss"): "training loss, nats per token",
}


def training_curves(
    rows: Sequence[tuple[str, Sequence[TrialResult]]],
) -> Picture | None:
    """Draws validation perplexity and training loss over steps, a colour for each row.

    A line is the mean over the seeds that logged a step, its band goes from their lowest to
    their highest value. `rows` are (label, trials) in the table's order. None where no trial
    has logged anything.
    """
    trials = itertools.chain(*[members for _, members in rows])
    if not any(map(_has_curve, trials)):
        return None
    with styled():
        size = (11.8, legend_height(len(rows)))
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(1, len(_PANELS))
        spots = []
        for axes, (curve, title) in zip(panels, _PANELS.items(), strict=True):
            spots += _draw_curves(axes, rows, *curve)
            axes.set(title=title, xlabel="step")
        add_legend(figure, [label for label, _ in rows])
        return finished(figure, "training curves", spots)


def over_seeds(
    curves: Sequence[tuple[Sequence[int], Sequence[float]]],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns (steps, mean, lowest, highest) of curves [(steps, values), …].

    Each step counts the curves that have it.
    """
    by_step = {}
    for steps, values in curves:
        for step, value in zip(steps, values, strict=True):
            by_step.setdefault(step, []).append(value)
    # Seeds may have got to different steps while a sweep runs.
    steps = sorted(by_step)
    mean = np.array([np.mean(by_step[step]) for step in steps], float)
    low = np.array([min(by_step[step]) for step in steps], float)
    high = np.array([max(by_step[step]) for step in steps], float)
    return np.array(steps), mean, low, high


def _has_curve(trial):
    return any(len(trial.curve(*curve)[0]) for curve in _PANELS)


def _draw_curves(axes, rows, split, metric):
    """Draws a panel, and returns its spots."""
    spots = []
    for row, (label, trials) in enumerate(rows):
        curves = [trial.curve(split, metric) for trial in trials]
        steps, mean, low, high = over_seeds(curves)
        # Evaluations are few and each is a dot; a curve of one point would not show at all.
        dot = 2 if split == "validation" or len(steps) == 1 else 0
        options = dict(linewidth=1.1, marker="o", markersize=dot)
        axes.add_line(styled_line(steps, mean, row, **options))
        for i in thinned(len(steps)):
            text = f"{short_label(label)}, step {steps[i]:,}: {mean[i]:.4g}"
            if high[i] > low[i]:
                text += f" ({low[i]:.4g} to {high[i]:.4g})"
            spots.append(Spot(axes, steps[i], mean[i], text))
        # One seed has no band.
        if np.any(high > low):
            colour, _ = line_style(row)
            # Many bands on top of each other must not hide the lines.
            faint = min(0.15, 1 / len(rows))
            axes.fill_between(steps, low, high, color=colour, alpha=faint, linewidth=0)
    axes.autoscale_view()
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if metric == "perplexity":
        use_log_scale(axes, "y")
    return spots
