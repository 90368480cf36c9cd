"""The checkpoints that a trial goes on from after an interruption.

    checkpoints/STEP    every save_every steps: resumed from, and averaged at the end
    interrupted/STEP    where a run was interrupted in between, or began from another trial
    best/STEP           weights of the lowest validation perplexity, with training.keep_best
    damaged/            checkpoints that were found damaged, moved here whole

They hold a trial's state, and as notes its data iterator's and what is noted for the next
line of metrics.jsonl.
"""

import contextlib
import functools
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.errors import CheckpointError
from experiments.training.checkpoint_store import CheckpointStore, Damaged

NOTHING = MappingProxyType({})

FOLDERS = ("checkpoints", "interrupted", "best")
"""Where a trial's checkpoints are, beside those that were found damaged."""


class Restored(NamedTuple):
    """A state, its data iterator's, and what was noted since the last line of metrics."""

    state: Any
    data: dict[str, int]
    noted: Mapping[str, Any] = NOTHING


class Checkpoints:
    """Keeps the checkpoints of the trial in `workdir`: the newest `keep`, one between, the best.

    keep=None is for reading only, from a trial that may be running; a damaged checkpoint
    then stays where it is. `trial` names the trial, if it is known: the checkpoints of
    another count as damaged. `say` gets a line for each damaged one. As a context manager
    it waits at its end for the saves that are under way.
    """

    def __init__(
        self,
        workdir: Path,
        keep: int | None,
        trial: str = "",
        say: Callable[[str], None] | None = None,
    ):
        self._workdir = Path(workdir)
        single = None if keep is None else 1
        saved, between, best = (self._workdir / folder for folder in FOLDERS)
        self._saved = CheckpointStore(saved, keep, trial)
        self._between = CheckpointStore(between, single, trial)
        self._best = CheckpointStore(best, single, trial)
        self._say = say or functools.partial(print, file=sys.stderr, flush=True)

    def latest(self) -> int | None:
        """Returns the step of the newest checkpoint to go on from, or None."""
        return max([*self._saved.steps(), *self._between.steps()], default=None)

    def save(
        self,
        step: int,
        state,
        data: dict[str, int],
        noted: Mapping[str, Any] = NOTHING,
    ) -> None:
        """Starts saving; waits first for all saves before it."""
        # With this checkpoint the trial is past the step that may be the best: that one is
        # not evaluated again.
        self._best.wait()
        self._saved.save(step, state._asdict(), dict(data=data, noted=dict(noted)))

    def save_between(
        self,
        step: int,
        state,
        data: dict[str, int],
        noted: Mapping[str, Any] = NOTHING,
    ) -> None:
        """Saves a step that no average is to have, and waits for it.

        Saves nothing where the newest checkpoint is of this step.
        """
        # A save that is under way may be of this step, and counts once it is whole.
        self.wait()
        if self.latest() != step:
            notes = dict(data=data, noted=dict(noted))
            self._between.save(step, state._asdict(), notes)
            self._between.wait()

    def save_best(self, step: int, state, perplexity: float) -> None:
        """Starts saving the weights alone."""
        weights = dict(step=state.step, params=state.params, positions=state.positions)
        self._best.save(step, weights, dict(perplexity=perplexity))

    def restore(self, state) -> Restored | None:
        """Restores the newest whole checkpoint; returns None if there are none.

        It is a tree like the NamedTuple `state`, on its devices. Fields that are empty in
        `state` are not read, so that a checkpoint from before they existed can be. A damaged
        one is named, moved to WORKDIR/damaged, and the one before is read.

        Raises CheckpointError where all are damaged, or the newest is of another shape.
        """
        stored = [(step, self._between) for step in self._between.steps()]
        stored += [(step, self._saved) for step in self._saved.steps()]
        stored.sort(key=lambda entry: entry[0])
        for step, store in reversed(stored):
            try:
                values, notes = store.read(step, state._asdict())
            except Damaged as error:
                self._set_aside(store, step, error)
                continue
            # An earlier version wrote no notes.
            notes = notes or dict(data={}, noted={})
            return Restored(state._replace(**values), notes["data"], notes["noted"])
        if stored or self._any_damaged():
            raise CheckpointError(
                f"all checkpoints of {self._workdir} are damaged: bring one back from a "
                "copy, or begin anew with another --workdir, or after removing this one"
            )
        return None

    def best_perplexity(self, state) -> float:
        """Returns that of the best weights, which are read whole; infinity without any."""
        best = self._read_best(state)
        return best[1]["perplexity"] if best else math.inf

    def weights(self, name: str, state, count: int):
        """Returns (`state` with the weights `name`, the steps that they come from).

        Weights are the parameters and position tables. "raw": as they are; "average": of the
        last `count` checkpoints; "ema": the state's moving averages; "best": of the lowest
        validation perplexity, and as they are where none can be read.
        """
        if name == "average":
            return self.average(state, count)
        if name == "best":
            if best := self._read_best(state):
                weights, notes = best
                return state._replace(**weights), [notes["step"]]
            self._say(
                f"{self._best.directory} has no whole checkpoint: the newest weights are "
                "taken for the best"
            )
        if name == "ema":
            state = state._replace(**state.ema)
        return state, [int(state.step)]

    def average(self, state, count: int):
        """Returns (`state` with the mean weights of the last `count` checkpoints, their steps).

        Where there are fewer, it is their mean; a damaged one is named and left out. The
        mean is taken in float64. Raises CheckpointError where none is left.
        """
        self._saved.wait()
        weights = dict(params=state.params, positions=state.positions)
        steps = []
        sums = jax.tree.map(lambda x: np.zeros(x.shape), weights)
        # One after another, so that memory does not grow with `count`.
        for step in self._saved.steps()[-count:]:
            try:
                values, _ = self._saved.read(step, weights)
            except Damaged as error:
                self._set_aside(self._saved, step, error)
                continue
            # What is empty is not read.
            values = weights | values
            sums = jax.tree.map(lambda s, x: s + np.asarray(x), sums, values)
            steps.append(step)
        if not steps:
            raise CheckpointError(
                f"{self._saved.directory} has no whole checkpoint to average"
            )

        def mean(total, x):
            return jax.device_put((total / len(steps)).astype(x.dtype), x.sharding)

        return state._replace(**jax.tree.map(mean, sums, weights)), steps

    def _read_best(self, state):
        self._best.wait()
        weights = dict(params=state.params, positions=state.positions)
        for step in reversed(self._best.steps()):
            try:
                return self._best.read(step, weights)
            except Damaged as error:
                self._set_aside(self._best, step, error)
        return None

    def wait(self) -> None:
        """Waits for all saves that are under way."""
        for store in (self._best, self._between, self._saved):
            store.wait()

    def _set_aside(self, store, step, reason):
        self._say(store.set_aside(step, reason, self._workdir / "damaged"))

    def _any_damaged(self):
        """Whether a checkpoint to go on from was damaged, at any time."""
        names = [path.name for path in (self._workdir / "damaged").glob("*")]
        return any(not name.startswith("best") for name in names)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        with contextlib.ExitStack() as closing:
            # All are closed, even where the save of one has failed.
            for store in (self._saved, self._between, self._best):
                closing.callback(store.close)
