"""The part of a process that is not the first of a trial's: it trains its rows of each batch."""

import jax
import numpy as np

from experiments.data.batches import Batches
from experiments.data.dataset import Dataset
from experiments.settings import Settings
from experiments.system.signals import Interrupted, Interruption
from experiments.training import multihost
from experiments.training.device_data import DeviceData
from experiments.training.population import (
    compiled_steps,
    padded_slots,
    program_for,
)
from experiments.training.trial_run import batches_of
from experiments.trial.lanes import Lanes, check_batch_size
from experiments.trial.program import State, hyper_of, initial_state


def follow(
    settings: Settings, prepared: Dataset, lanes: Lanes, interruption: Interruption
) -> None:
    """Makes the steps that the first process asks for, until that one ends.

    Raises Interrupted where the first does.
    """
    t = settings.training
    check_batch_size(t.batch_size, lanes.mesh.size, t.accumulate)
    program = program_for(settings, prepared)
    steps = compiled_steps(program, lanes)
    data = DeviceData(prepared.train, lanes, t.sequence_length)
    batches = batches_of(prepared, t, settings.seed)
    states = None
    while (count := multihost.meet(interruption=interruption)) > 0:
        # Only now has the first process found its start, which it alone can read.
        if states is None:
            fresh = jax.device_get(initial_state(program, settings))
            states = lanes.stack([share(fresh, batches)])
            hypers = lanes.stack([jax.device_get(hyper_of(settings))])
        rows = lanes.own_rows(batches.take(count))
        corpus, slots = data(padded_slots([rows]))
        states, metrics = steps(states, hypers, corpus, slots, count)
        jax.block_until_ready(metrics)
        # From here on a signal waits for the next meeting, which tells the first.
        interruption.unsaved = True
    if count == multihost.STOPPED:
        raise Interrupted


def share(state: State, batches: Batches) -> State:
    """Gives the first process's state, and its place in the data, to all processes."""
    names = list(batches.get_state())
    place = np.array(list(batches.get_state().values()), np.int32)
    state, place = multihost.broadcast((state, place))
    batches.set_state(dict(zip(names, place.tolist(), strict=True)))
    return state
