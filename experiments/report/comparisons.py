"""Puts what a table compares into records, one for each pair of rows and metric."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from experiments.evaluation.metrics import Metric
from experiments.report.questions import Question
from experiments.report.rows import Row

NUMBERS = (
    "mean",
    "base_mean",
    "difference",
    "low",
    "high",
    "p",
    "d",
    "would_have_shown",
)
"""The columns that hold numbers, beside counts and seeds' values."""


def comparison_records(
    rows: Sequence[Row],
    metrics: Sequence[Metric],
    question: Question,
    pairs: Sequence[Row] | None = None,
) -> list[dict[str, Any]]:
    """Returns {column: value} of each compared row and metric, in the table's order.

    `pairs` are what was compared, with bases among `rows`; None for the rows.

    Numbers are in the unit that tables have (`unit`, as "%"), and not rounded; None for
    none. `values` and `base_values` are those of seeds, in the order of `seeds` and
    `base_seeds`. `low` and `high` of all records hold at once with 95 % probability, and `p`
    is corrected for all of them.
    """
    records = []
    for row in rows if pairs is None else pairs:
        if row.base is None or not row.verdicts:
            continue
        base = rows[row.base]
        for metric in metrics:
            if verdict := row.verdicts.get(metric.key):
                record = dict(question=question.text, row=row.name, base=base.name)
                record |= dict(row.settings)
                record |= dict(metric=metric.key, unit=metric.unit)
                record |= _numbers(row, base, metric)
                record |= dict(verdict=verdict.words, more_seeds=verdict.more_seeds)
                record |= dict(needs=verdict.needs)
                records.append(record)
    return records


def _numbers(row, base, metric):
    seeds, values = _values(row, metric)
    base_seeds, base_values = _values(base, metric)
    found = row.differences.get(metric.key)
    numbers: dict[str, Any] = dict.fromkeys(NUMBERS)
    numbers |= dict(mean=_mean(values), base_mean=_mean(base_values))
    if found is not None:
        raw = dataclasses.asdict(found)
        numbers |= {
            name: _finite(metric.scale * raw[own])
            for name, own in {
                "difference": "mean",
                "low": "low",
                "high": "high",
                "would_have_shown": "detectable",
            }.items()
        }
        numbers |= dict(p=found.p, d=_finite(found.d))
    counts = dict(runs=len(values), base_runs=len(base_values))
    of_seeds = dict(seeds=seeds, values=values)
    return (
        numbers
        | counts
        | of_seeds
        | dict(base_seeds=base_seeds, base_values=base_values)
    )


def _values(row, metric):
    """Returns the seeds of a row's finished trials, and their scores."""
    scored = [t for t in row.finished if t.result.get(metric.key) is not None]
    values = [_finite(metric.scale * trial.result[metric.key]) for trial in scored]
    return [trial.seed for trial in scored], values


def _mean(values):
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _finite(value):
    """Returns a number that JSON has, None for one that is infinite."""
    return float(value) if math.isfinite(value) else None
