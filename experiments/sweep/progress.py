"""Shows a sweep while it runs: a live view in a terminal, plain lines elsewhere."""

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import rich.console
import rich.live
import rich.progress
import rich.text

from experiments.evaluation.metrics import METRICS, Metric, summary
from experiments.sweep.claims import list_claims, read_claim
from experiments.sweep.joiner import name_of
from experiments.sweep.plan import Trial
from experiments.system.console import print_line
from experiments.system.files import read_json
from experiments.trial.cost import assumed_flops_of_a_step

SHARE = 0.02
"""The most of this process's time that goes to looking."""

LINE_EVERY = 20.0
"""Seconds between status lines where the output is no terminal."""


class Progress:
    """Shows what becomes of a sweep's trials, whichever processes train them.

    A trial's line has each of `metrics`.
    """

    def __init__(
        self,
        workdir: Path,
        todo: list[Trial],
        already: int,
        console: rich.console.Console,
        metrics: Sequence[Metric] = METRICS,
    ):
        self._workdir = workdir
        self._todo = todo
        self._already = already
        self._console = console
        self._metrics = metrics
        self._by_name = {name_of(trial): trial for trial in todo}
        # Failures of earlier calls are no news.
        self._numbers = list_claims(workdir).numbers
        # Trials that have ended by the claims.
        self._seen = set()
        self._next_look = 0.0
        # By directory: a trial that failed may be tried again elsewhere.
        self._ended = set()
        self._failed = set()
        # Not the wall clock, which may be set while a sweep runs.
        self._start = time.monotonic()
        self._last_line = self._start
        # A trial that goes on has some steps behind it, which took no time of this call.
        self._before = {
            trial.directory: _step(newest_line(workdir / trial.directory))
            for trial in todo
        }
        # In FLOPs, because a step of one row may take many times that of another.
        self._cost_of_a_step = {
            trial.directory: assumed_flops_of_a_step(trial.settings) for trial in todo
        }
        self._work = sum(
            self._cost(trial, trial.settings.training.steps) for trial in todo
        )
        self._done = 0
        self._live = None
        if console.is_terminal:
            self._live = rich.live.Live(console=console, refresh_per_second=4)

    def __enter__(self):
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *exception):
        if self._live:
            # The lines of ended trials stay, the view of running ones goes.
            self._live.update("")
            self._live.stop()

    def follow(self, training: Iterator[None]) -> None:
        """Shows the trials until `training`, which goes on at each look, is at its end."""
        with self, contextlib.closing(training):
            for _ in training:
                if time.monotonic() >= self._next_look:
                    start = time.monotonic()
                    self.look()
                    end = time.monotonic()
                    self._next_look = end + (end - start) / SHARE
            # The last trials may have ended just now.
            self.look()

    def look(self) -> None:
        """Shows what the claims say has changed since the last look."""
        listing = list_claims(self._workdir)
        for name, trial in self._by_name.items():
            number = listing.numbers.get(name, -1)
            is_new = number != self._numbers.get(name, -1)
            if name in listing.ended:
                if name not in self._seen:
                    self._seen.add(name)
                    self.ended(trial)
            elif is_new and self._has_failed(name, number):
                self.ended(trial)
        self._numbers = listing.numbers
        running = map(self._by_name.get, listing.running())
        self.update(list(filter(None, running)))

    def _has_failed(self, name, number):
        is_back = number % 2 == 1
        return is_back and read_claim(self._workdir, name, number).get("failed", False)

    def update(self, running: list[Trial]) -> None:
        """Shows the state of the running trials, as their metrics.jsonl has it."""
        lines = [
            (trial, newest_line(self._workdir / trial.directory)) for trial in running
        ]
        if self._live:
            self._live.update(self._view(lines))
        elif time.monotonic() - self._last_line > LINE_EVERY:
            self._last_line = time.monotonic()
            states = [f"{trial.name} {_status(trial, line)}" for trial, line in lines]
            text = f"{self._summary(lines)} | {'; '.join(states)}"
            print_line(self._console, text)

    def ended(self, trial: Trial) -> None:
        """Prints one line for a trial that has its result, or has failed."""
        self._failed.discard(trial.directory)
        result = read_json(self._workdir / trial.directory / "result.json") or {}
        most = trial.settings.training.steps
        if trial.directory not in self._ended:
            # With training.until=flat it may have ended before: the rest takes no time.
            cost = self._cost(trial, result.get("steps", most))
            self._work -= self._cost(trial, most) - cost
            self._done += cost
            self._ended.add(trial.directory)
        if result.get("status") == "finished":
            scores = summary(result, self._metrics)
            text = f"{scores}  ({result['seconds']:.0f} s)"
        else:
            self._failed.add(trial.directory)
            text = f"FAILED: {result.get('error', 'no result was written')}"
        count = f"{self._already + len(self._ended)}/{self._already + len(self._todo)}"
        print_line(self._console, f"[{count}] {trial.name}: {text}")

    def _cost(self, trial, step):
        """Returns the FLOPs of the steps of this call up to `step`."""
        steps = step - self._before[trial.directory]
        return steps * self._cost_of_a_step[trial.directory]

    def _summary(self, lines):
        current = sum(max(0, self._cost(trial, _step(line))) for trial, line in lines)
        speed = sum(line.get("tokens_per_second", 0) for _, line in lines)
        done = self._done + current
        left = "time left not known yet"
        if done:
            elapsed = time.monotonic() - self._start
            left = f"{format_minutes(elapsed * (self._work - done) / done)} left"
        ended = self._already + len(self._ended)
        failed = f", {len(self._failed)} failed" if self._failed else ""
        waiting = max(0, len(self._todo) - len(self._ended) - len(lines))
        return (
            f"{ended} of {self._already + len(self._todo)} trials done{failed}, "
            f"{len(lines)} running, {waiting} to come, {speed:,.0f} tokens/s, {left}"
        )

    def _view(self, lines):
        # A name may have brackets, which rich would otherwise read as its markup.
        bars = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}", markup=False),
            rich.progress.BarColumn(bar_width=24),
            rich.progress.TextColumn("{task.fields[status]}", markup=False),
            console=self._console,
        )
        for trial, line in lines:
            bars.add_task(
                trial.name,
                total=trial.settings.training.steps,
                completed=_step(line),
                status=_status(trial, line),
            )
        return rich.console.Group(
            rich.text.Text(self._summary(lines)), bars.get_renderable()
        )


def _status(trial, line):
    if not line:
        return "compiling"
    steps = trial.settings.training.steps
    return f"step {line['step']}/{steps} loss {line['loss']:.3f}"


def _step(line):
    return line.get("step", 0)


def newest_line(directory: Path) -> dict[str, Any]:
    """Returns the newest training line of a trial's metrics.jsonl, or {}."""
    try:
        text = (directory / "metrics.jsonl").read_text(errors="replace")
    except OSError:
        return {}
    for line in reversed(text.splitlines()):
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            # The last line may be half written.
            continue
        if isinstance(entry, dict) and entry.get("split") == "train":
            return entry
    return {}


def format_minutes(seconds: float) -> str:
    """Returns "40 s" or "5 min"."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
