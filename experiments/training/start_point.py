"""Where a trial starts: from a checkpoint of its own, from another trial, or fresh.

Trials of a sweep that differ in nothing but how they are scored train alike: one of them is
trained. The others begin with a copy of its checkpoints and of its lines of metrics, as if
they had been killed at their end, and are only scored. Their weights are the same to the last
bit.
"""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from experiments.data.dataset import Dataset
from experiments.errors import CheckpointError, WorkdirError
from experiments.settings import Settings, resolve, without_scoring
from experiments.system import code
from experiments.system.checksums import changed_files
from experiments.system.files import DamagedError, read_json, remove
from experiments.training.checkpoints import FOLDER, Checkpoints, Restored
from experiments.training.run_dir import (
    DATA_ORDER,
    look_up,
    other_data,
    read_result,
    read_trial,
)
from experiments.trial.program import State

UNFINISHED = "copying"
"""The folder of a trial that is there until a copy is whole."""


class StartPoint(NamedTuple):
    """The other trials that a trial may start from."""

    resume: str = ""
    """The directory that --resume names."""
    init_from: str = ""
    """That of --init_from; at most one of both is given."""
    alike: tuple[Path, ...] = ()
    """The directories of trials that train alike."""


def find_start(
    checkpoints: Checkpoints,
    start: StartPoint,
    fresh: State,
    settings: Settings,
    prepared: Dataset,
) -> tuple[Restored, dict[str, Any] | None]:
    """Returns where a trial starts, and what record.json says of another trial, if any.

    The order of precedence is:

    1. the newest whole checkpoint among `checkpoints`, the trial's own, which may be those
       of a trial that trains alike (`copy_training`);
    2. --resume: state and place in the data of another trial's newest checkpoint;
    3. --init_from: another trial's weights, at step 0, with a fresh optimizer and data;
    4. the `fresh` state.

    The place in the data is empty where they start from the beginning. The caller saves a
    checkpoint at once after 2 and 3, so that the trial's own comes first from then on.

    Raises WorkdirError where the other trial has no checkpoint or has other data,
    CheckpointError where its arrays do not fit, naming the first.
    """
    restored = checkpoints.restore(fresh)
    if restored is not None:
        return restored, None
    if start.resume:
        return _resume(Path(start.resume), fresh, settings, prepared)
    if start.init_from:
        return _initialise(Path(start.init_from), fresh, settings, prepared)
    return Restored(fresh, {}), None


def check_start(workdir: Path, start: StartPoint, prepared: Dataset) -> None:
    """Raises WorkdirError where the other trial has other data, or another vocabulary.

    Nothing is written: the directory can still be begun otherwise. One that has checkpoints
    of its own goes on from these, and must have been begun from that trial.
    """
    if (workdir / FOLDER).exists():
        _check_begun(workdir, start)
        return
    if start.resume:
        _check_data(Path(start.resume), prepared)
    if start.init_from:
        _check_vocabulary(Path(start.init_from), prepared)


def _check_begun(workdir, start):
    """Raises WorkdirError where a trial that goes on was not begun from the one that is given."""
    begun = (read_json(workdir / "record.json") or {}).get("begun") or {}
    for flag in ("resume", "init_from"):
        given = getattr(start, flag)
        if given and begun.get(flag) != str(Path(given).absolute()):
            other = begun.get("resume") or begun.get("init_from")
            was = f"from {other}" if other else "without another trial"
            raise WorkdirError(
                f"{workdir} was begun {was}, and would go on so, not from --{flag}={given}: "
                f"choose another --workdir, or leave --{flag} out"
            )


def _check_data(workdir, prepared):
    """Returns the other trial's config."""
    config, record = read_trial(workdir)
    if differences := other_data(record, prepared):
        raise WorkdirError(
            f"--resume={workdir} is of other data: {differences}. "
            "--init_from takes its weights alone"
        )
    return config


def _check_vocabulary(workdir, prepared):
    """Returns the other trial's config."""
    config, record = read_trial(workdir)
    theirs = record.get("vocabulary")
    ours = prepared.vocabulary().digest
    if theirs != ours:
        raise WorkdirError(
            f"--init_from={workdir} has another vocabulary: {theirs}, and {ours} here; "
            f"its weights mean other tokens; give --config.data.vocabulary={workdir}"
        )
    return config


