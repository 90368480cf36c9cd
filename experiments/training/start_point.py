"""Where a trial begins. In this order:

1. its own newest checkpoint that is whole;
2. --resume: the state and the data iterator's of another trial's newest checkpoint;
3. --init_from: another trial's weights, at step 0, with a fresh optimizer and fresh data;
4. fresh parameters.

The second and the third are for a trial that has no checkpoint of its own; it gets one at once, so that it goes on from
there whatever becomes of the other.
"""

from pathlib import Path
from typing import Any, NamedTuple

from experiments.data.dataset import Prepared
from experiments.errors import CheckpointError, WorkdirError
from experiments.settings import Settings, resolve
from experiments.system.files import read_json
from experiments.training.checkpoint_process import checkpoints
from experiments.training.checkpoints import Restored
from experiments.training.run_dir import not_a_trial, other_data
from experiments.trial.program import State, position_encoding

ORDER = (
    "seed",
    "training.batch_size",
    "training.sequence_length",
    "training.bucket_by_length",
    "data.max_length",
)
"""What the order of the data depends on, beside the data themselves."""


class Beginning(NamedTuple):
    """The directories that --resume and --init_from name; at most one of them."""

    resume: str = ""
    init_from: str = ""


def begin(
    how: Beginning, state: State, settings: Settings, prepared: Prepared
) -> tuple[Restored, dict[str, Any] | None]:
    """What a trial without a checkpoint of its own begins with, and what record.json is to say of that, if anything.

    `state` is the fresh one. The data iterator's state is empty where it begins anew.

    Raises WorkdirError where the other trial has no checkpoint or is of other data, CheckpointError where its arrays do
    not fit, naming the first.
    """
    if how.resume:
        return _resumed(Path(how.resume), state, settings, prepared)
    if how.init_from:
        return _initialised(Path(how.init_from), state, settings, prepared)
    return Restored(state, {}), None


def _resumed(workdir, state, settings, prepared):
    config, record = _read(workdir)
    if was := other_data(record, prepared):
        raise WorkdirError(
            f"--resume={workdir} is of other data: {was}. --init_from takes its weights alone"
        )
    for key in ORDER:
        there, here = _get(config, key), _get(settings.to_dict(), key)
        if there != here:
            raise WorkdirError(
                f"--resume={workdir} has its data in another order: {key} is {there!r} there, and "
                f"{here!r} here. Make them equal, or take its weights alone with --init_from"
            )
    with checkpoints(workdir, keep=None) as kept:
        found = _restored(kept, workdir, state)
    step = int(found.state.step)
    if not found.data:
        raise CheckpointError(
            f"{workdir} was saved by an earlier version: --init_from takes its weights alone"
        )
    if step > settings.training.steps:
        raise CheckpointError(
            f"--resume={workdir} is at step {step} already; set training.steps to more than that, "
            f"not {settings.training.steps}"
        )
    return found, dict(resume=str(workdir.absolute()), step=step)


def _initialised(workdir, state, settings, prepared):
    config, record = _read(workdir)
    there, here = record.get("vocabulary"), prepared.vocabulary().digest
    if there != here:
        raise WorkdirError(
            f"--init_from={workdir} has another vocabulary: {there}, and {here} here; its weights mean "
            "other tokens"
        )
    theirs = resolve(config, trusted=False)
    name = theirs.evaluation.weights
    weights = dict(params=state.params, positions=state.positions)
    if not position_encoding(settings).trained:
        del weights[
            "positions"
        ]  # fixed by the settings here; its length may be another there
    template = state._replace(
        moments=(), ema=weights if name == "ema" else (), **{"positions": (), **weights}
    )
    with checkpoints(workdir, keep=None) as kept:
        found = _restored(kept, workdir, template)
        chosen, steps = kept.weights(name, found.state, theirs.training.average)
    begun = dict(init_from=str(workdir.absolute()), weights=name, steps=steps)
    return Restored(
        state._replace(**{field: getattr(chosen, field) for field in weights}), {}
    ), begun


def _restored(kept, workdir, template):
    found = kept.restore(template)
    if found is None:
        raise WorkdirError(f"{workdir} has no checkpoint yet; train it first")
    return found


def _read(workdir):
    config, record = (
        read_json(workdir / "config.json"),
        read_json(workdir / "record.json"),
    )
    if config is None or record is None:
        raise WorkdirError(not_a_trial(workdir))
    return config, record


def _get(config, key):
    for name in key.split("."):
        config = (config or {}).get(name)
    return config
