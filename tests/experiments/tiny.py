"""A trial small enough for tests: a few hundred CLDR pairs and a model of one layer."""

import functools

import ml_collections

from experiments import settings
from experiments.data import dataset
from experiments.system.signals import Interrupted, Interruption

POINT = {
    "model.N": 1,
    "model.d_model": 16,
    "model.d_ff": 24,
    "model.h": 2,
    "model.d_k": 8,
    "model.d_v": 8,
    "data.pairs": 300,
    "data.heldout": 12,
    "data.vocabulary_size": 500,
    "data.max_length": 40,
    "training.batch_size": 4,
    "training.sequence_length": 48,
    "training.steps": 12,
    "training.schedule": "paper(warmup=4)",
    "training.log_every": 4,
    "training.evaluate_every": 6,
    "training.save_every": 4,
    "evaluation.batch_size": 8,
    "evaluation.sentences": 5,
    "evaluation.max_length": 12,
    "evaluation.examples": 2,
    "evaluation.beam": 1,
}

SHARED = {"training.ema": 0.6, "evaluation.alpha": 2.0}
"""What test_loop.py needs, and others have so that one program is compiled for all."""

CLDR = ("data.pairs", "data.heldout")
"""The settings of POINT that other corpora lack."""


def resolve(**changes) -> settings.Settings:
    """The tiny settings; changes as group__name=value."""
    point = {key.replace("__", "."): value for key, value in changes.items()}
    return settings.resolve(config(), point)


def shared(**changes) -> settings.Settings:
    """The tiny settings of the programs that tests have in common."""
    point = {key.replace("__", "."): value for key, value in changes.items()}
    return settings.resolve(config(), SHARED | point)


def config() -> ml_collections.ConfigDict:
    """The tiny settings as a config file has them."""
    return settings.override(settings.default_config(), POINT)


@functools.cache
def corpus() -> dataset.Dataset:
    return dataset.prepare(resolve().data)


class StopAt(Interruption):
    """Asks to stop at the n-th moment that a trial looks, from 0 on."""

    def __init__(self, n):
        super().__init__()
        self.left = n

    def check(self):
        self.left -= 1
        if self.left < 0:
            raise Interrupted
