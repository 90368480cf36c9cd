"""Reads metrics.jsonl back: one JSON object a line, with its step and its split."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.errors import few

ENDED = ("finished", "diverged")
"""The statuses in result.json of a trial that is not run again."""

# The largest integer of int64, which table formats have.
LARGEST_STEP = 2**63 - 1


class MetricFile(NamedTuple):
    """Holds the whole lines, in their order, and the fault of the others."""

    lines: list[dict[str, Any]]
    damage: str
    """Which lines are no metrics; empty where all are."""


def read_metrics(path: Path) -> MetricFile:
    """Reads a metrics.jsonl, or none.

    A last line that a kill cut off is left out in silence: its steps are made again.
    """
    try:
        rows = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return MetricFile([], "")
    except OSError as error:
        return MetricFile([], error.strerror or str(error))
    lines = []
    damaged = []
    for number, row in enumerate(rows, start=1):
        line = _line_of(row)
        if line is not None:
            lines.append(line)
        elif number < len(rows):
            damaged.append(number)
    return MetricFile(lines, _described(damaged))


def _line_of(row) -> dict[str, Any] | None:
    """Returns a line of metrics, None for anything else."""
    try:
        line = json.loads(row)
    except ValueError:
        return None
    if not isinstance(line, dict) or not isinstance(line.get("split"), str):
        return None
    step = line.get("step")
    is_step = type(step) is int and 0 <= step <= LARGEST_STEP
    return line if is_step else None


def is_number(value: object) -> bool:
    """Returns whether a value is a number in JSON."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _described(numbers: Sequence[int]) -> str:
    """Names lines: "lines 3, 4, 7 and 12 more are no metrics"."""
    if not numbers:
        return ""
    if len(numbers) == 1:
        return f"line {numbers[0]} is no metrics"
    return f"lines {few(numbers)} are no metrics"
