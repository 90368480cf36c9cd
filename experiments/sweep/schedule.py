"""How a group of trials is run: one after another, in several processes at once, or as lanes of one program.

Which is fastest depends on the machine and the model. On an accelerator a small model does not fill the device, and
lanes do; on CPU cores lanes share their caches, and processes of one core each do not wait for each other. What is
not worth measuring is guessed so.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from experiments.system.machine import Machine
from experiments.training.speed import Measured

MEASURING = 15.0
"""About how many seconds it takes to measure a way: compilation, and a few steps."""


WORTH = 10
"""Ways are measured where all is guessed to take this many times as long as that."""


CPU_LANES = 4
"""Lanes that are tried on a CPU; more need more memory than its caches have."""


MOST_LANES = 64
"""For one device."""


class Way(NamedTuple):
    """`lanes` trials at a time in each of `workers` processes."""

    name: str
    workers: int
    lanes: int

    def threads(self, machine: Machine) -> int:
        """Of each process: XLA's own on a CPU; on an accelerator they do nothing."""
        return max(1, machine.cores // self.workers) if machine.backend == "cpu" else 1


class Schedule(NamedTuple):
    """The way that was chosen, and why, in a few words."""

    way: Way
    why: str


def ways(machine: Machine, trials: int) -> list[Way]:
    """The ways to run `trials` trials, the likely best first.

    One after another on all devices or cores; on CPU a process for each core too; lanes, as many as there are trials,
    in whole numbers for each device.
    """
    one = Way("one after another", 1, 1)
    if trials == 1:
        return [one]
    if machine.backend == "cpu" and machine.devices == 1:
        processes = Way("processes", min(machine.cores, trials), 1)
        lanes = Way("lanes", 1, min(trials, CPU_LANES))
        return [processes, one, lanes] if machine.cores > 1 else [one, lanes]
    each = min(-(-trials // machine.devices), MOST_LANES)
    counts = dict.fromkeys(machine.devices * n for n in (each, -(-each // 4)))
    return [*(Way("lanes", 1, count) for count in counts if count > 1), one]


def choose(
    machine: Machine,
    steps: list[int],
    guess: float | None,
    measure: Callable[[Way], Measured | None],
) -> Schedule:
    """The way that ends first, for trials of these numbers of steps; `guess` is how many seconds they may take.

    Without a guess the likely best way is measured for it. `measure(way)` runs a few steps; None, as for want of
    memory, and the way is not taken.
    """
    first, *others = ways(machine, len(steps))
    if not others:
        return Schedule(first, "there is no other way")

    def timed(way):
        measured = measure(way)
        return seconds(way, steps, measured) if measured else math.inf

    found = {}
    if guess is None:
        guess = found[first] = timed(first)
    if guess < WORTH * MEASURING * len(others):
        return Schedule(
            first, f"about {guess:.0f} s in all, too short to measure other ways"
        )
    for way in (first, *others):
        found[way] = found[way] if way in found else timed(way)
    best = min(found, key=found.get)
    listed = ", ".join(
        f"{way.name} ({way.workers} × {way.lanes}) {taken:.0f} s"
        for way, taken in found.items()
    )
    return Schedule(best, f"measured: {listed}")


def seconds(way: Way, steps: list[int], measured: Measured) -> float:
    """Until the last trial ends: compilation, and the longest that any place of a way has to do.

    Trials go to places in their order, each to the place that is free first.
    """
    places = [0] * (way.workers * way.lanes)
    for count in steps:
        places[places.index(min(places))] += count
    return measured.compile + max(places) * measured.step


def by_hand(machine: Machine, workers: int, lanes: int) -> Way | None:
    """The way that a person asked for, 0 being no wish; None where there is no wish at all.

    Raises ValueError for lanes that do not split over the devices.
    """
    if not workers and not lanes:
        return None
    if lanes > 1 and lanes % machine.devices:
        raise ValueError(
            f"--lanes={lanes} must be divisible by the number of devices, {machine.devices}"
        )
    return Way("as asked", workers or 1, lanes or 1)
