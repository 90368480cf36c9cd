"""Draws the metrics of sentences by the length of their source."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from experiments.evaluation.metrics import METRICS, PERPLEXITY, Metric
from experiments.report.figures.style import (
    COLUMNS,
    Picture,
    Spot,
    add_legend,
    add_panels,
    finished,
    legend_height,
    panel_lines,
    short_label,
    styled,
    styled_line,
    use_log_scale,
)

PARTS = (0.5, 1, 1.5, 2, 3, 4)
"""Ends of buckets beyond training, in longest training sentences."""

BUCKETS = 6

Sentences = Mapping[str, np.ndarray]


def by_length(
    rows: Sequence[tuple[str, Sequence[Sentences]]],
    trained: int | None = None,
    metrics: Sequence[Metric] = METRICS,
) -> Picture | None:
    """Draws each metric in buckets of source length, a line for each row.

    Values are means over seeds. `rows` are (label, `results.read_sentences` of each seed).
    The buckets are the same for all rows: about as many sentences in each; or, where there
    are sentences beyond `trained`, the tokens of the longest in training, parts and multiples
    of that. A metric is drawn if all trials kept their sentences of it; None where no trial
    kept sentences.
    """
    has_sentences = lambda trial: "validation_nll" in trial
    rows = [(label, list(filter(has_sentences, seeds))) for label, seeds in rows]
    trials = list(itertools.chain(*[seeds for _, seeds in rows]))
    # All seeds of a row have the same sentences.
    firsts = [seeds[0]["validation_source"] for _, seeds in rows if seeds]
    buckets = length_buckets(np.concatenate(firsts), trained=trained) if firsts else []
    if not buckets:
        return None
    panels = [metric for metric in metrics if _is_drawn(metric, trials)]
    if not panels:
        return None
    lines = panel_lines(len(panels))
    width = 5.4 * min(len(panels), COLUMNS) + 1
    with styled():
        size = (width, lines * legend_height(len(rows) / lines))
        figure = Figure(figsize=size, layout="constrained")
        spots = []
        for axes, metric in zip(add_panels(figure, len(panels)), panels, strict=True):
            spots += _draw_panel(axes, metric, rows, buckets, trained)
        add_legend(figure, [label for label, _ in rows])
        return finished(figure, "by length", spots)


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


def _is_drawn(metric, trials):
    if metric.of_sums is None:
        return False
    return all(metric.statistics(trial) is not None for trial in trials)


def _draw_panel(axes, metric, rows, buckets, trained):
    """Draws a panel, and returns its spots."""
    names = [f"{a}–{b}" if a < b else str(a) for a, b in buckets]
    spots = []
    for row, (label, seeds) in enumerate(rows):
        if seeds:
            # Each seed by itself, because perplexity and BLEU are no means over
            # sentences.
            values = [bucket_values(metric, trial, buckets) for trial in seeds]
            mean = np.mean(values, axis=0)
            options = dict(linewidth=1.1, marker="o", markersize=3)
            axes.add_line(styled_line(range(len(buckets)), mean, row, **options))
            for i, (name, value) in enumerate(zip(names, mean, strict=True)):
                text = f"{short_label(label)}, {name} tokens: {value:.4g}"
                spots.append(Spot(axes, i, value, text))
    axes.autoscale_view()
    if metric is PERPLEXITY:
        use_log_scale(axes, "y")
    beyond = [
        i for i, (_, longest) in enumerate(buckets) if trained and longest > trained
    ]
    if beyond:
        axes.axvline(beyond[0] - 0.5, color="0.6", linewidth=0.8, linestyle=":")
    unit = f", {metric.unit}" if metric.unit else ""
    axes.set(
        title=f"{metric.name} on the {metric.split} set{unit}",
        xlabel="tokens of the source, end mark included",
        xticks=range(len(buckets)),
        xticklabels=names,
    )
    return spots
