"""Draws lines over steps, lengths of texts, places of answers, and settings of a sweep.

A line belongs to a row of the table, in the style of its place. R rows.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

from experiments.evaluation.metrics import METRICS, PERPLEXITY, Metric
from experiments.report.figures.style import (
    COLUMNS,
    Picture,
    Spot,
    add_legend,
    add_panels,
    columns_for,
    finished,
    legend_height,
    line_style,
    new_figure,
    panel_lines,
    printed_width,
    short_label,
    styled,
    styled_line,
    thinned,
    use_log_scale,
)
from experiments.report.trial_files import TrialResult

_CURVES = {
    ("validation", "perplexity"): "validation perplexity, per token (log scale)",
    ("train", "loss"): "training loss, nats per token",
}

_CURVES_OF_LABELS = {
    ("validation", "cross_entropy"): "validation cross-entropy, nats per label",
    ("train", "loss"): "training loss, nats per label",
}

PARTS = (0.5, 1, 1.5, 2, 3, 4)
"""Ends of buckets beyond training, in longest training sentences."""

BUCKETS = 6

_LONGEST_BAR = 4
"""Bars longer than this many times the usual one may end at the edge of the axes."""

_WIDEST_TICKS = 44
"""Letters below a panel that stand beside each other; more are turned."""

Draw = Callable[[Axes], list[Spot]]
"""Draws a panel, and returns its spots."""

Sentences = Mapping[str, np.ndarray]

Accuracies = Mapping[str, Mapping[int, tuple[str, float]]]
"""As `experiments.report.trial_outputs.read_accuracies` returns them."""


def _draw_panels(
    name: str, labels: Sequence[str], panels: Sequence[Draw], columns: int = COLUMNS
) -> Picture:
    """Draws panels with one legend of the lines' `labels`; no legend if all are ""."""
    columns = columns_for(len(panels), columns)
    if printed_width():
        legend = 0.15 * len(labels) if any(labels) else 0.0
        size = (3.3 * columns, 2.3 * panel_lines(len(panels), columns) + legend)
    else:
        lines = panel_lines(len(panels), columns)
        height = legend_height(len(labels) / lines)
        if columns > COLUMNS:
            height = max(2.9, height - 1)
        width = 5.4 if columns <= COLUMNS else 3.7
        size = (width * columns + 1, lines * height)
    with styled():
        figure = new_figure(*size)
        spots = []
        grid = add_panels(figure, len(panels), columns)
        for axes, draw in zip(grid, panels, strict=True):
            spots += draw(axes)
        if any(labels):
            add_legend(figure, labels)
        return finished(figure, name, spots)


def _add_line(axes, xs, ys, row, texts, linewidth=1.1, markersize=3.0):
    """Adds a row's line of dots, and returns a spot with each of `texts`."""
    options = dict(linewidth=linewidth, marker="o", markersize=markersize)
    axes.add_line(styled_line(xs, ys, row, **options))
    return [Spot(axes, *place) for place in zip(xs, ys, texts, strict=True)]


def training_curves(
    rows: Sequence[tuple[str, Sequence[TrialResult]]],
) -> Picture | None:
    """Draws the losses of validation and training over steps, a colour for each row.

    A line is the mean over the seeds that logged a step, its band goes from their lowest to
    their highest value. `rows` are (label, trials) in the table's order. None where no trial
    has logged anything.
    """
    trials = list(itertools.chain(*[members for _, members in rows]))
    of_labels = any(len(t.curve("validation", "cross_entropy")[0]) for t in trials)
    curves = _CURVES_OF_LABELS if of_labels else _CURVES
    if not any(len(trial.curve(*c)[0]) for trial in trials for c in curves):
        return None

    def panel(curve):
        return lambda axes: _draw_curves(axes, rows, curve, curves[curve])

    return _draw_panels(
        "training curves", [label for label, _ in rows], list(map(panel, curves))
    )


def _draw_curves(axes, rows, curve, title):
    spots = []
    for row, (label, trials) in enumerate(rows):
        steps, mean, low, high = over_seeds([trial.curve(*curve) for trial in trials])
        # Evaluations are few and each is a dot; a curve of one point would not show at all.
        dot = 2 if curve[0] == "validation" or len(steps) == 1 else 0
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
    if curve[1] == "perplexity":
        use_log_scale(axes, "y")
    axes.set(title=title, xlabel="step")
    return spots


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
    of_steps = lambda of: np.array([of(by_step[step]) for step in steps], float)
    return np.array(steps), of_steps(np.mean), of_steps(min), of_steps(max)


