"""A trial while it trains: its files, its batches, and the step it is at."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from flax.traverse_util import flatten_dict

from experiments.data.batches import Batches
from experiments.data.dataset import Dataset
from experiments.evaluation.decode import search_text
from experiments.evaluation.metrics import METRICS
from experiments.evaluation.perplexity import of_scores
from experiments.settings import Settings, Training
from experiments.training.checkpoints import Best, Checkpoints
from experiments.training.early_stopping import has_stopped_falling
from experiments.training.metric_log import Log
from experiments.training.run_dir import RunDir, training_digest
from experiments.training.start_point import StartPoint, copy_training, find_start
from experiments.training.trackers import Tracked, Trackers, Tracking
from experiments.trial import flops
from experiments.trial.lanes import Lanes
from experiments.trial.program import Hyper, Program, State, hyper_of, initial_state

MOST_SKIPS = 10
"""Steps in a row without a finite loss and gradient that end a trial which skips them."""


class Job(NamedTuple):
    """A trial to train, and the directory for its files; `name` and `point` go to its record."""

    settings: Settings
    path: Path
    name: str = "trial"
    point: Mapping[str, Any] = MappingProxyType({})
    start: StartPoint = StartPoint()


class Common(NamedTuple):
    """What the trials of a population have in common."""

    prepared: Dataset
    program: Program
    lanes: Lanes
    say: Callable[[str], None]
    """Gets a line for each log and evaluation."""
    tracking: Tracking


class DrawnBatches(NamedTuple):
    """Batches of a run for some steps: the numbers of their pairs (count, rows, S), or -1."""

    slots: np.ndarray
    before: dict[str, int]
    """The state of the data iterator before them."""
    step: int = 0
    """The run's step after them."""
    logs: bool = False
    """Whether a line is due there."""

    @property
    def pairs(self) -> np.ndarray:
        """The numbers of all pairs, one after another."""
        return self.slots[self.slots >= 0]


# Compared by identity, as runs are keys of dictionaries.
@dataclasses.dataclass(eq=False)
class TrialRun:
    """Holds what a trial needs while it trains, except for its state, which is on the devices."""

    job: Job
    lane: int
    run_dir: RunDir
    batches: Batches
    checkpoints: Checkpoints
    log: Log
    step: int
    best: Best
    """The step of the lowest validation perplexity."""
    bad_steps: int
    """Steps without a finite loss and gradient, in a row up to now."""
    resources: contextlib.ExitStack
    """Closes the checkpoints and trackers, and unlocks the directory."""
    attended: int = -1
    """The last step at which it was evaluated and saved as its settings say."""

    @property
    def settings(self) -> Settings:
        return self.job.settings

    @property
    def training(self) -> Training:
        return self.job.settings.training

    @property
    def ended(self) -> bool:
        """Whether no step is to follow."""
        return self.step == self.training.steps or self.is_flat

    @property
    def is_flat(self) -> bool:
        """Whether it is to end when perplexity has stopped falling, and that has."""
        t = self.training
        # Only where it was just evaluated: a checkpoint between evaluations goes on.
        evaluates = self.step % t.evaluate_every == 0
        if t.until != "flat" or self.step < t.earliest_end or not evaluates:
            return False
        perplexities = self.run_dir.perplexities()
        return self.step in perplexities and has_stopped_falling(perplexities)

    @property
    def evaluates(self) -> bool:
        """Whether the settings ask for an evaluation at this step."""
        return self._is_due(self.training.evaluate_every)

    @property
    def saves(self) -> bool:
        """Whether the settings ask for a checkpoint at this step."""
        return self._is_due(self.training.save_every)

    @property
    def improved(self) -> bool:
        """Whether this step's weights are the best, and those are kept."""
        return self.training.keep_best and self.best.step == self.step

    @property
    def logs(self) -> bool:
        """Whether the settings ask for a line of metrics.jsonl at this step."""
        return self._is_due(self.training.log_every)

    @property
    def at_mark(self) -> bool:
        """Whether it is to be evaluated or saved before the next step."""
        return self.attended != self.step and (self.evaluates or self.saves)

    def _is_due(self, every):
        # At the end whatever the interval is, as the result is of the last step.
        return self.step > 0 and (self.ended or self.step % every == 0)

    def steps_to_mark(self) -> int:
        """Counts the steps until it is to be logged, evaluated or saved."""
        t = self.training
        marks = [
            every - self.step % every
            for every in (t.log_every, t.evaluate_every, t.save_every)
        ]
        return min(*marks, t.steps - self.step)

    def next_batches(self, count: int) -> DrawnBatches:
        """Draws the batches of `count` steps, and counts these as made."""
        # `identify` goes back here, to say which pairs were in a batch.
        before = self.batches.get_state()
        self.step += count
        return DrawnBatches(self.batches.take(count), before, self.step, self.logs)

    def fatal_step(self, finite: np.ndarray) -> int | None:
        """Returns which of the next steps, finite or not, ends the trial; None for none."""
        limit = MOST_SKIPS if self.training.nonfinite == "skip" else 1
        for i, is_finite in enumerate(finite):
            self.bad_steps = 0 if is_finite else self.bad_steps + 1
            if self.bad_steps == limit:
                return i
        return None

    def identify(self, drawn: DrawnBatches, i: int) -> dict[str, Any]:
        """Returns the place in the data and the pairs of the i-th batch of `drawn`.

        The data iterator stays there: the trial must not go on.
        """
        self.batches.set_state(drawn.before)
        self.batches.take(i + 1)
        place = self.batches.get_state()
        slots = drawn.slots[i]
        # The state names the batch that would follow.
        return dict(place, batch=place["batch"] - 1, pairs=slots[slots >= 0].tolist())

    def save(self, state: State) -> None:
        """Starts saving a checkpoint of this step, whatever the reason."""
        perplexity = self.best.perplexity if self.improved else None
        place = self.batches.get_state()
        self.checkpoints.save(
            self.step, state, place, self._noted(), self.saves, perplexity
        )

    def log_validation(self, scores: dict[str, float]) -> None:
        """Logs the scores of this step."""
        self.log.validation(self.step, scores)
        perplexity = of_scores(scores)
        if perplexity < self.best.perplexity:
            self.best = Best(self.step, perplexity)

    def close(self) -> None:
        """Waits for saves and closes files."""
        self.resources.close()

    def _noted(self):
        logged = self.run_dir.logged()
        # Steps in a row are counted on after an interruption.
        return dict(self.log.noted(), bad=self.bad_steps, logged=logged)


