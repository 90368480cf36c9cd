"""A trained model from its directory."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax

from experiments import trial
from experiments.checkpoints import Checkpoints
from experiments.files import DamagedError, read_json
from experiments.records import WorkdirError, not_a_trial
from experiments.settings import Settings, SettingsError, resolve
from experiments.tokens import Vocabulary, digest

LONGEST = 2**21
"""Pieces that a model may read: twice the most of a row."""


class Trained(NamedTuple):
    """What a trial's directory holds of its model; the weights are those that its settings name."""

    settings: Settings
    vocabulary: Vocabulary
    program: trial.Program
    state: trial.State


def load(workdir: Path, point: Mapping[str, Any] = MappingProxyType({})) -> Trained:
    """The model in `workdir`, of its newest checkpoints, its settings with those of `point` on top.

    Raises WorkdirError where there is no model, naming what is there; DamagedError and CheckpointError for files that
    are not what a trial wrote.
    """
    record, config = read_json(workdir / "record.json"), read_json(workdir / "config.json")
    if record is None or config is None:
        raise WorkdirError(not_a_trial(workdir))
    _check(workdir, record, config)
    settings = resolve(config, point)
    vocabulary = _vocabulary(workdir / "vocabulary.model", record)
    program = trial.program(settings, vocabulary.size, record["length"])
    return Trained(settings, vocabulary, program, jax.device_get(_restore(workdir, program, settings)))


def _check(workdir, record, config):
    """Raises DamagedError for a record.json or config.json that no trial wrote."""
    try:
        settings = resolve(config)
    except SettingsError as error:
        raise DamagedError(workdir / "config.json", error) from None
    length, needed = record.get("length"), max(settings.training.row_pieces, settings.evaluation.max_pieces)
    if type(length) is not int or not needed <= length <= LONGEST:
        raise DamagedError(workdir / "record.json", f"length={length!r} is none of {needed} to {LONGEST} pieces")


def _vocabulary(path, record):
    """The vocabulary in the file `path`. Raises DamagedError where it is none, or not the one of record.json."""
    try:
        model = path.read_bytes()
        # Before sentencepiece sees it, which is not made for what is no model.
        if not model or digest(model) != record.get("vocabulary"):
            raise DamagedError(path, f"it is not the vocabulary {record.get('vocabulary')} that record.json names")
        return Vocabulary(model)
    except (OSError, RuntimeError) as error:
        raise DamagedError(path, error) from None


def _restore(workdir, program, settings):
    init = jax.jit(trial.initial_variables, static_argnums=0)
    state = jax.device_put(trial.initial_state(program, settings, init)._replace(moments=()))
    with Checkpoints(workdir, keep=None) as checkpoints:
        found = checkpoints.restore(state)
        if found is None:
            raise WorkdirError(f"{workdir} has no checkpoint yet; train it first")
        return checkpoints.weights(settings.evaluation.weights, found.state, settings.training.average)[0]
