"""Shows what rows cost beside how good they are: arithmetic, time, speed and memory."""

from collections.abc import Sequence
from typing import NamedTuple

from experiments.evaluation.metrics import PERPLEXITY, Metric
from experiments.report.comparison import Row
from experiments.report.figures.scatter import Panel, scatter
from experiments.report.figures.style import Picture
from experiments.report.statistics import Group, Summary

UNKNOWN = "unknown"
"""For what a run could not say, as the FLOPs of a model that does not state its products."""


class Cost(NamedTuple):
    """Holds one number of a result.json that says what a trial took."""

    key: str
    heading: str
    """The heading of its column, with the unit."""
    scale: float = 1.0
    """The factor by which values are multiplied when they are shown."""

    def text_of_row(self, group: Group) -> str:
        """Formats a row's mean, says that it is unknown, or is empty before any trial ended."""
        if summary := group.summary(self.key):
            return self.text(summary)
        return UNKNOWN if group.finished else ""

    def text(self, summary: Summary) -> str:
        """Formats the mean over seeds with three digits."""
        value = self.scale * summary.mean
        # Large numbers are easier to compare with all their digits than as 1.23e+04.
        return f"{value:,.0f}" if 100 <= abs(value) < 1e9 else f"{value:#.3g}"


COSTS = (
    Cost("training_flops", "training TFLOPs", 1e-12),
    Cost("seconds", "seconds"),
    Cost("tokens_per_second", "tokens/s"),
    Cost("peak_memory", "peak memory, MiB", 2**-20),
)
"""FLOPs are the arithmetic that the model needs (`experiments.trial.flops`), seconds those of
training and its evaluations, memory that of the process or device: lanes share it, and a
process that trains trials one after another keeps some of what the first ones took."""

NOTE = (
    "cost: means over seeds; training TFLOPs: what the model’s arithmetic needs, forward and "
    "backward; seconds: training with its evaluations; peak memory: of the device or, on a "
    "CPU, of the process, with the trials side by side in it and what those before left there"
)


def quality_and_cost(
    labels: Sequence[str], rows: Sequence[Row], metrics: Sequence[Metric]
) -> Picture | None:
    """Draws the first metric that rows have over each of COSTS in which they differ."""
    for metric in metrics:
        means = [row.group.summary(metric.key) for row in rows]
        if any(means):
            break
    else:
        return None
    ys = [_scaled(mean, metric.scale) for mean in means]
    panels = []
    for cost in COSTS:
        points = []
        for label, row, y in zip(labels, rows, ys, strict=True):
            x = _scaled(row.group.summary(cost.key), cost.scale)
            points.append((label, x, y))
        least = 1.0 if metric is PERPLEXITY else 0.0
        panels.append(Panel(metric.heading, cost.heading, points, least))
    return scatter(panels, "quality and cost")


def _scaled(summary, factor):
    if summary is None:
        return None
    spread = None if summary.spread is None else factor * summary.spread
    return Summary(factor * summary.mean, spread, summary.n)
