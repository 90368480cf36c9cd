"""Builds the programs of trials that are compiled: a step, perplexity, a search."""

import dataclasses
import functools
from pathlib import Path

import jax
import ml_collections

from experiments.data.batches import Batch
from experiments.errors import UserError
from experiments.evaluation.decode import search_batch, search_of
from experiments.settings import Settings
from experiments.sweep.plan import plan_trials
from experiments.sweep.points import load_config
from experiments.trial.cost import program_without_corpus
from experiments.trial.lanes import Lanes, over_lanes
from experiments.trial.step import token_losses
from launch.fit import in_lanes, integers, state_shapes, step

FOLDER = "experiments/configs"
CHOICES = ("MODELS", "CORPORA", "PRESETS")
"""The names under which a config keeps what its get_config takes."""


# Frozen, because cases are the keys of results.
@dataclasses.dataclass(frozen=True)
class ProgramCase:
    """Describes a program of a trial: its step, or a part of its evaluation."""

    config: str
    """The path of a config, with its argument."""
    point: tuple[tuple[str, object], ...] = ()
    """Settings on top of it."""
    part: str = "step"
    """Or "losses", "search"."""
    lanes: int = 1

    @property
    def name(self) -> str:
        """Returns the name by which --cases picks it."""
        file = self.config.rpartition("/")[2].replace(".py", "")
        words = [file, *(f"{key}={value}" for key, value in self.point), self.part]
        if self.lanes > 1:
            words.append(f"{self.lanes} lanes")
        return " ".join(words)

    def build(self, devices: list[jax.Device]):
        """Returns a jitted function and the shapes of its arguments."""
        if self.part == "step":
            return step(self.settings(), self.lanes, devices)
        return _evaluation(self.part, self.settings(), devices)

    def settings(self) -> Settings:
        """Returns the settings of the trial."""
        return plan_trials(config_of(self.config), [dict(self.point)])[0].settings


def _evaluation(part, settings, devices):
    lanes = Lanes(1, settings.training.strategy, tuple(devices))
    program = program_without_corpus(settings)
    size = settings.evaluation.batch_size
    shape = (size, program.length)
    if part == "losses":
        function = functools.partial(token_losses, program)
        shared = [Batch(*[integers(*shape)] * len(Batch._fields))]
    else:
        how = search_of(settings.evaluation)
        function = functools.partial(search_batch, program, how, ())
        shared = [integers(*shape), integers(size)]
    state = in_lanes(state_shapes(settings, program), lanes)
    sharding = jax.sharding.SingleDeviceSharding(lanes.mesh.devices.flat[0])

    def placed(leaf):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return over_lanes(function, lanes), jax.tree.map(placed, (state, *shared))


def every_config() -> list[str]:
    """Returns the paths of all configs, each with each of its arguments.

    A config that needs a text of the user's own is left out.
    """
    paths = []
    for file in sorted(Path(FOLDER).glob("[a-z]*.py")):
        module = load_config(str(file))
        known = [getattr(module, name) for name in CHOICES if hasattr(module, name)]
        if known:
            paths += [f"{file}:{argument}" for argument in known[0]]
        elif _needs_no_text(module):
            paths.append(str(file))
    return paths


def _needs_no_text(module):
    try:
        module.get_config()
    except UserError:
        return False
    return True


def config_of(path: str) -> ml_collections.ConfigDict:
    """Returns the config of a path; what follows a colon is its argument.

    Raises UserError for an argument that the config does not take.
    """
    _, _, argument = path.partition(":")
    module = load_config(path)
    return module.get_config(argument) if argument else module.get_config()
