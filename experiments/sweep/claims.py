"""Says which process trains which trial, so that several machines can share a sweep.

A trial's claims are files in claims/ of the workdir: NAME.0, NAME.1, NAME.2 and so on, each
made with O_EXCL, which of all processes one alone can do, over NFS too. The even ones take
the trial, the odd ones give it back, and NAME.ended says that it has its result. None is
changed, and none with a number removed. So the names alone say what is free, an old list of
them does no harm (what is there already cannot be made), and the files tell the trial's
story: who had it, where, since when, and why it was given back.

A process shows that it is alive by a number in its file in joiners/, which grows. The others
watch that number by their own clock, so clocks that differ do no harm. A process whose number
has stood still for a while is considered dead, and its trials are given back for it.
"""

import contextlib
import datetime
import json
import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from experiments.system.files import write_json
from experiments.system.identity import is_gone, this_process
from experiments.system.signals import STATUS

CLAIMS = "claims"
JOINERS = "joiners"

BEAT = 10.0
"""Seconds between signs of life."""

SILENCE = 120.0
"""Seconds without one after which a process is considered dead."""

MOST_FAILURES = 3
"""A trial that failed in this many processes is not tried again."""

ENDED = "ended"


class Listing(NamedTuple):
    """What the names in claims/ say; over a network it may be old."""

    numbers: dict[str, int]
    """{trial: the number of its newest claim}."""
    ended: set[str]
    """Trials that have their results."""

    def is_taken(self, name: str) -> bool:
        """Whether a process has the trial, or had it to its end."""
        return self.numbers.get(name, 1) % 2 == 0

    def is_running(self, name: str) -> bool:
        """Whether a process has the trial, alive or not."""
        return self.is_taken(name) and name not in self.ended

    def running(self) -> list[str]:
        """Returns the trials that processes have, alive or not."""
        return list(filter(self.is_running, self.numbers))

    def next_number(self, name: str) -> int:
        """Returns the number of the claim that is to follow."""
        return self.numbers.get(name, -1) + 1


class Presence:
    """A process among those that train a sweep; it shows that it lives, in its `with` block."""

    def __init__(
        self,
        workdir: Path,
        silence: float = SILENCE,
        job: str | None = None,
        plans: bool = False,
    ):
        """Begins to show it for a process of a scheduler's `job`, or for one that plans."""
        self._identity = this_process()
        host, process = self._identity["host"], self._identity["process"]
        self.name = f"{host}-{process}-{secrets.token_hex(3)}"
        self._path = workdir / JOINERS / f"{self.name}.json"
        self._says = dict(self._identity, since=time_of_day(), plans=plans, job=job)
        self._silence = silence
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._go_on, daemon=True)

    def __enter__(self):
        # Before the first claim: who claims has shown a sign of life.
        self._write(0)
        self._thread.start()
        return self

    def __exit__(self, *exception):
        self._ended.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _go_on(self):
        beats = 0
        last = _clock()
        while not self._ended.wait(min(BEAT, self._silence / 4)):
            if _clock() - last > self._silence / 2 and self._is_one_of_many():
                # On a laptop that slept: no two processes may train a trial.
                line = "this process stood still, and others may train what it had: start it again"
                os.write(2, f"{line}\n".encode())
                os._exit(STATUS)
            beats += 1
            # A full disk, or a server that is away, does not end the training.
            with contextlib.suppress(OSError):
                self._write(beats)
                last = _clock()

    def _is_one_of_many(self):
        all_say = (_read(path) for path in self._path.parent.glob("*.json"))
        # It has two files itself where it plans.
        others = (x for x in all_say if not self._identity.items() <= x.items())
        return not all(map(is_gone, others))

    def _write(self, beats):
        write_json(self._path, self._says | dict(beats=beats))


