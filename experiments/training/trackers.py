"""Trackers: TensorBoard and Weights & Biases show the lines of metrics.jsonl elsewhere.

metrics.jsonl is what counts: a tracker is given the lines that it holds when a trial begins
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
from typing import Any, NamedTuple

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


class Trackers:
    """Gives all lines to the trackers of some names."""

    def __init__(self, names: Sequence[str], trial: Tracked):
        self._count = 0
        self._open = {}
        for name in names:
            self._call(name, self._start, name, trial)
        for line in trial.lines:
            self.write(line)

    def write(self, line: Mapping[str, Any]) -> None:
        """Gives a line that follows all before."""
        for name, tracker in list(self._open.items()):
            self._call(name, tracker.write, self._count, line)
        self._count += 1

    def result(self, result: Mapping[str, Any], seconds: float) -> None:
        """Gives the numbers of a trial's result."""
        line = {k: v for k, v in result.items() if type(v) in (int, float)}
        step = line.pop("steps", line.pop("step", 0))
        self.write(line | dict(step=step, split=RESULT, seconds=seconds))

    def close(self) -> None:
        """Ends all trackers."""
        for name, tracker in list(self._open.items()):
            self._call(name, tracker.close)

    def _start(self, name, trial):
        self._open[name] = TRACKERS[name](trial)

    def _call(self, name, function, *arguments):
        try:
            function(*arguments)
        # Their errors are of many kinds, also of the network, and none may end a training.
        except Exception as error:
            self._open.pop(name, None)
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            print(
                f"--tracker={name} is left out from here on ({reason}); metrics.jsonl has "
                "all, and a trial that goes on gives it what is missing",
                file=sys.stderr,
                flush=True,
            )


class TensorBoard:
    """Writes event files into ROOT/tensorboard, for a sweep a folder each trial."""

    module = "tensorboardX"

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
        # The time from which the lines' seconds count.
        self._begun = time.time() - (trial.lines[-1]["seconds"] if trial.lines else 0)
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

    module = "wandb"

    def __init__(self, trial: Tracked):
        import wandb

        # A name that no other trial has.
        path = trial.path / "trackers.json"
        identity = read_json(path) or dict(id=uuid.uuid4().hex[:16])
        write_json(path, identity)
        earlier = list((trial.path / "wandb").glob("offline-run-*"))
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "attn"),
            group=trial.root.name,
            name=trial.name,
            id=identity["id"],
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


TRACKERS = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}
"""The trackers by name, which is also that of the extra that installs one."""


def mistake_in(names: Sequence[str]) -> str:
    """Says what is wrong with the names of trackers; "" where all can be used."""
    for name in names:
        if name not in TRACKERS:
            return f"{name!r} is no tracker; {', '.join(TRACKERS)} are"
        module = TRACKERS[name].module
        if importlib.util.find_spec(module) is None:
            return f"{name} needs {module}; install it with pip install '.[{name}]'"
    return ""


def _values(line):
    """Returns a line's numbers by tag, as "train/loss"."""
    return {
        f"{line['split']}/{name}": value
        for name, value in line.items()
        if name not in ("step", "split") and value is not None
    }