def accuracy_by(
    rows: Sequence[tuple[str, Sequence[Accuracies]]], kinds: Mapping[str, str]
) -> Picture | None:
    """Draws accuracy over buckets, a panel for each kind and a line for each row.

    Values are means over the seeds that have a bucket. `rows` are (label, the accuracies of
    each seed), `kinds` {kind: what its buckets count}. None where there are no answers.
    """
    panels = []
    for kind in kinds:
        names = {}
        for seed in itertools.chain(*[seeds for _, seeds in rows]):
            names |= {first: name for first, (name, _) in seed.get(kind, {}).items()}
        # One bucket is no curve.
        if len(names) > 1:
            panels.append(
                _accuracy_panel(rows, kind, dict(sorted(names.items())), kinds)
            )
    if not panels:
        return None
    return _draw_panels("accuracy of answers", [label for label, _ in rows], panels)


def _accuracy_panel(rows, kind, buckets, kinds) -> Draw:
    def draw(axes):
        places = {first: place for place, first in enumerate(buckets)}
        spots = []
        for row, (label, seeds) in enumerate(rows):
            of_bucket = {}
            for seed in seeds:
                for first, (_, accuracy) in seed.get(kind, {}).items():
                    of_bucket.setdefault(first, []).append(accuracy)
            # Rows of a sweep over lengths have buckets of their own.
            means = {first: np.mean(of_bucket[first]) for first in sorted(of_bucket)}
            texts = [
                f"{short_label(label)}, {kind} {buckets[first]}: {mean:.4g} %"
                for first, mean in means.items()
            ]
            at = [places[first] for first in means]
            spots += _add_line(axes, at, [*means.values()], row, texts)
        axes.autoscale_view()
        axes.set(ylim=(-4, 104), xticks=range(len(buckets)))
        axes.set_xticklabels(buckets.values())
        axes.set(title=f"accuracy by {kind}, %", xlabel=kinds[kind])
        return spots

    return draw


def by_length(
    rows: Sequence[tuple[str, Sequence[Sentences]]],
    trained: int | None = None,
    metrics: Sequence[Metric] = METRICS,
) -> Picture | None:
    """Draws each metric in buckets of source length, a line for each row.

    Values are means over seeds. `rows` are (label, `read_sentences` of each seed). The
    buckets are the same for all rows: about as many sentences in each; or, where there are
    sentences beyond `trained`, the tokens of the longest in training, parts and multiples
    of that. A metric is drawn if all trials kept their sentences of it; None where no trial
    kept sentences.
    """
    has_sentences = lambda trial: "validation_source" in trial
    rows = [(label, list(filter(has_sentences, seeds))) for label, seeds in rows]
    trials = list(itertools.chain(*[seeds for _, seeds in rows]))
    # All seeds of a row have the same sentences.
    firsts = [seeds[0]["validation_source"] for _, seeds in rows if seeds]
    buckets = length_buckets(np.concatenate(firsts), trained=trained) if firsts else []
    panels = []
    for metric in metrics if buckets else ():
        is_kept = all(metric.statistics(trial) is not None for trial in trials)
        if metric.columns and is_kept:
            panels.append(_length_panel(metric, rows, buckets, trained))
    if not panels:
        return None
    return _draw_panels("by length", [label for label, _ in rows], panels)


def length_buckets(
    lengths: np.ndarray, most: int = BUCKETS, trained: int | None = None
) -> list[tuple[int, int]]:
    """Returns at most `most` buckets (shortest, longest), both within.

    About as many of `lengths` are in each; or, where some are above `trained`, buckets end
    at PARTS of that and empty ones are left out.
    """
    if not len(lengths):
        return []
    # Beyond training, equal parts of its longest sentence show how far a model reaches.
    if trained and lengths.max() > trained:
        # For a short longest sentence, several parts may be the same length.
        ends = np.unique([max(1, int(part * trained)) for part in PARTS])
        ends = np.unique([*ends, max(lengths.max(), ends[-1])])
        edges = zip([1, *(ends[:-1] + 1)], ends, strict=True)
        return [
            (int(shortest), int(longest))
            for shortest, longest in edges
            if ((lengths >= shortest) & (lengths <= longest)).any()
        ]
    parts = np.arange(1, most + 1) / most
    # Many sentences have the same length, so several quantiles may be equal.
    ends = np.unique(np.quantile(lengths, parts, method="inverted_cdf"))
    starts = [lengths.min(), *(ends[:-1] + 1)]
    edges = zip(starts, ends, strict=True)
    return [(int(shortest), int(longest)) for shortest, longest in edges]


