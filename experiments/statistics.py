"""Seeds into numbers: trials that differ only in their seed form a group, and a group has a mean and a spread."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from experiments.ledger import Trial


@dataclasses.dataclass(frozen=True)
class Summary:
    """n values: x̄ = Σ xᵢ / n, and spread s = √(Σ (xᵢ − x̄)² / (n − 1)), None for one value."""

    mean: float
    spread: float | None
    n: int


@dataclasses.dataclass(frozen=True)
class Group:
    """The trials at one point of a sweep, whatever their seed and status."""

    point: Mapping[str, Any]
    trials: tuple[Trial, ...]

    @property
    def finished(self) -> tuple[Trial, ...]:
        return tuple(trial for trial in self.trials if trial.status == "finished")

    def summary(self, metric: str) -> Summary | None:
        """Of `metric` in the results of the finished trials; None where no result holds it."""
        values = [trial.result[metric] for trial in self.finished if trial.result.get(metric) is not None]
        return summarise(values) if values else None


def summarise(values: Iterable[float]) -> Summary:
    """Mean, sample standard deviation and number of `values`; a NaN or infinity among them shows in both.

    Raises ValueError for no values.
    """
    values = [float(value) for value in values]
    n = len(values)
    if n == 0:
        raise ValueError("no values to summarise")
    mean = sum(values) / n
    if n == 1:
        return Summary(mean, None, 1)
    return Summary(mean, math.sqrt(sum((x - mean) * (x - mean) for x in values) / (n - 1)), n)


def groups(trials: Iterable[Trial], point: Callable[[Trial], Mapping[str, Any]]) -> list[Group]:
    """`trials` with equal `point(trial)`, its seed left out, in the order in which each point first appears."""
    found: dict[frozenset, tuple[Mapping[str, Any], list[Trial]]] = {}
    for trial in trials:
        without_seed = {key: value for key, value in point(trial).items() if key != "seed"}
        found.setdefault(frozenset(without_seed.items()), (without_seed, []))[1].append(trial)
    return [Group(first, tuple(members)) for first, members in found.values()]
