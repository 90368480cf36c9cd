"""Gives seeds to the rows of a table where they decide, and judges it as often as it looks.

A sweep with `--seeds=auto` begins with two seeds of every row and looks at the table. Rows
that are undecided, and can still be decided within the budget, get the seeds up to the next
look; so does the base, which all are compared with. Each look l judges the whole table at a
level α_l of its own, such that the probability of any false verdict in any look is 5 % at
most; as looks at more of the same seeds are correlated, the α_l add up to more
(`group_sequential`). A verdict once given stays, with the numbers of its look.

The next plan follows from the results of all earlier looks alone, and so not from the order
in which trials end, nor from interruptions.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from experiments.stats.differences import MOST_SEEDS, Difference, Verdict
from experiments.stats.group_sequential import nominal_levels
from experiments.stats.summary import LEVEL


class Row(Protocol):
    """What a row of a judged table must have, by the keys of metrics: a dataclass."""

    base: int | None
    """The place of the row that it is compared with."""
    differences: Mapping[str, Difference]
    verdicts: Mapping[str, Verdict]


AnyRow = TypeVar("AnyRow", bound=Row)


class Look(NamedTuple):
    """Holds after how many seeds a table is looked at, and the level of its verdicts."""

    seeds: int
    level: float


SPENT = {2: 0.15, 3: 0.25, 5: 0.30, 8: 0.10, 12: 0.08, 20: 0.06, 30: 0.04, 50: 0.02}
"""By seeds at a look, the share of LEVEL that a first false verdict there may take.

Most tables end within the first three; later looks are for rows that are nearly decided.
"""
SEEDS = tuple(SPENT)


@functools.cache
def looks_of(comparisons: int) -> tuple[Look, ...]:
    """Returns the looks at a table of some comparisons, of all rows and metrics."""
    spent = [share * LEVEL for share in SPENT.values()]
    levels = nominal_levels(SEEDS, spent, max(comparisons, 1))
    return tuple(map(Look, SEEDS, levels))


class Budget(NamedTuple):
    """Holds what a sweep may cost in all: trials, or hours of training."""

    amount: float
    in_hours: bool = False


class Plan(NamedTuple):
    """Holds how many seeds each row is to have, and how many looks that makes."""

    seeds: tuple[int, ...]
    looks: int


def first_plan(rows: int) -> Plan:
    """Returns the plan before anything has run."""
    return Plan((SEEDS[0],) * rows, 1)


def judge(
    judge_at: Callable[[Look], Sequence[AnyRow]], looks: int, comparisons: int
) -> list[AnyRow]:
    """Returns the rows judged at each of the first `looks`, before any of them by no seed.

    `judge_at(look)` judges the first seeds of all rows, in some `comparisons`. A row has in
    each metric the verdict and the numbers of the look that decided, else those of the last.
    """
    rows = list(judge_at(Look(0, LEVEL)))
    for look in looks_of(comparisons)[:looks]:
        rows = list(map(_merged, rows, judge_at(look)))
    return rows


def _merged(earlier, later):
    verdicts = {k: v for k, v in earlier.verdicts.items() if v.is_decided}
    kept = {k: value for k, value in earlier.differences.items() if k in verdicts}
    return dataclasses.replace(
        later,
        differences={**later.differences, **kept},
        verdicts={**later.verdicts, **verdicts},
    )


def next_plan(
    ended: Sequence[set[int]],
    costs: Sequence[float],
    judge_at: Callable[[Look], Sequence[Row]],
    budget: float,
    interest: Mapping[str, float],
    comparisons: int,
) -> Plan:
    """Returns how many seeds each row is to have, as far as results decide it.

    `ended` has the seeds of each row's ended trials and `costs` what one more costs, in the
    unit of `budget`. Where a look is not complete, the plan is its own number of seeds;
    where nothing is left to decide, or to spend, it is what all rows have.
    """
    plan = first_plan(len(ended))
    while plan.looks < len(SEEDS):
        counted = zip(ended, plan.seeds, strict=True)
        if not all(set(range(count)) <= seeds for seeds, count in counted):
            return plan
        rows = judge(judge_at, plan.looks, comparisons)
        following = _following(plan, rows, costs, budget, interest)
        if following == plan.seeds:
            return plan
        plan = Plan(following, plan.looks + 1)
    return plan


def _following(plan, rows, costs, budget, interest):
    """Returns the seeds of each row at the next look, those of the plan where it is the last."""
    looked, following = SEEDS[plan.looks - 1], SEEDS[plan.looks]
    left = budget - sum(
        cost * count for cost, count in zip(costs, plan.seeds, strict=True)
    )
    seeds = list(plan.seeds)
    # A base whose rows are all decided needs no more.
    bases = {row.base for row in rows if _is_open(row, interest)}
    left -= sum(costs[i] * (following - seeds[i]) for i in sorted(bases))
    for i in _by_promise(rows):
        # A row with fewer seeds was left out of an earlier look.
        if i in bases or seeds[i] != looked:
            continue
        cost = costs[i] * (following - seeds[i])
        reach = seeds[i] + _more_trials(left, costs[i])
        if (
            cost <= left
            and _is_open(rows[i], interest)
            and _has_hope(rows[i], reach, interest)
        ):
            seeds[i] = following
            left -= cost
    if tuple(seeds) == plan.seeds:
        return plan.seeds
    return tuple(following if i in bases else count for i, count in enumerate(seeds))


def _is_open(row, interest):
    return bool(row.differences) and not is_decided(row, interest)


def is_decided(row: Row, interest: Mapping[str, float]) -> bool:
    """Returns whether a row needs no more seeds.

    With `interest`, all metrics that it names are decided; else any metric is.
    """
    decided = {key: verdict.is_decided for key, verdict in row.verdicts.items()}
    if interest:
        return all(decided.get(key, True) for key in interest)
    return any(decided.values())


def _by_promise(rows):
    """Returns the rows' places, those first that need the fewest more seeds."""

    def needed(i):
        seeds = [verdict.more_seeds for verdict in rows[i].verdicts.values()]
        return min(filter(None, seeds), default=MOST_SEEDS + 1), i

    return sorted(range(len(rows)), key=needed)


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
        margin = difference.margin
        if margin is not None and difference.half * factor <= margin:
            return True
    return False
