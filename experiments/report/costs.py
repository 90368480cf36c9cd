"""The costs of rows beside their quality: arithmetic, time, speed and memory."""

from typing import NamedTuple

from experiments.report.rows import Row
from experiments.stats.summary import Summary

UNKNOWN = "unknown"
"""For what a run could not count, as the FLOPs of a model that does not state its products."""


class Cost(NamedTuple):
    """Holds one number of a result.json that measures what a trial took."""

    key: str
    heading: str
    """The heading of its column, with the unit."""
    scale: float = 1.0
    """The factor by which values are multiplied when they are shown."""

    def text_of_row(self, row: Row) -> str:
        """Formats a row's mean, or returns UNKNOWN; "" before any trial ended."""
        if summary := row.summary(self.key):
            return self.text(summary)
        return UNKNOWN if row.finished else ""

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