class Others:
    """Watches the signs of life of other processes."""

    def __init__(
        self,
        workdir: Path,
        silence: float = SILENCE,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._workdir = workdir
        self._silence = silence
        self._clock = clock
        # {name: (what its file held, when that was first seen)}
        self._seen = {}

    def is_alive(self, name: str) -> bool | None:
        """Whether a process lives; None as long as that is not known."""
        says = read_joiner(self._workdir, name)
        if is_gone(says):
            return False
        now = self._clock()
        before, since = self._seen.setdefault(name, (says, now))
        if says != before:
            self._seen[name] = says, now
            return True
        if now - since > self._silence:
            return False
        # A sign that was seen a moment ago is one of life; the first may be an old one.
        return None


def planner_lives(workdir: Path, others: Others) -> bool:
    """Whether a process plans further trials, as one with --seeds=auto does."""
    for path in (workdir / JOINERS).glob("*.json"):
        if read_joiner(workdir, path.stem).get("plans"):
            # As long as nothing else is known it is waited for.
            return others.is_alive(path.stem) is not False
    return False


class Claims:
    """Takes trials for a worker of one process, and gives them back."""

    def __init__(self, workdir: Path, joiner: str, worker: int = 0):
        self.joiner = joiner
        self._workdir = workdir
        self._worker = worker
        # {trial: the number of our claim}
        self._held = {}

    @property
    def held(self) -> list[str]:
        """The trials that this worker has."""
        return list(self._held)

    def of_all_workers(self) -> dict[str, int]:
        """Returns {trial: worker} of the trials that this process has."""
        listing = list_claims(self._workdir)
        found = {}
        for name in listing.running():
            says = read_claim(self._workdir, name, listing.numbers[name])
            if says.get("joiner") == self.joiner:
                found[name] = says.get("worker", 0)
        return found

    def take(self, name: str, number: int) -> bool:
        """Takes a trial by the claim of this number; False where another was first."""
        if not self._make(name, number, worker=self._worker):
            return False
        self._held[name] = number
        return True

    def give_back(self, name: str, why: str, failed: bool = False) -> None:
        """Lets others take a trial of this process."""
        number = self._held.pop(name, None)
        if number is None:
            # Another worker's.
            number = list_claims(self._workdir).numbers[name]
        self._make(name, number + 1, why=why, failed=failed)

    def end(self, name: str) -> None:
        """Says that a trial of this process has its result."""
        self._held.pop(name, None)
        self._make(name, ENDED)

    def give_back_for(self, name: str, number: int, why: str) -> None:
        """Gives back what another process, which is dead, took by the claim of this number."""
        self._make(name, number + 1, why=why, failed=False)

    def ask_again(self, name: str, listing: Listing) -> None:
        """Makes a trial free that has no result, whatever was said of it before.

        It failed, or its result was removed. Only while nobody has it.
        """
        (self._workdir / CLAIMS / f"{name}.{ENDED}").unlink(missing_ok=True)
        number = listing.next_number(name)
        if number % 2 == 0:
            self._make(name, number)
            number += 1
        self._make(name, number, why="asked for again", failed=False, anew=True)

    def failures(self, name: str, number: int) -> list[str]:
        """Returns the processes in whose hands a trial failed, up to this claim."""
        failed = []
        for i in range(1, number + 1, 2):
            says = read_claim(self._workdir, name, i)
            if says.get("anew"):
                failed = []
            elif says.get("failed"):
                failed.append(says.get("joiner"))
        return failed

    def _make(self, name, number, **says):
        path = self._workdir / CLAIMS / f"{name}.{number}"
        content = dict(joiner=self.joiner, at=time_of_day(), **says)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(path, "x", encoding="utf-8") as file:
                file.write(json.dumps(content) + "\n")
        except FileExistsError:
            return False
        return True


def list_claims(workdir: Path) -> Listing:
    """Returns what the names of all claims say."""
    numbers = {}
    ended = set()
    try:
        files = os.listdir(workdir / CLAIMS)
    except FileNotFoundError:
        files = []
    for file in files:
        name, _, number = file.rpartition(".")
        if number == ENDED:
            ended.add(name)
        elif number.isdecimal():
            numbers[name] = max(int(number), numbers.get(name, -1))
    return Listing(numbers, ended)


def read_claim(workdir: Path, name: str, number: int) -> dict[str, Any]:
    """Returns what a claim says; {} where that is not written yet."""
    return _read(workdir / CLAIMS / f"{name}.{number}")


def read_joiner(workdir: Path, name: str) -> dict[str, Any]:
    """Returns what a process says of itself; {} where it says nothing."""
    # The name is what a claim says: it must not lead elsewhere.
    if Path(name).name != name:
        return {}
    return _read(workdir / JOINERS / f"{name}.json")


def time_of_day() -> str:
    """Returns the time of day, for people: nothing is decided by it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _read(path):
    """Returns the JSON object in a small file that another process may be writing."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    # A server may have forgotten a file that was just replaced.
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _clock():
    # It goes on while a machine sleeps, where there is one that does.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
