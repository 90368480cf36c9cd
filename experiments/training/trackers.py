"""Trackers: what shows the lines of metrics.jsonl elsewhere, as TensorBoard does.

metrics.jsonl is what counts: a tracker is told the lines that it holds when a trial begins
or goes on, and each new line after that. It has each of them once, whatever ends a run. A
tracker that fails is left out with one line on stderr; training goes on.
"""

import importlib.util
import os
import shutil
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from experiments.system.files import read_json, write_json

RESULT = "result"
"""The split of the line that ends a trial: the numbers of its result.json."""


class Tracking(NamedTuple):
    """Holds the names of trackers, of TRACKERS, and the folder of all trials of a command."""

    names: tuple[str, ...] = ()
    root: Path = Path()


class Tracked(NamedTuple):
    """Holds what trackers know of a trial."""

    root: Path
    path: Path
    name: str
    settings: dict[str, Any]
    """Its settings by dotted key."""
    metrics: tuple[str, ...]
    """The keys of result.json that rows are compared by."""
    lines: list[dict[str, Any]]
    """The lines of metrics.jsonl up to now."""

    @property
    def begun(self) -> float:
        """The time, in seconds since 1970, from which the lines' seconds count."""
        return time.time() - (self.lines[-1]["seconds"] if self.lines else 0)

    def identity(self) -> str:
        """Returns a name that no other trial has, which is kept in the trial's directory."""
        path = self.path / "trackers.json"
        kept = read_json(path)
        if not isinstance(kept, dict) or not isinstance(kept.get("id"), str):
            kept = dict(id=uuid.uuid4().hex[:16])
            write_json(path, kept)
        return kept["id"]


class Tracker(Protocol):
    """Shows the lines of one trial. It is made of a `Tracked`, and writes its lines itself."""

    def write(self, number: int, line: Mapping[str, Any]) -> None:
        """Shows a line, the one of that number in metrics.jsonl."""

    def close(self) -> None:
        """Ends, perhaps before the trial has."""


class Trackers:
    """Tells all lines to the trackers of some names."""

    def __init__(self, names: Sequence[str], trial: Tracked):
        self._count = len(trial.lines)
        self._open: dict[str, Tracker] = {}
        for name in names:
            self._call(name, lambda name=name: self._start(name, trial))

    def write(self, line: Mapping[str, Any]) -> None:
        """Tells a line that follows all before."""
        for name, tracker in list(self._open.items()):
            self._call(name, lambda t=tracker: t.write(self._count, line))
        self._count += 1

    def result(self, result: Mapping[str, Any], seconds: float) -> None:
        """Tells the numbers of a trial's result."""
        numbers = {
            name: value
            for name, value in result.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        }
        step = numbers.pop("steps", numbers.pop("step", 0))
        self.write(numbers | dict(step=step, split=RESULT, seconds=seconds))

    def close(self) -> None:
        """Ends all trackers."""
        for name, tracker in list(self._open.items()):
            self._call(name, tracker.close)

    def _start(self, name, trial):
        tracker = TRACKERS[name].make(trial)
        self._open[name] = tracker
        for number, line in enumerate(trial.lines):
            tracker.write(number, line)

    def _call(self, name, function):
        try:
            function()
        # Their errors are of many kinds, also of the network, and none may end a training.
        except Exception as error:
            self._open.pop(name, None)
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            print(
                f"--tracker={name} is left out from here on ({reason}); metrics.jsonl has "
                "all, and a trial that goes on tells it what is missing",
                file=sys.stderr,
                flush=True,
            )


class TensorBoard:
    """Writes event files into ROOT/tensorboard, for a sweep a folder each trial."""

    def __init__(self, trial: Tracked):
        # Extras, which few install; so below.
        import tensorboardX
        from tensorboardX.summary import hparams

        folder = trial.root / "tensorboard"
        if trial.path != trial.root:
            folder = folder / trial.path.name
        before = list(folder.glob("events.*"))
        for path in before:
            path.unlink()
        # A TensorBoard that is open has what was in them, which this withdraws.
        purge = 0 if before else None
        self._writer = tensorboardX.SummaryWriter(str(folder), purge_step=purge)
        self._begun = trial.begun
        settings = {
            key: value if isinstance(value, (bool, int, float)) else str(value)
            for key, value in trial.settings.items()
        }
        metrics = {f"{RESULT}/{key}": 0.0 for key in trial.metrics}
        experiment, start, self._end = hparams(settings, metrics)
        for summary in (experiment, start):
            self._writer.file_writer.add_summary(summary)

    def write(self, number: int, line: Mapping[str, Any]) -> None:
        at = self._begun + line["seconds"]
        for tag, value in _values(line).items():
            self._writer.add_scalar(tag, value, line["step"], walltime=at)
        if line["split"] == RESULT:
            self._writer.file_writer.add_summary(self._end)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """Logs to Weights & Biases: project attn, or $WANDB_PROJECT; a group each sweep.

    Line i of metrics.jsonl is W&B's step i, so that what it has already is known by one
    number. Offline ($WANDB_MODE) all is written anew to WORKDIR/wandb, and is to be synced
    once a trial has ended.
    """

    def __init__(self, trial: Tracked):
        import wandb

        earlier = list((trial.path / "wandb").glob("offline-run-*"))
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "attn"),
            group=trial.root.name,
            name=trial.name,
            id=trial.identity(),
            resume="allow",
            dir=str(trial.path),
            config=trial.settings,
            # Lanes are runs of one process.
            reinit="create_new",
            settings=wandb.Settings(console="off", silent=True),
        )
        self._first = self._run.step
        if self._run.offline:
            for path in earlier:
                shutil.rmtree(path)
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def write(self, number: int, line: Mapping[str, Any]) -> None:
        if number >= self._first:
            self._run.log(_values(line) | {"step": line["step"]}, step=number)

    def close(self) -> None:
        self._run.finish()


class Kind(NamedTuple):
    """Holds a tracker's class, the module that it needs, and the extra that installs it."""

    make: type
    module: str
    extra: str


TRACKERS = {
    "tensorboard": Kind(TensorBoard, "tensorboardX", "tensorboard"),
    "wandb": Kind(WeightsAndBiases, "wandb", "wandb"),
}
"""The trackers by name."""


def mistake_in(names: Sequence[str]) -> str:
    """Says what is wrong with the names of trackers; "" where all can be used."""
    for name in names:
        if name not in TRACKERS:
            return f"{name!r} is no tracker; {', '.join(TRACKERS)} are"
        kind = TRACKERS[name]
        if importlib.util.find_spec(kind.module) is None:
            return f"{name} needs {kind.module}; install it with pip install '.[{kind.extra}]'"
    return ""


def _values(line):
    """Returns a line's numbers by tag, as "train/loss"."""
    return {
        f"{line['split']}/{name}": value
        for name, value in line.items()
        if name not in ("step", "split") and value is not None
    }
