"""What launch.sweep --dry_run prints: the trials there are, and what they will take."""

from typing import NamedTuple

from experiments.errors import few
from experiments.settings import SettingsError
from experiments.sweep import estimate
from experiments.sweep.plan import check_all, group_trials
from experiments.sweep.tuning import costliest, trials_to_run
from experiments.system import machine
from experiments.system.compiler import check_target
from experiments.system.console import print_line
from experiments.trial import cost

SHOWN = 50
"""Points, and groups, that are printed."""


class Target(NamedTuple):
    """Holds what else than this machine a sweep is meant for."""

    nodes: int = 0
    """Of a cluster, for each trial; 0 for none."""
    device: str | None = None
    """What each group is compiled for, as v5e-4."""


def dry_run_tuned(rows, console, target=Target()):
    """Prints a tuned sweep; its compared trials are estimated at their costliest values."""
    chosen = [None] * len(rows)
    later = costliest(rows)
    dry_run(trials_to_run(rows, chosen), console, later, target)
    names = few((row.name for row in rows), SHOWN)
    print_line(
        console,
        f"{len(later)} of them are compared trials, which depend on what the tuning trials "
        f"choose, of {names}; they are counted at the values that take longest, and a "
        "row that is best at its own values needs none of them",
    )


def dry_run(planned, console, later=(), target=Target(), lists_points=True):
    """Builds each trial by shape, and prints what there is and what it will take.

    Trials that are not known yet stand in `later` for what they take. With `lists_points`
    the settings of the first trials are printed.
    """
    if target.device is not None:
        check_target(target.device)
    check_all(planned)
    every = [*planned, *later]
    groups = group_trials(every)
    estimates = estimate.estimate_all(every)
    # A single trial has no point to show.
    if lists_points and len(planned) > 1:
        _print_points(planned, console)
    if not console.is_terminal:
        # A file has no width, and 80 characters would cut the table.
        console.width = 160
    console.print(estimate.table(estimates, SHOWN))
    _print_rest(estimates, "groups", console)
    for reason in dict.fromkeys(line for each in estimates for line in each.unknown):
        print_line(console, f"unknown: {reason}")
    too_large = _too_large_here(groups)
    for group, error in too_large[:SHOWN]:
        print_line(console, f"not here: {group[0].label or group[0].name}: {error}")
    print_line(
        console,
        f"{len(every)} trials in {len(estimates)} groups, each builds; "
        f"{estimate.totals(estimates)}",
    )
    if target.nodes:
        alone = len(every) - sum(len(group) for group, _ in too_large)
        hours = _node_hours(estimates, target.nodes, alone)
        print_line(console, hours)
    if target.device is not None:
        _print_fits(target.device, groups, console)
    until_flat = sum(trial.settings.training.until == "flat" for trial in every)
    if until_flat:
        print_line(
            console,
            f"{until_flat} of these trials end when their validation perplexity has stopped "
            "falling (training.until=flat): FLOPs and time are the most they may take",
        )


def _print_points(planned, console):
    for trial in planned[:SHOWN]:
        print_line(
            console, f"{_role_text(trial)}{trial.label or trial.name:40} {trial.point}"
        )
    _print_rest(planned, "points", console)


def _too_large_here(groups):
    """Returns (group, why) of each whose trials do not fit; another machine may be meant."""
    found = []
    for group in groups:
        try:
            cost.check_memory(group[0].settings, machine.here())
        except SettingsError as error:
            found.append((group, error))
    return found


def _print_fits(device, groups, console):
    # Not at the top: few ask for it.
    from launch.fit import fits

    for line in fits(device, groups[:SHOWN]):
        print_line(console, line)
    _print_rest(groups, "groups", console)


def _node_hours(estimates, nodes, alone):
    """Says what a cluster's nodes take; `alone` trials need but one.

    Of several nodes, each does a share of every batch.
    """
    times = [group.seconds for group in estimates]
    hours = f"{sum(times) / 3600:.2g}" if None not in times else estimate.UNKNOWN
    text = f"{hours} node-hours by the speed of this machine"
    if nodes == 1:
        return text
    text += f", beside what the {nodes} nodes of a trial tell each other at each step"
    if alone:
        text += (
            f"; {alone} trials fit on one node like this machine: with --nodes=1 nodes "
            "tell each other nothing, and train as many trials at a time as lanes allow"
        )
    return text


def _role_text(trial):
    return f"{trial.role}: " if trial.role else ""


def _print_rest(shown, what, console):
    if len(shown) > SHOWN:
        print_line(console, f"… and {len(shown) - SHOWN} more {what}")
