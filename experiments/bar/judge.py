"""Says whether an entry beats another, from the runs of both; a pure function of them."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from experiments.bar import rules
from experiments.stats import wins
from experiments.stats.summary import holm

Runs = Mapping[str, Mapping[int, float]]
"""{task: {seed: value}}, larger values better, −inf for a run that diverged."""


class Verdict(NamedTuple):
    """Holds what a comparison says."""

    share: float
    """The share of wins, by the rules' weights of tasks; 0.5 for equals."""
    low: float
    high: float
    """The interval of the share, of 98 %."""
    p: wins.PValues
    word: str
    """better, worse or undecided."""
    tasks: Mapping[str, str]
    """The same of each task; of all together at most 1 % in error in each direction."""


def judge(ours: Runs, theirs: Runs, tasks: Sequence[rules.Task]) -> Verdict:
    """Compares the runs that an entry has with all of the other's.

    Before the last of the rules' looks an entry can only be worse.

    Raises:
      ValueError: one of them has no run of a task.
    """
    compared = {}
    for task in tasks:
        sides = [[*side.get(task.name, {}).values()] for side in (ours, theirs)]
        if not all(sides):
            raise ValueError(f"there is no run of {task.name}: nothing can be compared")
        compared[task.name] = wins.Contest(*sides, weight=task.weight)
    seeds = min(len(task.ours) for task in compared.values())
    looks = [at for at in rules.LOOKS if at <= seeds]
    worse = rules.LOOKS[max(looks)] if looks else 0.0
    better = rules.LEVEL if seeds >= max(rules.LOOKS) else 0.0
    together = [*compared.values()]
    p = wins.p_values(together)
    # Of all tasks together, each way.
    of_tasks = zip(*[wins.p_values([task]) for task in together], strict=True)
    corrected = zip(*map(holm, of_tasks), strict=True)
    return Verdict(
        wins.average(together),
        *wins.interval(together, 1 - 2 * rules.LEVEL),
        p,
        _word(p.better <= better, p.worse <= worse),
        {
            name: _word(up <= better, down <= worse)
            for name, (up, down) in zip(compared, corrected, strict=True)
        },
    )


def is_hopeless(
    ours: Runs, opponents: Sequence[Runs], tasks: Sequence[rules.Task]
) -> bool:
    """Whether an entry is worse than all of some others already."""
    return all(judge(ours, theirs, tasks).word == "worse" for theirs in opponents)


def first_seeds(runs: Runs, count: int) -> Runs:
    """Returns the runs of the first seeds."""
    return {
        task: {seed: x for seed, x in by_seed.items() if seed < count}
        for task, by_seed in runs.items()
    }


class Standing(NamedTuple):
    """Holds what an entry was judged to be when it came."""

    record: str
    """The name of the record that stood."""
    against_record: Verdict | None
    """None for the first entry, which is base."""
    against_base: Verdict | None

    @property
    def is_record(self) -> bool:
        """Whether it became the record."""
        return self.against_record is None or self.against_record.word == "better"


def standings(
    entries: Mapping[str, Runs], tasks: Sequence[rules.Task]
) -> dict[str, Standing]:
    """Judges entries in the order in which they came, of which the first is base."""
    found = {}
    base = record = ""
    for name, runs in entries.items():
        if not base:
            base = record = name
            found[name] = Standing(name, None, None)
            continue
        against_base = judge(runs, entries[base], tasks)
        against = (
            against_base if record == base else judge(runs, entries[record], tasks)
        )
        found[name] = Standing(record, against, against_base)
        if found[name].is_record:
            record = name
    return found


def oriented(value: float | None, task: rules.Task) -> float:
    """Returns a value of the task's metric so that larger is better; None is worst."""
    if value is None or not math.isfinite(value):
        return -math.inf
    return task.better * value


def _word(better, worse):
    return "better" if better else "worse" if worse else "undecided"
