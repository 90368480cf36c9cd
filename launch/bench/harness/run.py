"""Times cases, library against library.

Every library has a process of its own and one works at a time. For a case all are
built, compiled, warmed and checked; then turns go A B C A B C ..., so that what slows
the machine for a while slows all of them.
"""

import contextlib
import dataclasses
import functools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from experiments.system import machine
from launch.bench.harness import report, worker
from launch.bench.harness.benchmark import Benchmark, Outcome, Request
from launch.bench.harness.libraries import Library, Unsupported, installed
from launch.bench.harness.report import Table, mebibytes, number, ratio
from launch.bench.harness.worker import Failed, Worker

PAUSE = 0.02
"""Seconds before each turn, in which the threads of the last one come to rest."""
BASE = "attn"
"""The library that ratios are taken to."""
BY_HAND = "no such score in the library: written around it by hand"
BESIDE = 0.2
"""The mean of cores that others have from which on a table says so."""
SHORT = 0.3
"""Seconds of all turns, of which a clock of 10 ms says too little below this."""
GROWTH = (
    "the growth of the process's memory in a call; for the others that or the "
    "compiler's account, whichever is larger"
)


class Case(Protocol):
    """States what a case must have to be timed; it is a frozen dataclass."""

    name: str
    group: str
    """The cases of a group share a table."""
    title: str
    """What the table of its group is headed."""
    column: str
    """What the case is called in its table, as "forward"."""
    only: tuple[str, ...] | None
    """Libraries (the name up to a colon) that take part, or None for all."""
    turn: float
    """The shortest turn, in seconds."""
    budget: float
    """Seconds that all turns may take; slow cases take fewer turns, but two."""
    work: int
    """Tokens that a call handles, for a column of tokens a second; 0 for none."""
    error_words: str
    """What an error above 0 is called in a note, behind a percentage; "" for no note."""

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
    others: list[float] = dataclasses.field(default_factory=list)
    """Cores that other processes and machines had meanwhile, a number for each turn."""
    rounds: int = 0
    """The turns that were asked for; a case's budget may have cut them."""

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


def timing(
    name: str,
    cases: Sequence,
    tiny: Sequence,
    libraries: Mapping[str, Library],
    compared: tuple[str, ...],
    notes: Mapping[str, str],
    packages: tuple[str, ...] = (),
) -> Benchmark:
    """Returns the benchmark that times cases on libraries.

    `notes` say of libraries how each does the work; `packages` are those whose versions
    are recorded.
    """
    return Benchmark(
        name=name,
        cases=cases,
        tiny=tiny,
        run=functools.partial(_measure, name, notes, packages),
        libraries=libraries,
        compared=compared,
        rounds=7,
    )


def _measure(name, notes, packages, request: Request) -> Outcome:
    """Times the cases, and writes all tables so far whenever a group is done."""
    results = {}
    tables = []
    files = []
    with workers(request.libraries) as running:
        for group in dict.fromkeys(case.group for case in request.cases):
            timed = {}
            for case in (case for case in request.cases if case.group == group):
                with request.console.status(case.name) as status:
                    arguments = (list(request.libraries), running, request.rounds)
                    timed[case] = run_case(case, *arguments, status.update)
            tables.append(table(timed, notes))
            # A group counts only when it is whole, as its table has all its cases.
            results |= timed
            files = write(request.directory, name, results, tables, packages)
            report.show(tables[-1], request.console)
    return Outcome(files)


def write(
    directory: Path,
    name: str,
    results: Mapping[Case, Mapping[str, Cell]],
    tables: Sequence[Table],
    packages: tuple[str, ...] = (),
) -> list[Path]:
    """Writes the tables and every timing; returns the files."""
    entries = []
    for case, cells in results.items():
        peers = {peer: _entry(cell) for peer, cell in cells.items()}
        entries.append({"name": case.name, **dataclasses.asdict(case), "peers": peers})
    numbers = {"cases": entries}
    return report.write(
        directory, name, tables, numbers, remark="Medians.", packages=packages
    )


def _entry(cell):
    numbers = dataclasses.asdict(cell)
    if cell.median:
        least, most = min(cell.seconds), max(cell.seconds)
        numbers |= {"median": cell.median, "min": least, "max": most}
    return numbers


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
        for one in running.values():
            one.stop()


def run_case(
    case: Case,
    names: Sequence[str],
    running: dict[str, Worker],
    turns: int,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Cell]:
    """Prepares and checks all libraries, then times those that are right, in turns."""
    cells = {}
    samples = {}
    for name in names:
        say(f"{case.name}: {name} compiles")
        cells[name] = prepared(case, name, running.get(name), samples)
    timed = [name for name, cell in cells.items() if cell.status == "timed"]
    # 0 where nothing is left to time: hence the 1e-9.
    seconds_of_all = max(1e-9, sum(cells[name].turn for name in timed))
    # Two turns at least, or nothing would show how far they differ.
    for name in timed:
        cells[name].rounds = turns
    turns = min(turns, max(2, math.ceil(case.budget / seconds_of_all)))
    for index in range(turns):
        for name in timed:
            say(f"{case.name}: round {index + 1} of {turns}, {name}")
            take_turn(cells[name], running[name])
    for name in timed:
        # The next case's libraries would otherwise find this one's arrays in memory.
        attempt(cells[name], running[name], worker.release)
    return cells


