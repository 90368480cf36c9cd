"""Leaves the training to processes that somebody else starts: `launch.sweep --join`."""

import time
from pathlib import Path

from experiments.sweep.claims import list_claims
from experiments.sweep.joiner import name_of
from experiments.sweep.plan import Trial

PAUSE = 2.0
"""Seconds between two looks."""


class Joined:
    """Waits until others have trained all trials."""

    def __init__(self, workdir: Path):
        self._workdir = workdir
        self._names = set()

    def submit(self, trials: list[Trial]) -> None:
        """Notes what is waited for."""
        self._names = {name_of(trial) for trial in trials}

    def poll(self) -> bool:
        """Waits a moment; returns whether a trial has no result yet."""
        time.sleep(PAUSE)
        return not self._names <= list_claims(self._workdir).ended

    def leave(self) -> None:
        """Leaves the others alone."""
