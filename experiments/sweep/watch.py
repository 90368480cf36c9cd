"""Sees what becomes of a sweep's trials, whichever processes train them."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from experiments.sweep.claims import list_claims, read_claim
from experiments.sweep.joiner import name_of
from experiments.sweep.plan import Trial
from experiments.sweep.progress import Progress

SHARE = 0.02
"""The most of this process's time that goes to looking."""


class Executor(Protocol):
    """Starts processes that join a sweep: here, on SLURM, or leaves that to a person.

    A new kind of cluster is one class with these three methods.
    """

    def submit(self, trials: list[Trial]) -> None:
        """Starts what is to train these trials, as far as it does not run already."""

    def poll(self) -> bool:
        """Goes on for a moment; returns whether anything still trains, or waits to."""

    def leave(self) -> None:
        """Is called at the end, also after an error or a stop signal."""


class Seen(NamedTuple):
    """What has changed since the look before."""

    ended: list[Trial]
    """Trials that have ended since, or failed."""
    running: list[Trial]


class Watch:
    """Looks at the claims of trials that are to be trained."""

    def __init__(self, workdir: Path, todo: Sequence[Trial]):
        self._workdir = workdir
        self._by_name = {name_of(trial): trial for trial in todo}
        listing = list_claims(workdir)
        # Of earlier calls: they are no news.
        self._numbers = listing.numbers
        self._ended = set()
        self._next = 0.0
        self._running = []

    def look(self, now: bool = False) -> Seen:
        """Returns what has changed; nothing where the last look was a moment ago.

        `now` asks for a look in any case.
        """
        start = time.monotonic()
        if start < self._next and not now:
            return Seen([], self._running)
        listing = list_claims(self._workdir)
        ended = []
        for name, trial in self._by_name.items():
            number = listing.numbers.get(name, -1)
            if name in listing.ended:
                if name not in self._ended:
                    ended.append(trial)
            elif number != self._numbers.get(name, -1) and self._failed(name, number):
                ended.append(trial)
        self._ended |= listing.ended
        self._numbers = listing.numbers
        running = [name for name in listing.running() if name in self._by_name]
        self._running = [self._by_name[name] for name in running]
        end = time.monotonic()
        self._next = end + (end - start) / SHARE
        return Seen(ended, self._running)

    def _failed(self, name, number):
        is_back = number % 2 == 1
        return is_back and read_claim(self._workdir, name, number).get("failed", False)


def follow(executor: Executor, watch: Watch, progress: Progress) -> None:
    """Shows what becomes of the trials until nothing of the executor trains any more."""
    with progress:
        trains = True
        while trains:
            trains = executor.poll()
            # At the end in any case: the last trials may have ended just now.
            seen = watch.look(now=not trains)
            for trial in seen.ended:
                progress.ended(trial)
            progress.update(seen.running)
