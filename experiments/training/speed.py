"""How fast trials train here, measured before a sweep is scheduled."""

import time
from typing import NamedTuple

import jax
import numpy as np

from experiments.data.dataset import Dataset
from experiments.settings import Settings
from experiments.training.device_data import DeviceData
from experiments.training.loop import SECONDS
from experiments.training.population import (
    LONGEST_DISPATCH,
    compiled_steps,
    program_for,
)
from experiments.training.trial_run import batches_of
from experiments.trial.lanes import Lanes
from experiments.trial.program import hyper_of, initial_state


class Measured(NamedTuple):
    """Seconds that a program takes to compile, and that a step of all lanes takes."""

    compile: float
    step: float


def measure(settings: Settings, prepared: Dataset, count: int) -> Measured:
    """Measures how fast `count` lanes of such trials train; the program stays compiled."""
    t = settings.training
    lanes = Lanes(count, t.strategy)
    program = program_for(settings, prepared)
    run = compiled_steps(program, lanes)
    state = jax.device_get(initial_state(program, settings))
    # The same in all lanes, as a step takes as long whatever the numbers are.
    states = lanes.stack([state] * count)
    hypers = lanes.stack([jax.device_get(hyper_of(settings))] * count)
    drawn = [
        batches_of(prepared, t, seed).take(LONGEST_DISPATCH) for seed in range(count)
    ]
    data = DeviceData(prepared.train, lanes, t.sequence_length)
    corpus, slots = data(np.stack(drawn))

    def timed(steps):
        nonlocal states
        begin = time.perf_counter()
        states, metrics = run(states, hypers, corpus, slots, steps)
        jax.block_until_ready(metrics)
        return time.perf_counter() - begin

    with_compilation = timed(1)
    # The first call compiled; this one says how many steps can be timed.
    single = timed(1)
    steps = int(min(LONGEST_DISPATCH, max(1, SECONDS / single)))
    step_time = timed(steps) / steps
    return Measured(max(0.0, with_compilation - step_time), step_time)