def _resume(workdir, fresh, settings, prepared):
    config = _check_data(workdir, prepared)
    for key in DATA_ORDER:
        theirs = look_up(config, key)
        ours = look_up(settings.to_dict(), key)
        if theirs != ours:
            raise WorkdirError(
                f"--resume={workdir} has its data in another order: {key} is {theirs!r} "
                f"there, and {ours!r} here. Make them equal, or take its weights alone "
                "with --init_from"
            )
    with Checkpoints(workdir, keep=None) as checkpoints:
        restored = _restore(checkpoints, workdir, fresh._replace(numbers={}))
    # Those of the settings here.
    state = restored.state._replace(numbers=fresh.numbers)
    restored = restored._replace(state=state)
    step = int(restored.state.step)
    if step > settings.training.steps:
        raise CheckpointError(
            f"--resume={workdir} is at step {step} already; set training.steps to more "
            f"than that, not {settings.training.steps}"
        )
    _check_schedule(workdir, config, settings, step)
    return restored, dict(resume=str(workdir.absolute()), step=step)


def _check_schedule(workdir, config, settings, step):
    """Raises WorkdirError where more steps would change the rates of those behind it."""
    t = settings.training
    if look_up(config, "training.schedule") != t.schedule:
        return
    theirs = look_up(config, "training.steps")
    schedule = t.schedule_choice
    if schedule.factor(step, theirs) != schedule.factor(step, t.steps):
        raise WorkdirError(
            f"--resume={workdir} is at step {step} of {theirs}, where training.schedule="
            f"{t.schedule} has decayed already: training.steps={t.steps} would give it "
            "another rate. Take its weights alone with --init_from, or another schedule"
        )


def _initialise(workdir, fresh, settings, prepared):
    config = _check_vocabulary(workdir, prepared)
    # The directory may be another person's: code that it names is not run unasked.
    other = resolve(config, trusted=False)
    name = other.evaluation.weights
    weights = dict(params=fresh.params, positions=fresh.positions)
    if not any(table.trained for table in settings.model.tables().values()):
        # The settings fix the tables here; their length may be another there.
        del weights["positions"]
    # What is empty here is not read: the optimizer and its moments may be others there.
    ema = weights if name == "ema" else ()
    # So may be the numbers.
    rest = dict(moments=(), ema=ema, numbers={})
    template = fresh._replace(**{"positions": (), **weights, **rest})
    with Checkpoints(workdir, keep=None) as checkpoints:
        restored = _restore(checkpoints, workdir, template)
        chosen, steps = checkpoints.weights(
            name, restored.state, other.training.average
        )
    origin = dict(init_from=str(workdir.absolute()), weights=name, steps=steps)
    values = {field: getattr(chosen, field) for field in weights}
    return Restored(fresh._replace(**values), {}), origin


def _restore(checkpoints, workdir, template):
    restored = checkpoints.restore(template)
    if restored is None:
        raise WorkdirError(f"{workdir} has no checkpoint; train it first")
    return restored


def copy_training(
    path: Path, alike: Iterable[Path], settings: Settings, prepared: Dataset
) -> dict[str, Any] | None:
    """Copies what a trial of `alike` has trained to `path`, which has no checkpoint yet.

    Returns what record.json is to say of it; None where there is a checkpoint already, or
    none of them has ended with the same training by this code, unchanged since.
    """
    # Of a process that was killed while it copied.
    remove(path / UNFINISHED)
    if (path / FOLDER).exists():
        return None
    for other in alike:
        # It is one of those that train as it does.
        if other != path and _has_trained(other, settings, prepared):
            shutil.copyfile(other / "metrics.jsonl", path / "metrics.jsonl")
            shutil.copytree(other / FOLDER, path / UNFINISHED)
            # At once, so that no part of a copy is taken for the whole.
            os.rename(path / UNFINISHED, path / FOLDER)
            return dict(trained_as=str(other.absolute()))
    return None


def _has_trained(other, settings, prepared):
    try:
        result = read_result(other)
        config = read_json(other / "config.json")
        record = read_json(other / "record.json")
    except DamagedError:
        return False
    # One that has diverged, or lost a file since, is no reason not to train.
    if None in (result, config, record) or result.get("status") != "finished":
        return False
    known = ("config.json", "record.json", "metrics.jsonl")
    return (
        without_scoring(config) == without_scoring(settings.to_dict())
        and code.of(record) == code.now()
        and not changed_files(other, known)
        and not other_data(record, prepared)
        and (other / FOLDER).exists()
    )
