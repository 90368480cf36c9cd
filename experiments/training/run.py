"""A trial in its lane: its files, its data, and the step it is at."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.data.batches import Batches
from experiments.data.dataset import Prepared
from experiments.settings import Settings, Training
from experiments.training.checkpoint_process import checkpoints
from experiments.training.metric_log import Board, Log
from experiments.training.run_dir import Directory
from experiments.training.start_point import Beginning, begin
from experiments.trial import flops
from experiments.trial.program import State, hyper_of, initial_state

SKIPS = 10
"""So many steps in a row without a finite loss and gradient end a trial that skips them."""


class Job(NamedTuple):
    """A trial to be run in the directory `path`; `name` and `point` are for its record."""

    settings: Settings
    path: Path
    name: str = "trial"
    point: Mapping[str, Any] = MappingProxyType({})
    begin: Beginning = Beginning()


class Drawn(NamedTuple):
    """Batches that a seat gave out: their pairs' numbers (count, rows, S), and the iterator's state before."""

    slots: np.ndarray
    before: dict[str, int]


class Seat:
    """A trial that is being run. A crew has the compiled functions and what trials share; `opened` is to be closed."""

    def __init__(self, job: Job, directory: Directory, lane: int, crew):
        t = job.settings.training
        self.job, self.lane, self.training, self.directory = job, lane, t, directory
        directory.check_data(crew.prepared)
        self.batches = batches(crew.prepared, t, job.settings.seed)
        with contextlib.ExitStack() as opened:
            self.checkpoints = opened.enter_context(
                checkpoints(job.path, max(2, t.average))
            )
            state = jax.device_put(
                initial_state(crew.program, job.settings, crew.functions.init)
            )
            found, begun = self.checkpoints.restore(state), None
            if found is None:
                found, begun = begin(job.begin, state, job.settings, crew.prepared)
            if found.data:
                self.batches.set_state(found.data)
            self.state, self.hyper = jax.device_get(
                (found.state, hyper_of(job.settings))
            )
            self.step = int(self.state.step)
            if begun:
                self.checkpoints.save_between(
                    self.step, found.state, self.batches.get_state(), found.noted
                )
            self.lowest = (
                self.checkpoints.best_perplexity(state) if t.keep_best else None
            )
            self.bad = found.noted.get("bad", 0)
            directory.describe(
                job.name,
                dict(job.point),
                job.settings,
                crew.prepared,
                crew.program.length,
                begun,
            )
            clock = directory.resume(-1 if begun else self.step)
            board = (
                Board(job.path / "tensorboard", self.step, directory.metrics())
                if crew.tensorboard
                else None
            )
            if board:
                opened.enter_context(contextlib.closing(board))
            self.log = Log(
                directory,
                clock,
                crew.say,
                _peak(t, crew.lanes.count),
                board,
                found.noted,
                t.nonfinite == "skip",
            )
            self.opened = opened.pop_all()

    def until(self) -> int:
        """Steps to the next that something is to be done at."""
        t = self.training
        marks = [
            every - self.step % every
            for every in (t.log_every, t.evaluate_every, t.save_every)
        ]
        return min(*marks, t.steps - self.step)

    @property
    def last(self) -> bool:
        return self.step == self.training.steps

    def due(self, every: int) -> bool:
        return self.step > 0 and (self.last or self.step % every == 0)

    def draw(self, count: int) -> Drawn:
        """The next batches, which the trial then is behind."""
        before = self.batches.get_state()
        self.step += count
        return Drawn(self.batches.take(count), before)

    def too_many(self, finite: np.ndarray) -> int | None:
        """Which of these steps, told finite or not, ends the trial, if one does."""
        most = SKIPS if self.training.nonfinite == "skip" else 1
        for i, well in enumerate(finite):
            self.bad = 0 if well else self.bad + 1
            if self.bad == most:
                return i
        return None

    def identity(self, drawn: Drawn, i: int) -> dict[str, Any]:
        """Which batch the i-th of `drawn` is: its place in the data, and its pairs. The trial must not go on."""
        self.batches.set_state(drawn.before)
        self.batches.take(i + 1)
        place = self.batches.get_state()
        return dict(
            place,
            batch=place["batch"] - 1,
            pairs=drawn.slots[i][drawn.slots[i] >= 0].tolist(),
        )

    def save(self, state: State) -> None:
        self.checkpoints.save(self.step, state, self.batches.get_state(), self._noted())

    def save_between(self, state: State) -> None:
        """For a run that is told to stop, at whatever step."""
        self.checkpoints.save_between(
            self.step, state, self.batches.get_state(), self._noted()
        )

    def evaluated(self, scores: dict[str, float], state: State) -> None:
        """Notes what `state`, of the present step, is worth, and keeps it if it is the best."""
        self.log.validation(self.step, scores)
        if self.lowest is not None and scores["perplexity"] < self.lowest:
            self.lowest = scores["perplexity"]
            self.checkpoints.save_best(self.step, state, self.lowest)

    def _noted(self):
        return dict(self.log.noted(), bad=self.bad)


def batches(prepared: Prepared, training: Training, seed: int) -> Batches:
    return Batches(
        prepared.train,
        batch_size=training.batch_size,
        sequence_length=training.sequence_length,
        seed=seed,
        by_length=training.bucket_by_length,
    )


def _peak(training, lanes):
    """FLOP/s that a lane has of all devices together, or None where that is not known."""
    one = flops.peak(jax.local_devices()[0].device_kind, training.precision)
    return one and one * jax.device_count() / lanes
