"""Times cases on the CPU, library against library.

Every library has a process of its own and one works at a time. For a case all are
built, compiled, warmed and checked; then turns go A B C A B C ..., so that what slows
the machine for a while slows all of them.
"""

import contextlib
import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import rich.console

from experiments.system import machine
from launch.bench.harness import program
from launch.bench.harness.libraries import Library, Unsupported, installed
from launch.bench.harness.process import Failed, Worker
from launch.bench.harness.table import Table, show

BUDGET = 20.0
"""Seconds that the turns of a case may take; slow cases take fewer turns, but two."""
PAUSE = 0.02
"""Seconds before each turn, in which the threads of the last one come to rest."""
BASE = "attn"
"""The library that ratios are taken to."""


class Case(Protocol):
    """States what a case must have to be timed."""

    name: str
    only: tuple[str, ...] | None
    """Libraries (the name up to a colon) that take part, or None for all."""
    turn: float
    """The shortest turn, in seconds."""

    def check(
        self, samples: dict[str, dict[str, np.ndarray]], name: str
    ) -> tuple[float, str]:
        """Returns the error of a library's sample and, where it is wrong, why."""


@dataclasses.dataclass
class Cell:
    """Holds what one library made of one case."""

    status: str = "timed"
    """Or "left out", "unsupported", "failed", "wrong"; then `why` says why."""
    why: str = ""
    error: float | None = None
    """Error by the case's own measure."""
    temporary_bytes: int | None = None
    """The compiler's account; None where there is none."""
    growth_bytes: int | None = None
    """The growth of memory to its peak in a call, less the results."""
    by_hand: bool = False
    calls: int = 0
    """Calls in each turn."""
    turn: float = 0.0
    """Seconds that a turn was expected to take."""
    seconds: list[float] = dataclasses.field(default_factory=list)
    """Seconds of one call, a number for each turn."""

    @property
    def median(self) -> float | None:
        """Returns the median seconds of a call, None where it was not timed."""
        timed = self.status == "timed" and self.seconds
        return statistics.median(self.seconds) if timed else None

    @property
    def memory(self) -> int | None:
        """Returns the bytes beside arguments and results: the larger of both accounts.

        Each misses something. The compiler's misses the work space of XLA's matrix
        products; the growth, what the allocator kept since the last call.
        """
        accounts = (self.temporary_bytes, self.growth_bytes)
        known = [count for count in accounts if count is not None]
        return max(known) if self.status == "timed" and known else None


@contextlib.contextmanager
def workers(libraries: Mapping[str, Library]) -> Iterator[dict[str, Worker]]:
    """Yields a worker for each library that is installed, and ends them afterwards."""
    running = {
        name: Worker(library, name, machine.threads())
        for name, library in libraries.items()
        if installed(library)
    }
    try:
        yield running
    finally:
        for worker in running.values():
            worker.stop()


def run(
    libraries: Mapping[str, Library],
    cases: Sequence,
    turns: int,
    console: rich.console.Console,
    *,
    table: Callable[[str, dict], Table],
    write: Callable[[dict, list[Table]], list[Path]],
) -> list[Path]:
    """Times the cases on the libraries, a table for each `group` of cases.

    As soon as `table(group, {case: cells})` has made a table, `write({case: cells},
    tables)` writes all so far and returns the files, as this does at the end, and the
    table is shown. An interrupted run keeps the tables that were done.
    """
    results = {}
    tables = []
    files = []
    with workers(libraries) as running:
        for group in dict.fromkeys(case.group for case in cases):
            group_results = {}
            for case in (case for case in cases if case.group == group):
                with console.status(case.name) as status:
                    say = status.update
                    cells = run_case(case, list(libraries), running, turns, say)
                group_results[case] = cells
            tables.append(table(group, group_results))
            # A group counts only when it is whole, as its table has all its cases.
            results |= group_results
            files = write(results, tables)
            show(tables[-1], console)
    return files


def run_case(
    case: Case,
    names: Sequence[str],
    running: dict[str, Worker],
    turns: int,
    say: Callable[[str], None] = lambda line: None,
    budget: float = BUDGET,
) -> dict[str, Cell]:
    """Prepares and checks all libraries, then times those that are right, in turns."""
    cells = {}
    samples = {}
    for name in names:
        say(f"{case.name}: {name} compiles")
        cells[name] = _prepared(case, name, running.get(name), samples)
    timed = [name for name, cell in cells.items() if cell.status == "timed"]
    # 0 where nothing is left to time: hence the 1e-9.
    seconds_of_all = sum(cells[name].turn for name in timed)
    # Two turns at least, or nothing would show how far they differ.
    affordable = math.ceil(budget / max(1e-9, seconds_of_all))
    turns = min(turns, max(2, affordable))
    for index in range(turns):
        for name in timed:
            say(f"{case.name}: round {index + 1} of {turns}, {name}")
            _take_turn(cells[name], running[name])
    for name in timed:
        # The next case's libraries would otherwise find this one's arrays in memory.
        _attempt(cells[name], running[name], program.release)
    return cells


def _prepared(case, name, worker, samples):
    """Returns the cell of a library, and puts its sample into `samples`."""
    if worker is None:
        package, _, _ = name.partition(":")
        return Cell("left out", f"{package} is not installed")
    if case.only is not None and name.partition(":")[0] not in case.only:
        names = ", ".join(case.only)
        return Cell("left out", f"timed in this case: {names} only")
    cell = Cell()
    prepared = _attempt(cell, worker, program.prepare, case)
    if prepared is None:
        return cell
    # Before the check: a case may hold a library to the first one's sample.
    samples[name] = prepared.sample
    # Half a call more, so that a turn is not shorter than `case.turn`.
    cell.calls = max(1, round(case.turn / prepared.seconds + 0.5))
    cell.turn = cell.calls * prepared.seconds
    cell.temporary_bytes = prepared.temporary_bytes
    cell.growth_bytes = prepared.growth_bytes
    cell.by_hand = prepared.by_hand
    cell.error, fault = case.check(samples, name)
    if fault:
        cell.status = "wrong"
        cell.why = f"{fault}, not timed"
    return cell


def _take_turn(cell, worker):
    time.sleep(PAUSE)
    # It failed in an earlier turn; the others go on without it.
    if cell.status != "timed":
        return
    seconds = _attempt(cell, worker, program.take_turn, cell.calls)
    if seconds is not None:
        cell.seconds.append(seconds)


def _attempt(cell, worker, function, *arguments):
    """Returns the worker's answer, or None with the reason in `cell`."""
    try:
        return worker.call(function, *arguments)
    except Unsupported as error:
        cell.status = "unsupported"
        cell.why = str(error)
    except Failed as error:
        cell.status = "failed"
        cell.why = str(error)
    return None


def absent(table: Table, name: str, cell: Cell) -> str:
    """Returns what a table says in place of a time, with the reason as a note."""
    left_out = cell.status == "left out"
    # A failure and a wrong result are findings, and are shown by name.
    shown = "—" if left_out or cell.status == "unsupported" else cell.status
    return table.noted(shown, cell.why if left_out else f"{name}: {cell.why}")


def entries(cells: dict[str, Cell]) -> dict[str, dict]:
    """Returns the cells of a case as they stand in a record."""
    return {name: {**dataclasses.asdict(c), **_spread(c)} for name, c in cells.items()}


def _spread(cell):
    if not cell.median:
        return {}
    least = min(cell.seconds)
    return {"median": cell.median, "min": least, "max": max(cell.seconds)}
