"""Follows a sweep while it runs: a line for each trial that ends, and how the sweep stands."""

import contextlib
import time
from collections.abc import Generator, Sequence
from pathlib import Path

import rich.console
import rich.live
import rich.text

from experiments.evaluation.metrics import METRICS, Metric, summary
from experiments.sweep.claims import list_claims, read_claim
from experiments.sweep.joiner import name_of
from experiments.sweep.plan import Trial
from experiments.sweep.status import lines_of, read_status
from experiments.system.console import print_line
from experiments.system.files import read_json
from experiments.trial.cost import assumed_flops_of_a_step

SHARE = 0.02
"""The most of this process's time that goes to looking."""

LINE_EVERY = 20.0
"""Seconds between status lines where the output is no terminal."""

SHOWN = 12
"""The most running trials that are shown at a time."""


class Progress:
    """Shows what becomes of the trials `todo`, whichever processes train them.

    `already` others had ended before. The line of a trial has each of `metrics`. A terminal
    shows the status all the time, other output every LINE_EVERY seconds.
    """

    def __init__(
        self,
        workdir: Path,
        todo: Sequence[Trial],
        already: int,
        console: rich.console.Console,
        metrics: Sequence[Metric] = METRICS,
    ):
        self._workdir = workdir
        self._todo = {name_of(trial): trial for trial in todo}
        self._already = already
        self._console = console
        self._metrics = metrics
        # Failures of earlier calls are no news.
        self._numbers = list_claims(workdir).numbers
        # A trial that failed may be tried again, and end.
        self._ended = set()
        self._failed = set()
        # A step of one row may take many times that of another.
        self._work = {
            trial.directory: assumed_flops_of_a_step(trial.settings) for trial in todo
        }
        self._last_line = time.monotonic()
        self._live = None
        if console.is_terminal:
            self._live = rich.live.Live(
                console=console, refresh_per_second=4, transient=True
            )

    def follow(self, training: Generator[None, None, None]) -> None:
        """Shows the trials until `training` is at its end, whose steps are short."""
        next_look = 0.0
        with self._live or contextlib.nullcontext(), contextlib.closing(training):
            for _ in training:
                if (start := time.monotonic()) >= next_look:
                    self.look()
                    end = time.monotonic()
                    next_look = end + (end - start) / SHARE
            # The last trials may have ended just now.
            self._print_ended()

    def look(self) -> None:
        """Shows what has changed since the last look."""
        self._print_ended()
        is_due = time.monotonic() - self._last_line > LINE_EVERY
        if not self._live and not is_due:
            return
        status = read_status(self._workdir, self._work)
        lines = lines_of(status, ("running",), SHOWN)
        if self._live:
            self._live.update(rich.text.Text("\n".join(lines)))
        else:
            self._last_line = time.monotonic()
            print_line(self._console, " | ".join(lines))

    def _print_ended(self):
        """Prints a line for each trial that has ended or failed, by its newest claim."""
        listing = list_claims(self._workdir)
        for name, trial in self._todo.items():
            number = listing.numbers.get(name, -1)
            is_new = number != self._numbers.get(name, -1)
            if name in listing.ended:
                if name not in self._ended:
                    self._ended.add(name)
                    self._print(name, trial)
            elif is_new and self._has_failed(name, number):
                self._failed.add(name)
                self._print(name, trial)
        self._numbers = listing.numbers

    def _has_failed(self, name, number):
        is_back = number % 2 == 1
        return is_back and read_claim(self._workdir, name, number).get("failed", False)

    def _print(self, name, trial):
        result = read_json(self._workdir / trial.directory / "result.json") or {}
        if result.get("status") == "finished":
            scores = summary(result, self._metrics)
            text = f"{scores}  ({result['seconds']:.0f} s)"
        else:
            text = f"FAILED: {result.get('error', 'no result was written')}"
        done = self._already + len(self._ended | self._failed)
        count = f"{done}/{self._already + len(self._todo)}"
        print_line(self._console, f"[{count}] {trial.title}: {text}")
