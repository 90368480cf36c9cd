"""The runs of a population, each in its lane, and their states on the devices.

L lanes, K steps of one dispatch.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.data.dataset import Dataset
from experiments.settings import Settings
from experiments.training.device_data import DeviceData
from experiments.training.trial_run import StartedRun, TrialRun
from experiments.trial.lanes import Lanes, distribute, put_lane, take_lane
from experiments.trial.program import Program, State, program_of
from experiments.trial.step import train_steps

LONGEST_DISPATCH = 64
"""The most steps of one dispatch."""


# Not without a limit: compiled programs take memory, and a sweep may have many.
@functools.lru_cache(maxsize=8)
def compiled_steps(program: Program, lanes: Lanes) -> Callable:
    """Returns steps that compile when first called; all trials of a process share them."""
    return distribute(functools.partial(train_steps, program), lanes)


def program_for(settings: Settings, prepared: Dataset) -> Program:
    """Returns the program of a trial on its corpus."""
    size = prepared.vocabulary().size
    length = prepared.length(settings)
    return program_of(settings, size, length, len(prepared.labels))


class Population:
    """Holds the runs that train side by side, at most one a lane."""

    def __init__(self, program: Program, prepared: Dataset, lanes: Lanes):
        self.lanes = lanes
        self._data = DeviceData(prepared.train, lanes, program.sequence_length)
        self._steps = compiled_steps(program, lanes)
        self._runs = [None] * lanes.count
        self._hypers = None
        self.states = None
        """The states of all lanes; those of lanes without a run mean nothing."""

    @property
    def runs(self) -> list[TrialRun]:
        """The runs in their lanes' order."""
        return [run for run in self._runs if run is not None]

    def __contains__(self, run: TrialRun) -> bool:
        return self._runs[run.lane] is run

    def free_lanes(self) -> list[int]:
        return [lane for lane, run in enumerate(self._runs) if run is None]

    def enter(self, run: TrialRun) -> None:
        """Gives a run its lane, which is free."""
        self._runs[run.lane] = run

    def load(self, started: Sequence[StartedRun]) -> None:
        """Puts the states and numbers of runs that have entered onto the devices."""
        if self.states is not None:
            for run, state, hyper in started:
                # Only these lanes change, so the other states stay where they are.
                place = self.lanes.place(run.lane)
                self.states = put_lane(self.states, place, state)
                self._hypers = put_lane(self._hypers, place, hyper)
            return
        # A lane that stays empty has a state too, for all lanes compute.
        states = [started[0].state] * self.lanes.count
        hypers = [started[0].hyper] * self.lanes.count
        for run, state, hyper in started:
            states[run.lane] = state
            hypers[run.lane] = hyper
        self.states = self.lanes.stack(states)
        self._hypers = self.lanes.stack(hypers)

    def remove(self, run: TrialRun) -> None:
        """Frees the run's lane and closes its files."""
        self._runs[run.lane] = None
        run.close()

    def state_of(self, run: TrialRun) -> State:
        return take_lane(self.states, self.lanes.place(run.lane))

    def step(self, slots: Mapping[int, np.ndarray], count: int) -> Any:
        """Dispatches `count` steps of all lanes, on the slots (count, rows, S) by lane.

        Returns the steps' metrics, which the devices may still be computing.
        """
        rows = [None] * self.lanes.count
        for lane, own in slots.items():
            rows[lane] = self.lanes.own_rows(own)
        corpus, slots = self._data(padded_slots(rows))
        # The states are donated: the arrays that were passed are gone after the call.
        self.states, metrics = self._steps(
            self.states, self._hypers, corpus, slots, count
        )
        return metrics


def padded_slots(slots: Sequence[np.ndarray | None]) -> np.ndarray:
    """Joins the slots (count, rows, S) of each lane, None for none, to (L, K, rows, S).

    They are filled up with -1, which names no pair, to one shape: it is compiled once.
    """
    shape = next(slot.shape for slot in slots if slot is not None)
    padded = np.full((len(slots), LONGEST_DISPATCH, *shape[1:]), -1, np.int32)
    for lane, own in enumerate(slots):
        if own is not None:
            padded[lane, : len(own)] = own
    return padded