class StartedRun(NamedTuple):
    """A run with the state and the numbers that go to its lane."""

    run: TrialRun
    state: State
    hyper: Hyper


def start_run(
    job: Job,
    run_dir: RunDir,
    lane: int,
    common: Common,
    resources: contextlib.ExitStack,
) -> StartedRun:
    """Opens the files of a trial, whose `run_dir` is, and finds its start point.

    The run closes them with the `resources`; after an error they are left to the caller.
    State and numbers are on the host. Raises what `find_start` raises, and WorkdirError
    where the trial began with other data.
    """
    t = job.settings.training
    run_dir.check_data(common.prepared)
    copied = copy_training(job.path, job.start.alike, job.settings, common.prepared)
    batches = batches_of(common.prepared, t, job.settings.seed)
    checkpoints = resources.enter_context(
        # Two at least: where the newest is damaged, the one before is used.
        Checkpoints(job.path, max(2, t.average), training_digest(job.settings))
    )
    fresh = jax.device_get(initial_state(common.program, job.settings))
    restored, origin = find_start(
        checkpoints, job.start, fresh, job.settings, common.prepared
    )
    if restored.data:
        batches.set_state(restored.data)
    # On the host, where `Lanes.stack` joins the states of all lanes.
    state, hyper = jax.device_get((restored.state, hyper_of(job.settings)))
    step = int(state.step)
    noted = dict(restored.noted)
    logged = noted.pop("logged", "")
    if origin:
        # What another trial logged is not in this one's file.
        logged = ""
        # So that the trial goes on from there whatever becomes of the other.
        checkpoints.save(step, restored.state, batches.get_state(), noted, False)
        checkpoints.wait()
    best = checkpoints.best() if t.keep_best else None
    run_dir.describe(
        job.name,
        dict(job.point),
        job.settings,
        common.prepared,
        common.program.length,
        # A copy without a whole checkpoint is none.
        origin or (copied if step else None),
        goes_on=step > 0 and origin is None and copied is None,
    )
    clock = run_dir.resume(logged)
    log = _open_log(job, run_dir, clock, noted, common, resources)
    run = TrialRun(
        job=job,
        lane=lane,
        run_dir=run_dir,
        batches=batches,
        checkpoints=checkpoints,
        log=log,
        step=step,
        best=best or Best(-1, math.inf),
        bad_steps=restored.noted.get("bad", 0),
        resources=resources.pop_all(),
    )
    return StartedRun(run, state, hyper)


def _open_log(job, run_dir, clock, noted, common, resources):
    """Opens the log of a trial, and its trackers, which `resources` closes."""
    t = job.settings.training
    trackers = None
    if common.tracking.names:
        tracked = _tracked(job, common.tracking.root, run_dir.metrics())
        trackers = Trackers(common.tracking.names, tracked)
        resources.enter_context(contextlib.closing(trackers))
    e = job.settings.evaluation
    count = len(common.prepared.validation.text.target)
    return Log(
        run_dir,
        clock,
        common.say,
        metrics=(*METRICS, *e.own_metrics),
        scored=search_text(job.settings, 1, e.sentences, count),
        loss_metric=job.settings.objective.loss_metric,
        peak=_peak(t, common.lanes.count),
        trackers=trackers,
        noted=noted,
        skip=t.nonfinite == "skip",
    )


def _tracked(job, root, lines):
    """Returns what trackers know of a trial."""
    settings = flatten_dict(job.settings.to_dict(), sep=".")
    metrics = (*METRICS, *job.settings.evaluation.own_metrics)
    keys = tuple(metric.key for metric in metrics)
    return Tracked(root, job.path, job.name, settings, keys, lines)


def batches_of(prepared: Dataset, training: Training, seed: int) -> Batches:
    """Returns the iterator over a trial's batches, at their beginning."""
    return Batches(
        prepared.train,
        batch_size=training.batch_size,
        sequence_length=training.sequence_length,
        seed=seed,
        by_length=training.bucket_by_length,
        labels=bool(prepared.labels),
    )


def _peak(training, lanes):
    """Returns FLOP/s that a lane has of all devices together; None where unknown."""
    peak = flops.peak(jax.local_devices()[0].device_kind, training.precision)
    return peak and peak * jax.device_count() / lanes
