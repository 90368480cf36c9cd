"""Checks a log: what it says of itself, and one seed of each task, trained again."""

import math
from collections.abc import Sequence

from experiments.bar import entry
from experiments.bar.logs import Log, LogError, Run
from experiments.stats import wins

LEVEL = 0.01
"""The probability with which an honest log is doubted, where no run comes out the same."""
SAME = 1e-3
"""The relative difference up to which two runs are the same."""


def check_parameters(log: Log, changes: entry.Changes) -> None:
    """Raises LogError where the entry has other parameters than its log says."""
    found = entry.parameters(log.about["size"], changes)
    if found != log.about["parameters"]:
        raise LogError(
            f"{log.directory}: its parameters are {found} here, and not "
            f"{log.about['parameters']}"
        )


def compare(log: Log, again: Sequence[Run]) -> tuple[list[str], bool]:
    """Returns lines on runs that were trained again, and whether they agree with the log.

    A run agrees that comes out the same. Those that do not are compared with all seeds of
    the log's, as one method's with another's: other machines round otherwise, and from other
    rounding another run comes, but of the same distribution.
    """
    chosen = log.chosen()
    values = log.values()
    tasks = {task.name: task for task in log.tasks}
    lines, others = [], []
    for run in again:
        task = tasks[run.task]
        before = chosen[run.task][run.seed].value
        is_same = math.isclose(run.value, before, rel_tol=SAME, abs_tol=SAME) or (
            math.isnan(run.value) and math.isnan(before)
        )
        lines.append(
            f"{run.task:15} {task.shown(before):8.3f} in the log, {task.shown(run.value):8.3f} "
            f"{task.unit} here{': the same' if is_same else ''}"
        )
        if not is_same:
            own = -math.inf if math.isnan(run.value) else task.better * run.value
            others.append(wins.Contest([own], [*values[run.task].values()]))
    if not others:
        return [*lines, "every run came out the same"], True
    p = wins.p_values(others)
    agrees = min(p) > LEVEL / 2
    lines.append(
        f"{len(again) - len(others)} of {len(again)} runs came out the same; the others "
        + ("are like" if agrees else "are NOT like")
        + f" those of the log (p = {min(1.0, 2 * min(p)):.3g})"
    )
    return lines, agrees
