"""Times attention on the CPU, library against library.

Every library has a process of its own and one works at a time. For a case all are built, compiled, warmed and checked
against float64; then turns go A B C A B C ..., so that what slows the machine for a while slows all of them.
"""

import dataclasses
import datetime
import math
import os
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import rich.console

from experiments import machine
from experiments.files import write_bytes, write_json, write_text
from launch.bench import cases, peers, pictures, timing
from launch.bench.cases import Case
from launch.bench.grids import Grid, markdown, show
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
    """Against float64, in parts of the largest value."""
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


def run(names: list[str], chosen: list[Case], rounds: int, directory: Path,
        console: rich.console.Console) -> list[Path]:
    """Times `chosen` on the peers `names`; shows each table as it is done and writes all so far into `directory`.

    Returns the files.
    """
    workers = start(names)
    results, grids = {}, []
    try:
        for group in dict.fromkeys(case.group for case in chosen):
            for case in (case for case in chosen if case.group == group):
                with console.status(case.name) as status:
                    results[case] = run_case(case, names, workers, rounds, status.update)
            grids.append(grid(group, {case: cells for case, cells in results.items() if case.group == group}))
            show(grids[-1], console)
            written = write(directory, results, grids)
    finally:
        for worker in workers.values():
            worker.stop()
    return written


def start(names: list[str]) -> dict[str, Worker]:
    """A worker for each peer that is installed."""
    return {name: Worker(name, threads()) for name in names if peers.installed(name)}


def threads() -> int:
    """Threads for each library: NPROC, where the user has set it, or all cores."""
    return int(os.environ.get("NPROC") or machine.cores())


def run_case(case: Case, names: list[str], workers: dict[str, Worker], rounds: int,
             say: Callable[[str], None] = lambda line: None) -> dict[str, Cell]:
    """Prepares and checks all peers, then times those that are right, in turns."""
    cells = {}
    for name in names:
        say(f"{case.name}: {name} compiles")
        cells[name] = _prepared(case, name, workers.get(name))
    timed = [name for name, cell in cells.items() if cell.status == "timed"]
    rounds = min(rounds, max(2, math.ceil(BUDGET / max(1e-9, sum(cells[name].turn for name in timed)))))
    for number in range(rounds):
        for name in timed:
            say(f"{case.name}: round {number + 1} of {rounds}, {name}")
            _take_turn(cells[name], workers[name])
    for name in timed:
        _attempt(cells[name], workers[name], timing.release)
    return cells


def _prepared(case, name, worker):
    cell = Cell()
    if worker is None:
        cell.status, cell.why = "left out", f"{name} is not installed"
    elif not case.takes(name):
        cell.status, cell.why = "left out", f"timed at this length: {', '.join(case.only)} only"
    elif (prepared := _attempt(cell, worker, timing.prepare, case)) is not None:
        cell.error = cases.error(case, prepared.sample)
        cell.calls, cell.turn = prepared.calls, prepared.calls * prepared.seconds
        cell.temporary_bytes, cell.growth_bytes = prepared.temporary_bytes, prepared.growth_bytes
        cell.by_hand = prepared.by_hand
        if not cell.error <= cases.TOLERANCE:
            cell.status, cell.why = "wrong", f"off by {cell.error:.1e} of the largest exact value, not timed"
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


def grid(group: str, results: dict[Case, dict[str, Cell]]) -> Grid:
    """The table of a group: a row a peer, and for each pass time and memory, each with its ratio to attn's."""
    headings = [text for case in results for text in (f"{case.direction}, ms", f"to {BASE}", "MiB", f"to {BASE}")]
    found = Grid(_title(group, next(iter(results))), ("", *headings))
    for name in next(iter(results.values())):
        row = [text for cells in results.values() for text in _texts(found, name, cells)]
        found.rows.append((name, *row))
    return found


def _title(group, case):
    sizes = f"batch {case.b}, {case.h} heads, n {case.n}, d {case.d}"
    shown = {"full": "", "causal": ", causal", "window": f", window of {cases.WINDOW} on each side"}[case.mask]
    return f"{group}: {case.score.replace('_', ' ')}{shown}; {sizes}"


def _texts(found, name, cells):
    """A peer's four cells of one case."""
    cell, base = cells[name], cells.get(BASE, Cell())
    if cell.median is None:
        shown = {"left out": "—", "unsupported": "—"}.get(cell.status, cell.status)
        return found.noted(shown, cell.why if cell.status == "left out" else f"{name}: {cell.why}"), "", "", ""
    time_text = _number(1e3 * cell.median)
    if cell.by_hand:
        time_text = found.noted(time_text, "no such score in the library: written around it by hand")
    memory_text = "—" if cell.memory is None else _number(cell.memory / 2**20)
    if cell.temporary_bytes is None and cell.memory is not None:
        memory_text = found.noted(memory_text, "the growth of the process's memory in a call; for the others that or "
                                               "the compiler's account, whichever is larger")
    return time_text, ratio(cell.median, base.median), memory_text, ratio(cell.memory, base.memory)


def ratio(value: float | None, base: float | None) -> str:
    """How many times `base` is in `value`, as "3.4x"; "" where either is missing."""
    return f"{_number(value / base)}x" if value is not None and base else ""


def _number(value):
    """Two significant digits at least, no exponents."""
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.1f}" if value >= 0.95 else f"{value:.2g}"


def write(directory: Path, results: dict[Case, dict[str, Cell]], grids: list[Grid]) -> list[Path]:
    """Writes the tables, a picture and every timing; returns the files."""
    written = [directory / name for name in ("table.md", "picture.png", "results.json")]
    text = ["# Attention: time and memory", "", f"{where()} Medians; float32.", "", *(markdown(one) for one in grids)]
    write_text(written[0], "\n".join(text))
    write_bytes(written[1], pictures.over_n(results))
    write_json(written[2], {**circumstances("attention"), "cases": [
        {"name": case.name, **dataclasses.asdict(case), "peers": {name: _entry(cell) for name, cell in cells.items()}}
        for case, cells in results.items()]})
    return written


def _entry(cell):
    spread = {"median": cell.median, "min": min(cell.seconds), "max": max(cell.seconds)} if cell.median else {}
    return {**dataclasses.asdict(cell), **spread}


def where() -> str:
    """The machine and the versions, in a sentence."""
    found = ", ".join(f"{name} {version}" for name, version in peers.versions().items() if version)
    return f"{machine.device()}, threads: {threads()}; {found}."


def circumstances(name: str) -> dict:
    """What a record of the command `name` says of when, where and with what it ran."""
    return {"command": shlex.join(["python", "-m", "launch.bench", name, *sys.argv[1:]]),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "git_commit": machine.git_commit(), "device": machine.device(), "threads": threads(),
            "GLIBC_TUNABLES": os.environ.get("GLIBC_TUNABLES"), "versions": peers.versions()}