def bucket_values(
    metric: Metric, sentences: Sentences, buckets: Sequence[tuple[int, int]]
) -> np.ndarray:
    """Computes a metric over the sentences of each bucket; NaN for an empty bucket.

    Sentences beyond the last bucket are in it.
    """
    lengths = sentences[f"{metric.split}_source"]
    statistics = metric.statistics(sentences).astype(float)
    ends = [longest for _, longest in buckets]
    # Test sentences may be longer than all of validation, which set the buckets.
    bucket_of = np.searchsorted(ends, lengths).clip(max=len(buckets) - 1)
    values = np.full(len(buckets), np.nan)
    for bucket in range(len(buckets)):
        chosen = statistics[bucket_of == bucket]
        if len(chosen):
            values[bucket] = metric.of_sums(chosen.sum(0), len(chosen))
    return metric.scale * values


def _length_panel(metric, rows, buckets, trained) -> Draw:
    names = [f"{a}–{b}" if a < b else str(a) for a, b in buckets]

    def draw(axes):
        spots = []
        for row, (label, seeds) in enumerate(rows):
            if not seeds:
                continue
            # Each seed by itself, because perplexity and BLEU are no means over
            # sentences.
            values = [bucket_values(metric, trial, buckets) for trial in seeds]
            mean = np.mean(values, axis=0)
            texts = [
                f"{short_label(label)}, {name} tokens: {value:.4g}"
                for name, value in zip(names, mean, strict=True)
            ]
            spots += _add_line(axes, range(len(buckets)), mean, row, texts)
        axes.autoscale_view()
        if metric is PERPLEXITY:
            use_log_scale(axes, "y")
        beyond = [trained and longest > trained for _, longest in buckets]
        if any(beyond):
            border = beyond.index(True) - 0.5
            axes.axvline(border, color="0.6", linewidth=0.8, linestyle=":")
        unit = f", {metric.unit}" if metric.unit else ""
        axes.set(
            title=f"{metric.name} on the {metric.split} set{unit}",
            xlabel="tokens of the source, end mark included",
            xticks=range(len(buckets)),
            xticklabels=names,
        )
        return spots

    return draw


class Point(NamedTuple):
    """Holds a row's mean in one metric, with the ends of its interval."""

    x: float
    y: float
    low: float
    high: float
    seeds: tuple[float, ...] = ()


class Level(NamedTuple):
    """Holds a value that is marked across a panel, as that of a guess."""

    name: str
    value: float


class Panel(NamedTuple):
    """Holds one metric over a setting; all panels of a figure have the same lines in order."""

    title: str
    """What sets it apart from other panels of its metric; "" for nothing."""
    metric: Metric
    lines: Sequence[Sequence[Point]]
    """The points of each line by rising x."""
    levels: Sequence[Level] = ()


class Axis(NamedTuple):
    """Holds what lies along the panels."""

    name: str
    title: str
    ticks: Sequence[str] | None = None
    """The names of the places 0, 1, …; None for numbers."""


def over_setting(
    panels: Sequence[Panel],
    labels: Sequence[str],
    axis: Axis,
    name: str,
    columns: int = COLUMNS,
) -> Picture | None:
    """Draws metrics over a setting, a line for each of `labels`; None without any panel.

    Means with their intervals, and beside them a small dot for each seed.
    """
    if not panels:
        return None
    alike = {p.metric: [q for q in panels if q.metric is p.metric] for p in panels}

    def draw(panel):
        return lambda axes: _draw_setting(
            axes, panel, labels, axis, alike[panel.metric]
        )

    return _draw_panels(name, labels, list(map(draw, panels)), columns)


