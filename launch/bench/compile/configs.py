"""Lists every config with its arguments, and makes trials of them."""

from collections.abc import Sequence
from pathlib import Path

import ml_collections

from experiments.sweep.plan import Trial, plan_trials
from experiments.sweep.points import Point, load_config

FOLDER = "experiments/configs"

ARGUMENTS = {
    "hard": ("transformer", "rnn"),
    "language": ("cldr",),
    "paper": ("base", "big"),
    "systems": ("cldr", "multi30k"),
    "table3": ("base", "small", "tiny"),
    "wmt14_ende": ("base", "big"),
    "wmt14_enfr": ("base", "big"),
}
"""What a config's get_config takes; the others take nothing."""


def every_config() -> list[str]:
    """Returns the paths of all configs, each with each of its arguments."""
    paths = []
    for file in sorted(Path(FOLDER).glob("[a-z]*.py")):
        arguments = ARGUMENTS.get(file.stem)
        paths += [f"{file}:{word}" for word in arguments] if arguments else [str(file)]
    return paths


def config_of(path: str) -> ml_collections.ConfigDict:
    """Returns the config of a path, of which what follows a colon is the argument."""
    _, _, argument = path.partition(":")
    module = load_config(path)
    return module.get_config(argument) if argument else module.get_config()


def plan(path: str, points: Sequence[Point]) -> list[Trial]:
    """Returns the trials of these points on top of a config."""
    return plan_trials(config_of(path), list(points))
