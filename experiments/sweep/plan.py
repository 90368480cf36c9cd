"""Turns the points of a sweep into trials, checks them all, and groups them by program."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections

from experiments.data.batches import Batch
from experiments.settings import Settings, SettingsError, resolve
from experiments.sweep.points import NAMES, Point, SweepError, describe_point
from experiments.system.files import slug
from experiments.trial.cost import (
    all_variable_shapes,
    is_uniform,
    program_without_corpus,
    with_one_layer,
)
from experiments.trial.program import State
from experiments.trial.step import token_losses


class Trial(NamedTuple):
    """Holds a point with its settings, and where its files are."""

    name: str
    directory: str
    """Relative to the sweep's workdir."""
    point: dict[str, Any]
    settings: Settings
    label: str = ""
    """The row's name, if the sweep gives one; trials that differ in seed alone share it."""
    role: str = ""
    """What it is for in a sweep that tunes, see `experiments.sweep.tuning`."""
    parts: Mapping[str, str] = MappingProxyType({})
    """{heading: text}: what each sweep of the product says of the row."""
    tuned: tuple[str, ...] = ()
    """The keys that a sweep tunes, of which its point may have a value."""

    @property
    def title(self) -> str:
        """What a person calls it."""
        return title_of(self.name, self.label, self.point, self.parts, self.tuned)


def title_of(
    name: str,
    label: str,
    point: Mapping[str, Any],
    parts: Mapping[str, str],
    tuned: Iterable[str] = (),
) -> str:
    """Returns the label of a trial's row, else its parts, or else its name.

    With a label or parts stand its seed and its values of the keys that are `tuned`.
    """
    # "h=1 d_k=64" says what it sets, and so does "base".
    texts = [
        text if "=" in text or text == "base" else f"{heading}={text}"
        for heading, text in parts.items()
    ]
    row = label or " ".join(texts)
    if not row:
        return name
    tried = [key for key in (*tuned, "seed") if key in point]
    return " ".join([row, *(f"{key.rpartition('.')[2]}={point[key]}" for key in tried)])


def plan_trials(
    config, points: list[Point], overrides: Point = MappingProxyType({})
) -> list[Trial]:
    """Checks and names each point; points of equal settings are one trial, the first.

    `overrides` are the settings that flags give, see `settings.resolve`.

    Raises SettingsError naming the point, and SweepError for a label that two rows have.
    """
    if isinstance(config, ml_collections.ConfigDict):
        config = config.to_dict()
    trials = {}
    rows = {}
    for labelled in points:
        point = {k: value for k, value in labelled.items() if k not in NAMES}
        label = labelled.get("label", "")
        name = describe_point(point)
        try:
            settings = resolve(config, point, overrides)
        except SettingsError as error:
            raise SettingsError(f"{error} (in the point {name})") from None
        # A label names a row, whose trials differ in their seed alone.
        row = dataclasses.replace(settings, seed=0)
        if label and rows.setdefault(label, row) != row:
            raise SweepError(
                f"two rows have the label {label!r}, one of them the point {name}: give "
                "each its own"
            )
        directory = f"trials/{slug(name)}-{settings.digest()}"
        parts = labelled.get("parts", {})
        trial = Trial(name, directory, point, settings, label, parts=parts)
        trials.setdefault(settings, trial)
    return list(trials.values())


def lane_key(settings: Settings):
    """Returns what trials have in common that can be lanes of one compiled program."""
    t = settings.training
    e = settings.evaluation
    return (
        program_without_corpus(settings),
        settings.data,
        t.batch_size,
        t.strategy,
        # With or without a moving average the state has other arrays.
        t.ema > 0,
        # One search translates for all lanes, and these are compiled into it.
        (e.batch_size, e.max_length, e.max_extra, e.beam, e.alpha),
    )


def group_trials(trials: Iterable[Trial]) -> list[list[Trial]]:
    """Groups trials that can be lanes of one compiled program, in the order of their first."""
    groups = {}
    for trial in trials:
        groups.setdefault(lane_key(trial.settings), []).append(trial)
    return list(groups.values())


def trained_once(trials: Iterable[Trial]) -> list[Trial]:
    """Returns the trials that train: of those that do so alike the first.

    The others copy its training, see `experiments.training.start_point`.
    """
    firsts = {}
    for trial in trials:
        firsts.setdefault(trial.settings.training_key(), trial)
    return list(firsts.values())


def check_all(trials: list[Trial]) -> None:
    """Builds every trial by shape, so that what does not fit together fails before training.

    Each model is initialised, and has its loss computed, with one layer a stack where all
    are alike. Raises SettingsError naming the first trial that cannot be built.
    """
    for trial in trials:
        program = program_without_corpus(trial.settings)
        smallest = with_one_layer(program)
        design = smallest._replace(model=_with_small_sizes(smallest.model))
        try:
            variables = all_variable_shapes(smallest)
            if design not in _with_a_loss:
                _compute_loss(smallest, variables)
                _with_a_loss.add(design)
        except (TypeError, ValueError) as error:
            raise SettingsError(f"{trial.name} cannot be built: {error}") from error


def _with_small_sizes(model):
    """Returns the model with sizes on which it does not depend whether it can be built.

    Positions may not fit any width of the model or of a head.
    """
    if not is_uniform(model) or not hasattr(model, "h"):
        return model
    return dataclasses.replace(model, d_ff=2, h=2, d_v=2, h_kv=min(1, model.h_kv))


# Points that differ in numbers alone share a design, which is tried once.
_with_a_loss = set()


def _compute_loss(program, variables):
    tokens = jax.ShapeDtypeStruct((1, program.sequence_length), jnp.int32)
    batch = Batch(*[tokens] * len(Batch._fields))
    state = State(0, **variables, moments=())
    jax.eval_shape(functools.partial(token_losses, program), state, batch)
