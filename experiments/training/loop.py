"""The loop: trials of one program, each in a lane, from their settings to their results.

All lanes advance by the same number of steps in one dispatch. Between dispatches each trial
evaluates, saves and logs when its own settings say so, and one that ends makes room for the
next. A trial's directory says everything about it: on a second call an ended trial returns
its result, an unfinished one goes on from its newest checkpoint, and a directory of other
settings is refused.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.data.dataset import Dataset
from experiments.evaluation.evaluator import EndedTrial, Evaluator
from experiments.settings import Settings
from experiments.system import machine
from experiments.system.files import lock
from experiments.system.signals import Interrupted, Interruption
from experiments.training import follower, multihost
from experiments.training.out_of_memory import explained
from experiments.training.population import (
    LONGEST_DISPATCH,
    Population,
    program_for,
)
from experiments.training.run_dir import RunDir
from experiments.training.start_point import StartPoint
from experiments.training.trackers import Tracking
from experiments.training.trial_run import (
    MOST_SKIPS,
    Common,
    DrawnBatches,
    Job,
    TrialRun,
    start_run,
)
from experiments.trial import flops
from experiments.trial.lanes import Lanes, check_batch_size
from experiments.trial.program import count_parameters
from experiments.trial.step import is_finite

SECONDS = 1.0
"""The most seconds of one dispatch: a process that is asked to stop waits for its end."""


def run(
    settings: Settings,
    prepared: Dataset,
    workdir: str | Path,
    *,
    name: str = "trial",
    point: dict | None = None,
    start: StartPoint = StartPoint(),
    say: Callable[[str], None] = lambda line: None,
    trackers: Sequence[str] = (),
    interruption: Interruption | None = None,
) -> dict[str, Any]:
    """Trains and evaluates one trial, and returns what `result.json` in `workdir` holds.

    Of several processes (`multihost`), the first does so; the others help, and return {}.

    `start` may name other trials to start from; `say` gets a line for each log and
    evaluation; `trackers`, names of `TRACKERS`, show their numbers elsewhere too.

    Raises DeviceError for rows that do not fit the devices, WorkdirError for a directory of
    another trial, LockedError for one that another process writes to, CheckpointError for
    checkpoints that are all damaged, do not fit or cannot be written, OutOfMemoryError,
    HostError, and Interrupted, with everything saved, soon after `interruption` asks.
    """
    interruption = interruption or Interruption()
    lanes = Lanes(
        strategy=settings.training.strategy,
        # The default is this process's own devices, and the trial is on those of all.
        devices=tuple(jax.devices()) if multihost.several() else None,
    )
    # Before any step: processes of different programs could wait in a sum for ever.
    multihost.check_same("config", settings.digest())
    digests = prepared.corpus_digest + prepared.vocabulary().digest
    multihost.check_same("corpus", digests)
    if not multihost.first():
        with explained(settings, lanes.count, lanes.mesh.size):
            follower.follow(settings, prepared, lanes, interruption)
        return {}
    job = Job(settings, Path(workdir), name, point or {}, start)
    with multihost.leading():
        (result,) = run_all(
            [job],
            prepared,
            lanes,
            say=say,
            tracking=Tracking(tuple(trackers), Path(workdir)),
            interruption=interruption,
        )
    return result


def run_all(
    jobs: Iterable[Job] | Callable[[], Job | None],
    prepared: Dataset,
    lanes: Lanes = Lanes(),
    *,
    tracking: Tracking = Tracking(),
    say: Callable[[str], None] = lambda line: None,
    failed: Callable[[Job, Exception], None] | None = None,
    interruption: Interruption | None = None,
) -> list[dict[str, Any]]:
    """Trains jobs of one program, as many at a time as there are lanes.

    Where `jobs` is a function it gives a job whenever a lane is free, None while there is none.

    Returns the results in the order in which the trials end. An error of one trial's own,
    such as a directory that cannot be written, goes to `failed` and leaves the others
    alone; without `failed` it is raised. Raises what `run` does.
    """
    next_job = jobs if callable(jobs) else functools.partial(next, iter(jobs), None)
    first = next_job()
    if first is None:
        return []
    settings = first.settings
    machine.reset_peak_memory()
    t = settings.training
    # A single trial's rows are split over the devices, a lane's are not.
    devices = lanes.mesh.size if lanes.count == 1 else 1
    check_batch_size(t.batch_size, devices, t.accumulate)
    with explained(settings, lanes.count, lanes.mesh.size):
        program = program_for(settings, prepared)
        common = Common(prepared, program, lanes, say, tracking)
        loop = _Loop(first, next_job, common, failed, interruption or Interruption())
        return loop.train()


class _Steps(NamedTuple):
    """Steps of a population that were dispatched, with metrics that may not be there yet."""

    metrics: Any
    count: int
    batches: dict[TrialRun, DrawnBatches]


class _Pace:
    """Limits the steps of a dispatch to about `SECONDS`, by the time that the last took."""

    def __init__(self):
        self.limit = 1
        # The first dispatch compiles, so time is measured from its end on.
        self._since = None

    def measure(self, steps: int) -> None:
        """Is called when `steps` steps have ended."""
        now = time.perf_counter()
        if self._since is not None:
            step_time = (now - self._since) / steps
            self.limit = int(min(LONGEST_DISPATCH, max(1, SECONDS / step_time)))
        self._since = now

    def pause(self) -> None:
        """Is called where time goes to something else than steps."""
        self._since = None


class _Loop:
    """Trains the `first` job, and those of `next_job`, in the lanes of a population."""

    def __init__(
        self, first: Job, next_job, common: Common, failed, interruption: Interruption
    ):
        self.first = first
        self.next_job = next_job
        self.common = common
        self.failed = failed
        self.interruption = interruption
        self.population = Population(common.program, common.prepared, common.lanes)
        self.evaluator = Evaluator.of(
            first.settings.evaluation,
            common.prepared,
            common.lanes,
            common.program,
            interruption.check,
        )
        self.pace = _Pace()
        self.results = []
        self.shared = False

    def train(self) -> list[dict[str, Any]]:
        """Returns the results of all trials, in the order in which they end.

        DO NOT CHANGE THE ORDER: metrics up to a step are written before its evaluation and
        its checkpoint, and a run ends when its last checkpoint is on its way. What is
        pending at an interruption has happened: it is logged and saved too.
        """
        pending = None
        try:
            while self.fill_lanes():
                if at_mark := [run for run in self.population.runs if run.at_mark]:
                    # First: a run that has diverged is neither evaluated nor saved.
                    self.log(pending)
                    pending = None
                    losses = self.evaluate(at_mark)
                    self.save(at_mark)
                    self.finish(at_mark, losses)
                    continue
                self.interruption.check()
                batches = self.next_batches()
                steps = self.step(batches)
                # One step late, so that the device never waits.
                self.log(pending)
                pending = steps
            return self.results
        except Interrupted:
            self.log(pending)
            self.save_all()
            raise
        finally:
            for run in self.population.runs:
                run.close()
            # No save is to come any more, so a signal may end the process at once.
            self.interruption.unsaved = False

    def fill_lanes(self) -> bool:
        """Starts waiting trials in free lanes. Returns whether any trial is running."""
        started = []
        for lane in self.population.free_lanes():
            if start := self._start_next(lane):
                self.population.enter(start.run)
                started.append(start)
        if started:
            self.population.load(started)
            self.pace.pause()
        return bool(self.population.runs)

    def _start_next(self, lane):
        """Starts the next trial that has not ended and can start; None where there is none."""
        while job := self.first or self.next_job():
            self.first = None
            # An error goes to `failed`, and the next trial gets the lane.
            with _errors_of(job, self.failed), contextlib.ExitStack() as resources:
                # Two processes may take one for a moment, such as after a machine slept.
                resources.enter_context(lock(job.path))
                run_dir = RunDir(job.path)
                if result := run_dir.open(job.settings):
                    self.results.append(result)
                else:
                    return start_run(job, run_dir, lane, self.common, resources)
        return None

    def evaluate(self, runs: Sequence[TrialRun]):
        """Logs the scores of runs that are due on the validation set.

        Returns the losses of all lanes there; None where no run is due. A run that is due
        may have its scores from before it was interrupted.
        """
        due = [run for run in runs if run in self.population and run.evaluates]
        if not due:
            return None
        states = self.population.states
        # Also where all scores are known: no file has the losses that `finish` needs.
        losses = self.evaluator.losses(states)
        new = [run for run in due if run.step not in run.run_dir.perplexities()]
        if new:
            settings = {run.lane: run.settings for run in new}
            scores = self.evaluator.validation(states, losses, settings)
            for run in new:
                with self._errors_of(run):
                    run.log_validation(scores[run.lane])
        return losses

    def save(self, runs: Sequence[TrialRun]) -> None:
        """Starts saving checkpoints of runs that are due."""
        for run in runs:
            if run in self.population and (run.saves or run.improved):
                with self._errors_of(run):
                    run.save(self.population.state_of(run))
        for run in runs:
            run.attended = run.step
        self.pace.pause()

    def save_all(self) -> None:
        """Saves what no checkpoint holds yet, and waits for it."""
        for run in self.population.runs:
            with self._errors_of(run):
                run.save(self.population.state_of(run))
                run.checkpoints.wait()

    def finish(self, runs: Sequence[TrialRun], losses) -> None:
        """Scores the runs that have made all steps on the test set, and frees their lanes.

        `losses` are those of all lanes on the validation set.
        """
        ended = [run for run in runs if run in self.population and run.ended]
        if not ended:
            return
        trials = [
            EndedTrial(run.settings, run.lane, run.checkpoints, run.run_dir)
            for run in ended
        ]
        found = self.evaluator.final(self.population.states, losses, trials)
        for run, scores in zip(ended, found, strict=True):
            with self._errors_of(run):
                state = self.population.state_of(run)
                result = dict(
                    status="finished",
                    parameters=count_parameters(run.settings, state),
                    steps=run.step,
                    **scores,
                    test_sentences=len(self.common.prepared.test.text.target),
                    chance=run.settings.data.chance,
                    seconds=run.run_dir.metrics("validation")[-1]["seconds"],
                    tokens_per_second=run.run_dir.speed(),
                    training_flops=run.run_dir.flops(),
                    peak_memory=machine.peak_memory(),
                    real_tokens=run.batches.real_tokens,
                )
                if run.training.nonfinite == "skip":
                    result["skipped"] = run.log.skipped()
                self._end(run, result)

    def next_batches(self) -> dict[TrialRun, DrawnBatches]:
        """Draws for each run the batches up to the next mark of any, or fewer."""
        runs = self.population.runs
        count = min(self.pace.limit, *(run.steps_to_mark() for run in runs))
        count = multihost.meet(count, self.interruption)
        # Once, as all compute the same afterwards; `follow` meets before it shares.
        if multihost.several() and not self.shared:
            state = jax.device_get(self.population.state_of(runs[0]))
            follower.share(state, runs[0].batches)
            self.shared = True
        return {run: run.next_batches(count) for run in runs}

    def step(self, batches: dict[TrialRun, DrawnBatches]) -> _Steps:
        """Dispatches the steps on these batches, without waiting for them."""
        slots = {run.lane: drawn.slots for run, drawn in batches.items()}
        count = len(next(iter(slots.values())))
        return _Steps(self.population.step(slots, count), count, batches)

    def log(self, steps: _Steps | None) -> None:
        """Logs steps that were dispatched, and ends trials whose loss is not finite."""
        if steps is None:
            return
        lanes = self.common.lanes.count
        metrics = {
            # The program has room for LONGEST_DISPATCH steps; the rest is empty.
            name: np.asarray(x).reshape(lanes, -1)[:, : steps.count]
            for name, x in jax.device_get(steps.metrics).items()
        }
        # No checkpoint holds these steps yet, so a signal has to wait for a save.
        self.interruption.unsaved = True
        # After device_get, which waits until the steps have ended.
        self.pace.measure(steps.count)
        # Not run.step and run.logs: the run is a dispatch further by now.
        for run, drawn in steps.batches.items():
            # It has left its lane while these steps were under way.
            if run not in self.population:
                continue
            values = {name: x[run.lane] for name, x in metrics.items()}
            fatal = run.fatal_step(is_finite(values))
            with self._errors_of(run):
                if fatal is None:
                    run.log.steps(drawn.step, values, self._flops(drawn), drawn.logs)
                else:
                    first = drawn.step - steps.count + 1
                    self._diverge(run, drawn, values, fatal, first + fatal)

    def _flops(self, drawn):
        lengths = [side.lengths[drawn.pairs] for side in self.common.prepared.train]
        return flops.of_training(self.common.program, *lengths)

    def _diverge(self, run, drawn, metrics, i, step):
        """Ends a trial whose i-th step of these batches, its `step`, is not finite."""
        loss = metrics["loss"][i]
        norm = metrics["grad_norm"][i]
        error = f"diverged: loss {loss:g}, gradient norm {norm:g} at step {step}"
        if run.training.nonfinite == "skip":
            error += f", the last of {MOST_SKIPS} such in a row"
        batch = run.identify(drawn, i)
        self._end(run, dict(status="diverged", error=error, step=step, batch=batch))

    def _end(self, run, result):
        """Writes the last file of a trial, once all others are whole, and frees its lane."""
        run.log.result(result)
        run.checkpoints.wait()
        run.run_dir.finish(result)
        self.population.remove(run)
        self.results.append(result)

    @contextlib.contextmanager
    def _errors_of(self, run):
        """Takes an error in this `with` block for the run's own: it leaves its lane."""
        with _errors_of(run.job, self.failed):
            try:
                yield
            # Interrupted is no Exception: its runs stay in their lanes, to be saved.
            except Exception:
                self.population.remove(run)
                raise


@contextlib.contextmanager
def _errors_of(job, failed):
    """Gives an error in this `with` block to `failed`, if there is one."""
    try:
        yield
    except Exception as error:
        if failed is None:
            raise
        failed(job, error)
