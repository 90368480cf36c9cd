"""Reports sweep status, from its files alone: on any machine, while it runs or later."""

import json
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from experiments.errors import UserError, one_line
from experiments.evaluation.metric_file import ENDED, read_metrics
from experiments.sweep.claims import (
    JOINERS,
    SILENCE,
    list_claims,
    read_claim,
    read_joiner,
)
from experiments.sweep.plan import title_of
from experiments.sweep.workdir import is_cancelled, read_sweep_file
from experiments.system.files import DamagedError, read_json

NOTHING = MappingProxyType({})

STATES = ("finished", "diverged", "failed", "running", "waiting")


class TrialStatus(NamedTuple):
    """Holds how a trial stands; what does not apply is None."""

    name: str
    """Its label and seed, else what it changes."""
    directory: str
    state: str
    """One of `STATES`."""
    steps: int | None = None
    """All of its steps."""
    step: int = 0
    """Steps that it has made."""
    host: str | None = None
    job: str | None = None
    """The scheduler's name for the process that trains it."""
    since: str | None = None
    silent: float | None = None
    """Seconds since that process's last sign of life, by this machine's clock; None for none."""
    loss: float | None = None
    speed: float | None = None
    """Steps a second."""
    error: str | None = None


class Status(NamedTuple):
    """Holds how a sweep stands."""

    trials: list[TrialStatus]
    processes: int
    """Those that show a sign of life."""
    cancelled: bool
    work: Mapping[str, float] = NOTHING
    """What a step takes beside one of other trials, by directory; the mean of all where it is
    left out."""

    @property
    def counts(self) -> dict[str, int]:
        """{state: trials}."""
        counts = Counter(trial.state for trial in self.trials)
        return {state: counts[state] for state in STATES if counts[state]}

    @property
    def seconds_left(self) -> float | None:
        """Returns the seconds until the last trial ends, at the speed of those that run."""
        open_trials = [t for t in self.trials if t.state in ("running", "waiting")]
        if not open_trials:
            return 0.0
        left = speed = 0.0
        usual = statistics.fmean(self.work.values()) if self.work else 1.0
        for trial in open_trials:
            work = self.work.get(trial.directory, usual)
            left += work * ((trial.steps or 0) - trial.step)
            speed += work * (trial.speed or 0.0)
        return left / speed if speed else None


def read_status(workdir: Path, work: Mapping[str, float] = NOTHING) -> Status:
    """Returns how the sweep of a workdir stands, with the `work` of `Status`.

    Raises UserError where there is none, and DamagedError for a sweep.json that is damaged.
    """
    sweep = read_sweep_file(workdir)
    if sweep is None:
        raise UserError(f"{workdir} holds no sweep (no sweep.json)")
    listing = list_claims(workdir)
    base = sweep["base"]["training"]
    tuned = sweep.get("tuning", {}).get("grid", {})
    trials = []
    for entry in sweep["trials"]:
        steps = (base | entry.get("settings", {}).get("training", {}))["steps"]
        title = _title(entry, tuned)
        status = _trial_status(workdir, entry, title, listing)
        trials.append(status._replace(steps=steps))
    silences = [_silence(path) for path in (workdir / JOINERS).glob("*.json")]
    # A process may have left since.
    alive = sum(seconds < SILENCE for seconds in silences if seconds is not None)
    return Status(trials, alive, is_cancelled(workdir), work)


def _title(entry, tuned) -> str:
    label, point = entry.get("label", ""), entry.get("point", {})
    return title_of(entry.get("name", ""), label, point, entry.get("parts", {}), tuned)


def _trial_status(workdir, entry, title, listing) -> TrialStatus:
    directory = workdir / entry["directory"]
    status = TrialStatus(title, entry["directory"], "waiting")
    name = directory.name
    if listing.is_taken(name) and name not in listing.ended:
        return _running(workdir, status, listing.numbers[name])
    try:
        result = read_json(directory / "result.json")
    except DamagedError as error:
        return status._replace(state="failed", error=str(error))
    if result is None:
        return status._replace(step=newest_line(directory).get("step", 0))
    if result.get("status") not in ENDED:
        return status._replace(state="failed", error=str(result.get("error")))
    error = result.get("error")
    return status._replace(
        state=result["status"], step=result.get("steps", 0), error=error
    )


def _running(workdir, status, number) -> TrialStatus:
    """Adds who has a trial, since when, and how far it is."""
    claim = read_claim(workdir, Path(status.directory).name, number)
    owner = claim.get("joiner", "")
    says = read_joiner(workdir, owner)
    line = newest_line(workdir / status.directory)
    step = line.get("step", 0)
    seconds = line.get("seconds")
    return status._replace(
        state="running",
        step=step,
        host=says.get("host", owner),
        job=says.get("job"),
        since=claim.get("at"),
        silent=_silence(workdir / JOINERS / f"{owner}.json"),
        loss=line.get("loss"),
        speed=step / seconds if seconds else None,
    )


def _silence(path):
    """Returns the seconds since a file was written, None where there is none."""
    try:
        return max(0.0, time.time() - path.stat().st_mtime)
    except OSError:
        return None


def lines_of(
    status: Status, states: Sequence[str] = ("running", "failed"), shown: int = 50
) -> list[str]:
    """Returns lines that a person reads: the counts, then `shown` trials of each state."""
    counts = ", ".join(f"{count} {state}" for state, count in status.counts.items())
    lines = [f"{len(status.trials)} trials: {counts or 'none'}"]
    if status.cancelled:
        lines[0] += "; cancelled"
    elif status.counts.get("running") or status.counts.get("waiting"):
        seconds = status.seconds_left
        left = "not known yet" if seconds is None else format_minutes(seconds)
        lines[0] += f"; {status.processes} processes, time left {left}"
    for state in states:
        say = _say_running if state == "running" else _say_failed
        of_state = [trial for trial in status.trials if trial.state == state]
        lines += map(say, of_state[:shown])
        if len(of_state) > shown:
            lines.append(f"… and {len(of_state) - shown} more {state}")
    # What the files say must not move a terminal's cursor.
    return list(map(one_line, lines))


def _say_running(trial):
    where = f"{trial.host}, job {trial.job}" if trial.job else f"{trial.host}"
    at = f"step {trial.step}/{trial.steps}"
    loss = "" if trial.loss is None else f" loss {trial.loss:.3f}"
    silent = ""
    if trial.silent is None:
        silent = "; no sign of life"
    elif trial.silent > SILENCE:
        silent = f"; no sign of life for {format_minutes(trial.silent)}"
    return f"running  {trial.name}  {at}{loss}  on {where}, since {trial.since}{silent}"


def _say_failed(trial):
    return f"failed   {trial.name}  {trial.error}"


def to_json(status: Status) -> str:
    """Returns all of a status as JSON."""
    values = dict(
        counts=status.counts,
        processes=status.processes,
        cancelled=status.cancelled,
        seconds_left=status.seconds_left,
        trials=[trial._asdict() for trial in status.trials],
    )
    return json.dumps(values, indent=1, ensure_ascii=False)


def newest_line(directory: Path) -> dict[str, Any]:
    """Returns the newest training line of a trial's metrics.jsonl, or {}."""
    lines = read_metrics(directory / "metrics.jsonl").lines
    trained = (line for line in reversed(lines) if line["split"] == "train")
    return next(trained, {})


def format_minutes(seconds: float) -> str:
    """Returns "40 s" or "5 min"."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
