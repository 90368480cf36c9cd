"""A sweep: expand the named sweeps of a config into points, check them all, and run what is not finished.

Results are files, so the sweep keeps none: it starts trials in worker processes and reads what they wrote.
"""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections

from attn import Shape
from experiments.data.batches import Batch
from experiments.settings import Settings, SettingsError, resolve
from experiments.sweep.points import Point, SweepError, describe_point
from experiments.system.files import slug
from experiments.trial.cost import _variables, program_without_corpus, variable_shapes
from experiments.trial.program import State
from experiments.trial.step import token_losses


class Planned(NamedTuple):
    """One trial to be."""

    name: str
    directory: str
    point: dict[str, Any]
    settings: Settings
    label: str = ""
    """Its row's name, where the sweep gives one; trials that differ in their seed share it."""


def plan_trials(config, points: list[Point], overrides: Point = {}) -> list[Planned]:
    """Each point checked and named; points of equal settings are one trial, the first of them.

    `overrides` are the settings that flags give, see `settings.resolve`.

    Raises SettingsError naming the point, and SweepError for a label that two rows have.
    """
    config = (
        config.to_dict() if isinstance(config, ml_collections.ConfigDict) else config
    )
    planned, rows = {}, {}
    for point in points:
        point, label = (
            {key: value for key, value in point.items() if key != "label"},
            point.get("label", ""),
        )
        name = describe_point(point)
        try:
            settings = resolve(config, point, overrides)
        except SettingsError as error:
            raise SettingsError(f"{error} (in the point {name})") from None
        row = dataclasses.replace(settings, seed=0)
        if label and rows.setdefault(label, row) != row:
            raise SweepError(
                f"two rows have the label {label!r}, one of them the point {name}: give each its own"
            )
        if settings not in planned:
            planned[settings] = Planned(
                name, f"trials/{slug(name)}-{settings.digest()}", point, settings, label
            )
    return list(planned.values())


def lane_key(settings: Settings):
    """What trials have in common that can be lanes of one compiled program."""
    d, t, e = settings.data, settings.training, settings.evaluation
    return (
        program_without_corpus(settings),
        d,
        t.batch_size,
        t.strategy,
        t.ema > 0,
        (e.batch_size, e.max_length, e.max_extra, e.beam, e.alpha),
    )


def group_trials(planned: Iterable[Planned]) -> list[list[Planned]]:
    """Trials that can be lanes of one compiled program, together, in the order of their first."""
    found = {}
    for one in planned:
        found.setdefault(lane_key(one.settings), []).append(one)
    return list(found.values())


def check_all(planned: list[Planned]) -> None:
    """Builds by shape: each size of model as it is initialised, and a loss for each design. What does not fit together
    fails here, for nothing.

    Raises SettingsError naming the first trial that cannot be built.
    """
    for one in planned:
        try:
            variable_shapes(program_without_corpus(one.settings))
            _loss(
                program_without_corpus(one.settings)._replace(
                    shape=Shape(1, 2, 2, 2, 2, 2)
                )
            )
        except (TypeError, ValueError) as error:
            raise SettingsError(f"{one.name} cannot be built: {error}") from error


@functools.cache
def _loss(program):
    batch = Batch(
        *[jax.ShapeDtypeStruct((1, program.sequence_length), jnp.int32)]
        * len(Batch._fields)
    )
    state = State(0, **_variables(program), moments=())
    jax.eval_shape(functools.partial(token_losses, program), state, batch)
