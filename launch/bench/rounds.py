"""Times cases on the CPU, library against library.

Every library has a process of its own and one works at a time. For a case all are built, compiled, warmed and checked;
then turns go A B C A B C ..., so that what slows the machine for a while slows all of them.
"""

import contextlib
import dataclasses
import datetime
import math
import os
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import rich.console

from experiments import machine
from launch.bench import peers, timing
from launch.bench.grids import Grid, show
from launch.bench.peers import Unsupported
from launch.bench.workers import Failed, Worker

BUDGET = 20.0
"""Seconds that the turns of a case may take: slow cases get fewer rounds, but two."""
PAUSE = 0.02
"""Seconds before each turn, in which the threads of the last one come to rest."""
BASE = "attn"


@dataclasses.dataclass
class Cell:
    """What came of one case on one peer."""

    status: str = "timed"
    """Or "left out", "unsupported", "failed", "wrong"; then `why` says why."""
    why: str = ""
    error: float | None = None
    """By the case's own measure."""
    temporary_bytes: int | None = None
    """By the compiler's account; None where there is none."""
    growth_bytes: int | None = None
    """By how much the process's memory peaks in a call, less the results."""
    by_hand: bool = False
    calls: int = 0
    """In each turn."""
    turn: float = 0.0
    """Seconds that a turn was expected to take."""
    seconds: list[float] = dataclasses.field(default_factory=list)
    """Of one call, a number for each round."""

    @property
    def median(self) -> float | None:
        return statistics.median(self.seconds) if self.status == "timed" and self.seconds else None

    @property
    def memory(self) -> int | None:
        """Bytes beside arguments and results: the larger of both accounts, as each misses something.

        The compiler's misses the work space of XLA's matrix products; the growth, what the allocator kept since the
        last call.
        """
        known = [x for x in (self.temporary_bytes, self.growth_bytes) if x is not None]
        return max(known) if self.status == "timed" and known else None


@contextlib.contextmanager
def workers(command: str, names: list[str]) -> Iterator[dict[str, Worker]]:
    """A worker for each peer that is installed; they end with the context."""
    modules = {name: peers.ADAPTERS[command][name] for name in names}
    found = {name: Worker(module, name, threads()) for name, module in modules.items() if peers.installed(module)}
    try:
        yield found
    finally:
        for worker in found.values():
            worker.stop()


def threads() -> int:
    """Threads for each library: NPROC, where the user has set it, or all cores."""
    return int(os.environ.get("NPROC") or machine.cores())


def run(command: str, names: list[str], chosen: list, turns: int, console: rich.console.Console, *, grid: Callable,
        write: Callable) -> list[Path]:
    """Times `chosen` on the peers `names`, a table for each `group` of cases.

    As soon as `grid(group, {case: cells})` has made a table, `write({case: cells}, tables)` writes all so far and
    returns the files, as this does at the end, and the table is shown.
    """
    results, grids = {}, []
    with workers(command, names) as running:
        for group in dict.fromkeys(case.group for case in chosen):
            own = {}
            for case in (case for case in chosen if case.group == group):
                with console.status(case.name) as status:
                    own[case] = run_case(case, names, running, turns, status.update)
            grids.append(grid(group, own))
            results |= own
            written = write(results, grids)
            show(grids[-1], console)
    return written


def run_case(case, names: list[str], running: dict[str, Worker], turns: int,
             say: Callable[[str], None] = lambda line: None, budget: float = BUDGET) -> dict[str, Cell]:
    """Prepares and checks all peers, then times those that are right, in turns.

    A case has a `name`; `only`, the libraries (the name up to a colon) that take part, or None for all;
    `check(samples, name)`, the error of a peer's sample and, where it is wrong, why; and the shortest `turn`, seconds.
    """
    cells, samples = {}, {}
    for name in names:
        say(f"{case.name}: {name} compiles")
        cells[name] = _prepared(case, name, running.get(name), samples)
    timed = [name for name, cell in cells.items() if cell.status == "timed"]
    turns = min(turns, max(2, math.ceil(budget / max(1e-9, sum(cells[name].turn for name in timed)))))
    for number in range(turns):
        for name in timed:
            say(f"{case.name}: round {number + 1} of {turns}, {name}")
            _take_turn(cells[name], running[name])
    for name in timed:
        _attempt(cells[name], running[name], timing.release)
    return cells


def _prepared(case, name, worker, samples):
    cell = Cell()
    if worker is None:
        cell.status, cell.why = "left out", f"{name} is not installed"
    elif case.only is not None and name.partition(":")[0] not in case.only:
        cell.status, cell.why = "left out", f"timed at this length: {', '.join(case.only)} only"
    elif (prepared := _attempt(cell, worker, timing.prepare, case)) is not None:
        samples[name] = prepared.sample
        cell.calls = max(1, round(case.turn / prepared.seconds + 0.5))
        cell.turn = cell.calls * prepared.seconds
        cell.temporary_bytes, cell.growth_bytes = prepared.temporary_bytes, prepared.growth_bytes
        cell.by_hand = prepared.by_hand
        cell.error, wrong = case.check(samples, name)
        if wrong:
            cell.status, cell.why = "wrong", f"{wrong}, not timed"
    return cell


def _take_turn(cell, worker):
    time.sleep(PAUSE)
    if cell.status == "timed" and (seconds := _attempt(cell, worker, timing.turn, cell.calls)) is not None:
        cell.seconds.append(seconds)


def _attempt(cell, worker, function, *arguments):
    """What `function` returns in the worker, or None with the reason in `cell`."""
    try:
        return worker.call(function, *arguments)
    except Unsupported as error:
        cell.status, cell.why = "unsupported", str(error)
    except Failed as error:
        cell.status, cell.why = "failed", str(error)
    return None


def absent(grid: Grid, name: str, cell: Cell) -> str:
    """What a table says in place of a time."""
    shown = {"left out": "—", "unsupported": "—"}.get(cell.status, cell.status)
    return grid.noted(shown, cell.why if cell.status == "left out" else f"{name}: {cell.why}")


def mebibytes(cell: Cell) -> str:
    return "—" if cell.memory is None else number(cell.memory / 2**20)


def ratio(value: float | None, base: float | None) -> str:
    """How many times `base` is in `value`, as "3.4x"; "" where either is missing."""
    return f"{number(value / base)}x" if value is not None and base else ""


def number(value: float) -> str:
    """Two significant digits at least, no exponents."""
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.1f}" if value >= 0.95 else f"{value:.2g}"


def entries(cells: dict[str, Cell]) -> dict[str, dict]:
    """The cells of a case in a record."""
    def spread(cell):
        return {"median": cell.median, "min": min(cell.seconds), "max": max(cell.seconds)} if cell.median else {}

    return {name: {**dataclasses.asdict(cell), **spread(cell)} for name, cell in cells.items()}


def where(*packages: str) -> str:
    """The machine and the versions, in a sentence; of `packages` beside those that every benchmark compares."""
    found = ", ".join(f"{name} {version}" for name, version in _versions(packages).items() if version)
    return f"{machine.device()}, threads: {threads()}; {found}."


def circumstances(name: str, *packages: str) -> dict:
    """What a record of the command `name` says of when, where and with what it ran."""
    return {"command": shlex.join(["python", "-m", "launch.bench", name, *sys.argv[1:]]),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "git_commit": machine.git_commit(), "device": machine.device(), "threads": threads(),
            "GLIBC_TUNABLES": os.environ.get("GLIBC_TUNABLES"), "versions": _versions(packages)}


def _versions(packages):
    return peers.versions(peers.PACKAGES + packages)
