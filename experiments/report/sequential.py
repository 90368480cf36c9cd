"""Gives seeds to the rows of a table where they decide, and judges it as often as it looks.

A sweep with `--seeds=auto` begins with two seeds of every row and looks at the table. Rows
that are undecided, and can still be decided within the budget, get the seeds up to the next
look; so does the base, which all are compared with. Each look l judges the whole table at a
level α_l of its own, and the α_l add up to 5 %: the chance of any false verdict in any look
is 5 % at most, however the looks depend on each other (Bonferroni). A verdict once given
stays, with the numbers of its look.

What is next follows from the results of all earlier looks alone, and so not from the order
in which trials end, nor from interruptions.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from experiments.evaluation.metrics import METRICS, Metric
from experiments.report import comparison
from experiments.report.comparison import Row, compare
from experiments.report.results import TrialResult
from experiments.report.statistics import LEVEL, Group

Sentences = Callable[[TrialResult], Mapping[str, np.ndarray]]


class Look(NamedTuple):
    """Holds after how many seeds a table is looked at, and the level of its verdicts."""

    seeds: int
    level: float


# Most tables end within the first three; later looks are for rows that are nearly decided.
_SHARES = {2: 0.15, 3: 0.25, 5: 0.30, 8: 0.10, 12: 0.08, 20: 0.06, 30: 0.04, 50: 0.02}
LOOKS = tuple(Look(seeds, share * LEVEL) for seeds, share in _SHARES.items())


class Budget(NamedTuple):
    """Holds how much a sweep may take in all: trials, or hours of training."""

    amount: float
    in_hours: bool = False

    def cost(self, group: Group) -> float:
        """Returns what one more trial of a row costs: 1, or its mean hours."""
        if not self.in_hours:
            return 1.0
        seconds = [trial.result.get("seconds", 0.0) for trial in group.finished]
        return float(np.mean(seconds)) / 3600 if seconds else 0.0

    def spent(self, groups: Sequence[Group], counts: Sequence[int]) -> float:
        """Returns what the first `counts` seeds of each row have cost."""
        return sum(
            self.cost(group) * count
            for group, count in zip(groups, counts, strict=True)
        )


class Plan(NamedTuple):
    """Holds how many seeds each row is to have, and how many looks that makes."""

    seeds: tuple[int, ...]
    looks: int


def first_plan(rows: int) -> Plan:
    """Returns the plan before anything has run."""
    return Plan((LOOKS[0].seeds,) * rows, 1)


def next_plan(
    groups: Sequence[Group],
    sentences: Sentences,
    budget: Budget,
    metrics: Sequence[Metric] = METRICS,
    interest: Mapping[str, float] | None = None,
) -> Plan:
    """Returns how many seeds each row is to have, as far as results say.

    Where a look is not complete, that is its own number of seeds; where nothing is left to
    decide, or to spend, it is what all rows have.
    """
    interest = interest or {}
    plan = first_plan(len(groups))
    while _is_complete(groups, plan) and plan.looks < len(LOOKS):
        rows = judge(groups, sentences, plan.looks, metrics, interest)
        following = LOOKS[plan.looks].seeds
        left = budget.amount - budget.spent(groups, plan.seeds)
        seeds = list(plan.seeds)
        bases = _bases(groups, rows)
        left -= sum(budget.cost(groups[i]) * (following - seeds[i]) for i in bases)
        is_any = False
        for i in _by_promise(rows):
            if i in bases or seeds[i] != LOOKS[plan.looks - 1].seeds:
                # It was left out of an earlier look.
                continue
            cost = budget.cost(groups[i]) * (following - seeds[i])
            reach = seeds[i] + _more_trials(left, budget.cost(groups[i]))
            if (
                cost <= left
                and _is_open(rows[i], interest)
                and _has_hope(rows[i], reach, interest)
            ):
                seeds[i] = following
                left -= cost
                is_any = True
        if not is_any:
            return plan
        for i in bases:
            seeds[i] = following
        plan = Plan(tuple(seeds), plan.looks + 1)
    return plan


def _bases(groups, rows):
    """Returns the places of the groups that others are compared with."""
    bases = {id(row.base) for row in rows if row.differences}
    return [i for i, group in enumerate(groups) if id(group) in bases]


def judge(
    groups: Sequence[Group],
    sentences: Sentences,
    looks: int,
    metrics: Sequence[Metric] = METRICS,
    interest: Mapping[str, float] | None = None,
) -> list[Row]:
    """Returns the rows as `comparison.compare` does, judged at each of the first `looks`.

    A row has in each metric the verdict and the numbers of the look that decided, else
    those of the last.
    """
    # Before the first look nothing is judged.
    judged = _look(groups, sentences, Look(0, LEVEL), metrics, interest)
    for look in LOOKS[:looks]:
        rows = _look(groups, sentences, look, metrics, interest)
        judged = list(map(_merged, judged, rows))
    return judged


def _look(groups, sentences, look, metrics, interest):
    """Returns the rows of the groups, judged by their first seeds."""
    seen = [_first_seeds(group, look.seeds) for group in groups]
    rows = compare(seen, sentences, metrics, interest, look.level)
    whole = {id(part): group for part, group in zip(seen, groups, strict=True)}
    return [
        row._replace(group=group, base=whole.get(id(row.base)))
        for row, group in zip(rows, groups, strict=True)
    ]


def is_decided(row: Row, interest: Mapping[str, float]) -> bool:
    """Returns whether a row needs no more seeds.

    With `interest`, all metrics that it names are decided; else any metric is.
    """
    decided = {key: verdict.is_decided for key, verdict in row.verdicts.items()}
    if interest:
        return all(decided.get(key, True) for key in interest)
    return any(decided.values())


def _first_seeds(group, count):
    trials = tuple(
        trial for trial in group.trials if trial.seed is not None and trial.seed < count
    )
    return dataclasses.replace(group, trials=trials)


def _merged(earlier, later):
    differences = dict(later.differences)
    verdicts = dict(later.verdicts)
    ordering = dict(later.ordering)
    for key, verdict in earlier.verdicts.items():
        if not verdict.is_decided:
            continue
        verdicts[key] = verdict
        if key in earlier.differences:
            differences[key] = earlier.differences[key]
        if key in earlier.ordering:
            ordering[key] = earlier.ordering[key]
    return later._replace(differences=differences, verdicts=verdicts, ordering=ordering)


def _is_complete(groups, plan):
    """Returns whether each row has as many ended trials as it is to have."""
    for group, count in zip(groups, plan.seeds, strict=True):
        ended = {trial.seed for trial in group.trials if trial.status != "unfinished"}
        if not set(range(count)) <= ended:
            return False
    return True


def _by_promise(rows):
    """Returns the rows' places, those first that need the fewest more seeds."""

    def needed(i):
        seeds = [verdict.more_seeds for verdict in rows[i].verdicts.values()]
        known = [count for count in seeds if count]
        return min(known, default=comparison.MOST_SEEDS + 1), i

    return sorted(range(len(rows)), key=needed)


def _is_open(row, interest):
    return bool(row.differences) and not is_decided(row, interest)


def _more_trials(left, cost):
    return int(min(left / cost, 1000)) if cost > 0 else 1000


def _has_hope(row, seeds, interest):
    """Returns whether `seeds` seeds may decide the row in a metric that matters.

    That is, show the largest difference that its interval leaves, or have the interval lie
    within the interest.
    """
    for key in interest or row.differences:
        difference = row.differences.get(key)
        verdict = row.verdicts.get(key)
        if difference is None or verdict is None or verdict.is_decided:
            continue
        factor = difference.factor(seeds)
        largest = max(abs(difference.low), abs(difference.high))
        if difference.detectable * factor <= largest:
            return True
        half = (difference.high - difference.low) / 2
        if difference.margin is not None and half * factor <= difference.margin:
            return True
    return False
