"""Lists every config with its arguments, and makes trials of them."""

from collections.abc import Sequence
from pathlib import Path

import ml_collections

from experiments.errors import UserError
from experiments.sweep.plan import Trial, plan_trials
from experiments.sweep.points import Point, load_config

FOLDER = "experiments/configs"

CHOICES = ("MODELS", "CORPORA", "PRESETS")
"""The names under which a config keeps what its get_config takes."""


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
    """Returns the config of a path, of which what follows a colon is the argument.

    Raises UserError where that is none of what the config takes.
    """
    _, _, argument = path.partition(":")
    module = load_config(path)
    return module.get_config(argument) if argument else module.get_config()


def plan(path: str, points: Sequence[Point]) -> list[Trial]:
    """Returns the trials of these points on top of a config.

    Raises SettingsError for a point that does not fit it.
    """
    return plan_trials(config_of(path), list(points))
