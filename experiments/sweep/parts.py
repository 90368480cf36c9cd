"""Cuts the plan of a sweep into parts, for machines that share no directory.

Each machine plans the whole sweep and takes its part; the parts depend on the plan alone.
"""

import re
from typing import NamedTuple

from experiments.errors import UserError
from experiments.sweep.plan import Trial, group_trials
from experiments.trial.cost import flops_of_a_step

TOLERANCE = 0.1
"""How much less equal parts may be, as a share of a part, where that cuts no group."""


class Part(NamedTuple):
    """Names one of `count` parts, `number` from 1 on."""

    number: int
    count: int


def read_part(text: str) -> Part:
    """Returns the part that --part names, as 3/20. Raises UserError for anything else."""
    # [0-9] and a bound, as int() takes other digits too, and fails at thousands of them.
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    if not match:
        raise UserError(
            f"--part={text}: write which part of how many, as 3/20 for the third of twenty"
        )
    part = Part(*map(int, match.groups()))
    if not 1 <= part.number <= part.count:
        last = max(1, part.count)
        raise UserError(f"--part={text}: parts go from 1/{last} to {last}/{last}")
    return part


def trials_of(part: Part, planned: list[Trial]) -> list[Trial]:
    """Returns the trials of one part, in the order of the plan.

    Each trial is in exactly one part. Trials that can be lanes of one program stand beside
    each other in a line, and the line is cut where parts come nearest to equal FLOPs of
    training, and between two groups where that is nearly as equal. No part is empty while
    there are trials enough.
    """
    line = []
    works = []
    ends = []
    for group in group_trials(planned):
        step = flops_of_a_step(group[0].settings)
        line += group
        works += [step * trial.settings.training.steps for trial in group]
        ends += [False] * (len(group) - 1) + [True]
    cut = 0
    for parts_left in range(part.count, part.count - part.number, -1):
        start = cut
        if start == len(line):
            return []
        cut += _length_of_first(works[start:], ends[start:], parts_left)
    chosen = {id(trial) for trial in line[start:cut]}
    return [trial for trial in planned if id(trial) in chosen]


def _length_of_first(works, ends, parts):
    """Returns how many trials the first of `parts` parts has.

    `ends` says of each trial whether it is the last of its group.
    """
    share = sum(works) / parts
    # Every later part has one trial at least.
    most = max(1, len(works) - parts + 1)
    lacks = []
    taken = 0
    for work, is_end in zip(works[:most], ends, strict=False):
        taken += work
        lacks.append(abs(taken - share) - (TOLERANCE * share if is_end else 0))
    return 1 + lacks.index(min(lacks))