def prepared(case: Case, name: str, running: Worker | None, samples: dict) -> Cell:
    """Returns the cell of a library, and puts its sample into `samples`."""
    package, _, _ = name.partition(":")
    if running is None:
        return Cell("left out", f"{package} is not installed")
    if case.only is not None and package not in case.only:
        return Cell("left out", f"timed in this case: {', '.join(case.only)} only")
    cell = Cell()
    found = attempt(cell, running, worker.prepare, case)
    if found is None:
        return cell
    # Before the check: a case may hold a library to the first one's sample.
    samples[name] = found.sample
    # Half a call more, so that a turn is not shorter than `case.turn`.
    cell.calls = max(1, round(case.turn / found.seconds + 0.5))
    cell.turn = cell.calls * found.seconds
    cell.temporary_bytes = found.temporary_bytes
    cell.growth_bytes = found.growth_bytes
    cell.by_hand = found.by_hand
    cell.error, fault = case.check(samples, name)
    if fault:
        cell.status = "wrong"
        cell.why = f"{fault}, not timed"
    return cell


def take_turn(cell: Cell, running: Worker) -> None:
    """Adds the seconds of a turn, unless the library failed in an earlier one."""
    time.sleep(PAUSE)
    if cell.status != "timed":
        return
    turn = attempt(cell, running, worker.take_turn, cell.calls)
    if turn is not None:
        cell.seconds.append(turn.seconds)
        cell.others += [] if turn.others is None else [turn.others]


def attempt(cell: Cell, running: Worker, function: Callable, *arguments: Any) -> Any:
    """Returns the worker's answer, or None with the reason in `cell`."""
    try:
        return running.call(function, *arguments)
    except Unsupported as error:
        cell.status = "unsupported"
        cell.why = str(error)
    except Failed as error:
        cell.status = "failed"
        cell.why = str(error)
    return None


def table(
    results: Mapping[Case, Mapping[str, Cell]], notes: Mapping[str, str]
) -> Table:
    """Returns the table of a group: a row a library, some columns for each case."""
    headings = [""]
    for case in results:
        headings += [f"{case.column}, ms", f"to {BASE}"]
        headings += ["tokens/s"] if case.work else []
        headings += ["MiB", f"to {BASE}"]
    first = next(iter(results))
    filled = Table(first.title, tuple(headings))
    # Every case has a cell of every library, also of one that was left out.
    for name in results[first]:
        row = [filled.noted(name, notes[name]) if name in notes else name]
        for case, cells in results.items():
            row += _texts(filled, case, name, cells)
        filled.rows.append(tuple(row))
    return filled


def _texts(filled, case, name, cells):
    """Returns the texts of a library in one case."""
    cell = cells[name]
    # --peers may leave attn out; then there are no ratios.
    base = cells.get(BASE, Cell())
    if cell.median is None:
        return [_absent(filled, name, cell), *[""] * (4 if case.work else 3)]
    time_text = number(1e3 * cell.median)
    if cell.by_hand:
        time_text = filled.noted(time_text, BY_HAND)
    if case.error_words and cell.error:
        note = f"{cell.error:.1%} {case.error_words}"
        time_text = filled.noted(time_text, note)
    for note in _doubts(cell):
        time_text = filled.noted(time_text, note)
    memory_text = mebibytes(cell.memory)
    # Such a number has one account alone, so a reader should know which.
    if cell.temporary_bytes is None and cell.memory is not None:
        memory_text = filled.noted(memory_text, GROWTH)
    texts = [time_text, ratio(cell.median, base.median)]
    texts += [number(case.work / cell.median)] if case.work else []
    texts += [memory_text, ratio(cell.memory, base.memory)]
    return texts


def _doubts(cell):
    """Yields what makes a time less certain than others."""
    if len(cell.seconds) < cell.rounds:
        yield f"{len(cell.seconds)} of {cell.rounds} rounds: a case's time is limited"
    long_enough = cell.calls * sum(cell.seconds) >= SHORT
    if (
        cell.others
        and long_enough
        and (mean := statistics.fmean(cell.others)) >= BESIDE
    ):
        yield f"other processes or machines had {mean:.1f} cores meanwhile"


def _absent(filled, name, cell):
    """Returns what a table says in place of a time, with the reason as a note."""
    left_out = cell.status == "left out"
    # A failure and a wrong result are findings, and are shown by name.
    shown = "—" if left_out or cell.status == "unsupported" else cell.status
    return filled.noted(shown, cell.why if left_out else f"{name}: {cell.why}")