def _draw_setting(axes, panel, labels, axis, alike):
    spots = []
    scale = panel.metric.scale
    for row, (label, points) in enumerate(zip(labels, panel.lines, strict=True)):
        of_label = f"{short_label(label)}, " if label else ""
        # What belongs to several lines at one value stands beside each other.
        points_aside = 3.5 * (row - (len(labels) - 1) / 2)
        inches = axes.figure.dpi_scale_trans
        beside = ScaledTranslation(points_aside / 72, 0, inches)
        at = dict(transform=axes.transData + beside)
        colour, _ = line_style(row)
        texts = []
        for point in points:
            low, high = scale * point.low, scale * point.high
            value = f"{point.x:g}" if axis.ticks is None else axis.ticks[int(point.x)]
            text = f"{of_label}{axis.name}={value}: {scale * point.y:.4g}"
            if high > low:
                axes.vlines(point.x, low, high, color=colour, linewidth=0.9, **at)
                text += f" [{low:.4g}, {high:.4g}]"
            texts.append(text)
            seeds = [scale * seed for seed in point.seeds]
            dots = dict(marker="o", markersize=2.6, linestyle="", alpha=0.55)
            dots |= dict(color=colour, markeredgewidth=0)
            axes.add_line(Line2D([point.x] * len(seeds), seeds, **dots, **at))
        xs = [point.x for point in points]
        ys = [scale * point.y for point in points]
        if axis.ticks is None:
            spots += _add_line(axes, xs, ys, row, texts, 1.2, 3.5)
        else:
            # A line between names would say that there is something between them.
            dash = dict(color=colour, marker="_", markersize=9, linestyle="")
            axes.add_line(Line2D(xs, ys, markeredgewidth=2, **dash, **at))
            spots += [Spot(axes, *spot) for spot in zip(xs, ys, texts, strict=True)]
    _set_scales(axes, panel, axis, alike)
    return spots


def _set_scales(axes, panel, axis, alike):
    """Sets the scales, of the panels of a metric all alike."""
    metric = panel.metric
    points = [point for each in alike for line in each.lines for point in line]
    xs = sorted({point.x for point in points})
    means = [metric.scale * point.y for point in points]
    seeds = [metric.scale * seed for point in points for seed in point.seeds]
    levels = [metric.scale * level.value for each in alike for level in each.levels]
    shown = [*means, *seeds, *levels]
    # Intervals are within the axes, but for single ones that would hide all others.
    bars = [(point.low, point.high) for point in points if point.high > point.low]
    usual = np.median([high - low for low, high in bars]) if bars else 0.0
    for low, high in bars:
        if high - low <= _LONGEST_BAR * usual:
            shown += [metric.scale * low, metric.scale * high]
    axes.dataLim.set_points(np.array([[xs[0], min(shown)], [xs[-1], max(shown)]]))
    axes.margins(0.06 if axis.ticks is None else 0.5 / max(1, len(axis.ticks) - 1))
    if axis.ticks is None:
        # Values that double are evenly apart on a log scale.
        if min(xs) > 0 and max(xs) >= 4 * min(xs):
            axes.set_xscale("log")
        marked = [xs[i] for i in thinned(len(xs), 10)]
        axes.set_xticks(marked, [f"{x:g}" for x in marked])
        axes.set_xticks([], minor=True)
    else:
        is_wide = sum(map(len, axis.ticks)) > _WIDEST_TICKS
        turned = (
            dict(rotation=35, ha="right", rotation_mode="anchor") if is_wide else {}
        )
        axes.set_xticks(range(len(axis.ticks)), axis.ticks, **turned)
    if metric is PERPLEXITY:
        use_log_scale(axes, "y")
    axes.autoscale_view()
    for level in panel.levels:
        at = metric.scale * level.value
        axes.axhline(at, color="#808080", linewidth=0.9, linestyle=":")
        beside = dict(transform=axes.get_yaxis_transform(), color="#808080")
        axes.text(0.995, at, level.name, fontsize=7, ha="right", va="bottom", **beside)
    unit = f", {metric.unit}" if metric.unit else ""
    of_metric = f"{metric.name}{unit}"
    named = (
        dict(title=panel.title, ylabel=of_metric)
        if panel.title
        else dict(title=of_metric)
    )
    axes.set(xlabel=axis.title, **named)
