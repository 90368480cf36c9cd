"""What a person sees while a sweep runs: a live view in a terminal, plain lines elsewhere."""

import json
import time
from pathlib import Path

import rich.table

from experiments.sweep.plan import Planned
from experiments.system.files import read_json

LINE_EVERY = 20.0
"""Seconds between status lines where the output is no terminal."""


class Progress:
    """Counts trials and steps, and shows them. A context manager; `update` and `ended` tell it what happens."""

    def __init__(
        self,
        workdir: Path,
        todo: list[Planned],
        already: int,
        console: rich.console.Console,
    ):
        self._workdir, self._todo, self._console = workdir, todo, console
        self._already, self._ended, self._failed = already, 0, 0
        self._steps_done, self._steps = (
            0,
            sum(one.settings.training.steps for one in todo),
        )
        self._start = self._spoke = time.monotonic()
        self._before = {one.directory: _step(_last_line(workdir, one)) for one in todo}
        self._live = (
            rich.live.Live(console=console, refresh_per_second=4)
            if console.is_terminal
            else None
        )

    def __enter__(self):
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *exception):
        if self._live:
            self._live.update("")
            self._live.stop()

    def update(self, running: list[Planned]) -> None:
        """Shows the state of the running trials, as their metrics.jsonl has it."""
        lines = [(one, _last_line(self._workdir, one)) for one in running]
        if self._live:
            self._live.update(self._view(lines))
        elif time.monotonic() - self._spoke > LINE_EVERY:
            self._spoke = time.monotonic()
            now = "; ".join(f"{one.name} {_status(one, line)}" for one, line in lines)
            self._console.print(
                f"{self._summary(lines)} | {now}", highlight=False, soft_wrap=True
            )

    def ended(self, one: Planned) -> None:
        """A trial has its result: one line of it, for good."""
        self._ended += 1
        self._steps_done += one.settings.training.steps - self._before[one.directory]
        result = read_json(self._workdir / one.directory / "result.json") or {}
        if result.get("status") == "finished":
            scores = (
                "BLEU {bleu:.1f}  exact match {exact_match:.1%}  "
                if "bleu" in result
                else ""
            )
            text = f"perplexity {result['perplexity']:.3f}  {scores.format(**result)}({result['seconds']:.0f} s)"
        else:
            self._failed += 1
            text = f"FAILED: {result.get('error', 'no result was written')}"
        self._console.print(
            f"[{self._already + self._ended}/{self._already + len(self._todo)}] {one.name}: {text}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )

    def _summary(self, lines):
        current = sum(
            max(0, _step(line) - self._before[one.directory]) for one, line in lines
        )
        speed = sum(line.get("tokens_per_second", 0) for _, line in lines)
        done, elapsed = self._steps_done + current, time.monotonic() - self._start
        total = self._steps - sum(self._before.values())
        left = (
            f"{_minutes(elapsed * (total - done) / done)} left"
            if done
            else "time left not known yet"
        )
        count = f"{self._already + self._ended} of {self._already + len(self._todo)} trials done"
        failed = f", {self._failed} failed" if self._failed else ""
        return f"{count}{failed}, {len(self._todo) - self._ended - len(lines)} to come, {speed:,.0f} tokens/s, {left}"

    def _view(self, lines):
        grid = rich.table.Table.grid(padding=(0, 2))
        grid.add_row(self._summary(lines))
        inner = rich.table.Table.grid(padding=(0, 2))
        for one, line in lines:
            bar = rich.progress.ProgressBar(
                total=one.settings.training.steps, completed=_step(line), width=24
            )
            inner.add_row(rich.markup.escape(one.name), bar, _status(one, line))
        grid.add_row(inner)
        return grid


def _status(one, line):
    if not line:
        return "compiling"
    return f"step {line['step']}/{one.settings.training.steps} loss {line['loss']:.3f}"


def _step(line):
    return line.get("step", 0)


def _last_line(workdir, one) -> dict:
    """The newest training line of the trial's metrics.jsonl, or {}."""
    try:
        text = (workdir / one.directory / "metrics.jsonl").read_text()
    except FileNotFoundError:
        return {}
    for line in reversed(text.splitlines()):
        try:
            if (found := json.loads(line))["split"] == "train":
                return found
        except json.JSONDecodeError:
            continue  # still being written
    return {}


def _minutes(seconds):
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
