"""Chooses how a group of trials is run: one by one, in several processes, or as lanes.

On CPU cores lanes share their caches, and processes of one core each do not wait for each
other: they take 0.6 to 0.8 of the time, and nothing is measured. On an accelerator a small
model does not fill the device, and lanes do; how many are best depends on the model.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from experiments.errors import UserError
from experiments.system.machine import Machine
from experiments.training.speed import Measured

WORTH = 150.0
"""Layouts are measured if all trials take this many seconds for each: ten times as long."""

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

    On a CPU a process for each core, at most `processes`, which may be more than the group's
    trials where other groups fill them. Elsewhere lanes, as many as there are trials, in whole
    numbers for each device, and one after another on all devices.
    """
    single = Layout("one after another", 1, 1)
    if machine.backend == "cpu" and machine.devices == 1:
        workers = min(machine.cores, trials if processes is None else processes)
        return [Layout("processes", workers, 1) if workers > 1 else single]
    # Each device takes as many lanes as the others, so numbers are for one device.
    for_all = min(-(-trials // machine.devices), MAX_LANES)
    quarter = -(-for_all // 4)
    counts = dict.fromkeys(machine.devices * n for n in (for_all, quarter))
    lanes = [Layout("lanes", 1, count) for count in counts if count > 1]
    return [*lanes, single] if trials > 1 else [single]


def choose(
    machine: Machine,
    steps: list[int],
    measure: Callable[[Layout], Measured | None],
    processes: int | None = None,
) -> Schedule:
    """Chooses the layout that ends first, for trials of these numbers of steps.

    `processes` is as in `layouts`. `measure(layout)` runs a few steps; where it returns None,
    as for want of memory, the layout is not taken.
    """
    first, *others = layouts(machine, len(steps), processes)
    if not others:
        return Schedule(first, "there is no other way")

    def timed(layout):
        measured = measure(layout)
        return seconds(layout, steps, measured) if measured else math.inf

    times = {first: timed(first)}
    if times[first] < WORTH * len(others):
        why = f"about {times[first]:.0f} s in all, too short to measure other ways"
        return Schedule(first, why)
    times |= {layout: timed(layout) for layout in others}
    best = min(times, key=times.get)
    listed = ", ".join(
        f"{layout.name} ({layout.lanes}) {time:.0f} s" for layout, time in times.items()
    )
    return Schedule(best, f"measured: {listed}")


def seconds(layout: Layout, steps: list[int], measured: Measured) -> float:
    """Returns the seconds until the last trial ends: compilation, and the longest lane.

    Trials go to lanes in their order, each to the lane that is free first.
    """
    places = [0] * layout.lanes
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
