"""Chooses how a group of trials is run: one by one, in several processes, or as lanes.

Which is fastest depends on the machine and the model. On an accelerator a small model does
not fill the device, and lanes do; on CPU cores lanes share their caches, and processes of
one core each do not wait for each other. What is not worth measuring is guessed so.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from experiments.errors import UserError
from experiments.system.machine import Machine
from experiments.training.speed import Measured

MEASURING = 15.0
"""Seconds that it takes to measure a layout, about: compilation, and a few steps."""

WORTH = 10
"""Layouts are measured if all trials are guessed to take this many times as long."""

CPU_LANES = 4
"""Lanes that are tried on a CPU; more need more memory than its caches have."""

MAX_LANES = 64
"""The most lanes of one device."""


class LanesError(UserError):
    """Raised for --lanes that do not split over the devices."""


class Layout(NamedTuple):
    """Holds how trials share a machine: `lanes` at a time in each of `workers` processes."""

    name: str
    workers: int
    lanes: int

    def threads(self, machine: Machine) -> int:
        """Returns the threads of each process: XLA's own, which compute on a CPU alone.

        For any device they compile: a GPU's compiler tries out kernels with all of them.
        """
        return max(1, machine.cores // self.workers)


class Schedule(NamedTuple):
    """Holds the layout that was chosen, and why, in a few words."""

    layout: Layout
    why: str


def layouts(
    machine: Machine, trials: int, processes: int | None = None
) -> list[Layout]:
    """Returns the layouts to run the `trials` trials of a group, the likely best first.

    One after another on all devices or cores; on a CPU a process for each core too, at most
    `processes`, which may be more than the group's trials where other groups fill them;
    lanes, as many as there are trials, in whole numbers for each device.
    """
    single = Layout("one after another", 1, 1)
    if machine.backend == "cpu" and machine.devices == 1:
        workers = min(machine.cores, trials if processes is None else processes)
        lanes = Layout("lanes", 1, min(trials, CPU_LANES))
        found = [Layout("processes", workers, 1)] if workers > 1 else []
        return [*found, single, lanes] if trials > 1 else [*found, single]
    if trials == 1:
        return [single]
    # Each device takes as many lanes as the others, so numbers are for one device.
    for_all = min(-(-trials // machine.devices), MAX_LANES)
    quarter = -(-for_all // 4)
    counts = dict.fromkeys(machine.devices * n for n in (for_all, quarter))
    return [*(Layout("lanes", 1, count) for count in counts if count > 1), single]


def choose(
    machine: Machine,
    steps: list[int],
    guess: float | None,
    measure: Callable[[Layout], Measured | None],
    processes: int | None = None,
) -> Schedule:
    """Chooses the layout that ends first, for trials of these numbers of steps.

    `processes` is as in `layouts`. `guess` is how many seconds they may take; without it the
    likely best layout is measured. `measure(layout)` runs a few steps; where it returns
    None, as for want of memory, the layout is not taken.
    """
    schedule = without_measuring(machine, steps, guess, processes)
    if schedule is not None:
        return schedule
    first, *others = layouts(machine, len(steps), processes)

    def timed(layout):
        measured = measure(layout)
        return seconds(layout, steps, measured) if measured else math.inf

    times = {}
    if guess is None:
        guess = timed(first)
        times[first] = guess
        if schedule := _too_short(first, guess, others):
            return schedule
    for layout in (first, *others):
        if layout not in times:
            times[layout] = timed(layout)
    best = min(times, key=times.get)
    listed = ", ".join(
        f"{layout.name} ({layout.workers} × {layout.lanes}) {time:.0f} s"
        for layout, time in times.items()
    )
    return Schedule(best, f"measured: {listed}")


def without_measuring(
    machine: Machine,
    steps: list[int],
    guess: float | None,
    processes: int | None = None,
) -> Schedule | None:
    """Chooses as `choose` where nothing has to be measured for that; None elsewhere."""
    first, *others = layouts(machine, len(steps), processes)
    if not others:
        return Schedule(first, "there is no other way")
    return None if guess is None else _too_short(first, guess, others)


def _too_short(first, guess, others):
    # Each of the other ways would have to be measured.
    if guess < WORTH * MEASURING * len(others):
        why = f"about {guess:.0f} s in all, too short to measure other ways"
        return Schedule(first, why)
    return None


def seconds(layout: Layout, steps: list[int], measured: Measured) -> float:
    """Returns the seconds until the last trial ends: compilation, and the longest place.

    Trials go to places in their order, each to the place that is free first. Of more
    processes than trials others have the rest, and the trials only a share of the seconds.
    """
    if len(steps) < layout.workers:
        each = [measured.compile + count * measured.step for count in steps]
        return sum(each) / layout.workers
    # Steps that each place has to do; a place is a lane of a worker.
    places = [0] * (layout.workers * layout.lanes)
    for count in steps:
        places[places.index(min(places))] += count
    return measured.compile + max(places) * measured.step


def asked_by_user(machine: Machine, workers: int, lanes: int) -> Layout | None:
    """Returns the layout that flags ask for, 0 being no wish; None for no wish at all.

    Raises LanesError for lanes that do not split over the devices.
    """
    if not workers and not lanes:
        return None
    if lanes > 1 and lanes % machine.devices:
        raise LanesError(
            f"--lanes={lanes} must be divisible by the number of devices, "
            f"{machine.devices}"
        )
    return Layout("as asked", workers or 1, lanes or 1)
