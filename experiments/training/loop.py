"""The loop: trials of one program, each in a lane, from their settings to their results.

All lanes advance by the same number of steps in one dispatch; between dispatches each trial logs, evaluates and saves
when its own settings say so, and one that ends makes room for the next. A trial's directory says everything about it:
on a second call an ended trial returns its result, an unfinished one goes on from its newest checkpoint, and a
directory of other settings is refused.
"""

import contextlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.data.dataset import Prepared
from experiments.evaluation.compiled import compiled
from experiments.evaluation.decode import Search
from experiments.evaluation.evaluator import Examined, Judge
from experiments.settings import Settings
from experiments.system.files import lock
from experiments.system.signals import Interrupted, Interruption
from experiments.training import multihost
from experiments.training.device_data import Feed
from experiments.training.out_of_memory import explained
from experiments.training.run import SKIPS, Drawn, Job, Seat, batches
from experiments.training.run_dir import Directory
from experiments.training.start_point import Beginning
from experiments.trial import flops
from experiments.trial.lanes import Lanes, check_batch_size, put_lane, take_lane
from experiments.trial.program import (
    count_parameters,
    hyper_of,
    initial_state,
    program_of,
)
from experiments.trial.step import is_finite

CHUNK = 64
"""The most steps of one dispatch."""


SECONDS = 1.0
"""What one dispatch is to take at most, so that a process that is asked to stop need not be waited for."""


class Measured(NamedTuple):
    """Seconds until a program is compiled, and of one step of all trials that a way runs at a time."""

    compile: float
    step: float


def run(
    settings: Settings,
    prepared: Prepared,
    workdir: str | Path,
    *,
    name: str = "trial",
    point: dict | None = None,
    begin: Beginning = Beginning(),
    say: Callable[[str], None] = lambda line: None,
    tensorboard: bool = False,
    interruption: Interruption | None = None,
) -> dict[str, Any]:
    """Trains, evaluates, and returns the result that `result.json` in `workdir` then holds.

    Of several processes, see `hosts`, the first does; the others help, and return {}.

    `begin` may name another trial to begin from; `say` gets a line for each log and evaluation; `tensorboard` puts
    their numbers into `workdir`/tensorboard too.

    Raises DeviceError for rows that do not fit the devices, WorkdirError for a directory of another trial, LockedError
    for one that another process writes to, CheckpointError for checkpoints that are all damaged, do not fit or cannot
    be written, OutOfMemoryError, HostError, and Interrupted, all being saved, soon after `interruption` has word to
    stop.
    """
    interruption = interruption or Interruption()
    lanes = Lanes(
        strategy=settings.training.strategy,
        devices=tuple(jax.devices()) if multihost.several() else None,
    )
    multihost.check_same("config", settings.digest())
    multihost.check_same(
        "corpus", prepared.corpus_digest + prepared.vocabulary().digest
    )
    if not multihost.first():
        with explained(settings, lanes.count, lanes.mesh.size):
            _help(settings, prepared, lanes, interruption)
        return {}
    job = Job(settings, Path(workdir), name, point or {}, begin)
    with multihost.leading(), lock(workdir):
        (result,) = run_all(
            [job],
            prepared,
            lanes,
            say=say,
            tensorboard=tensorboard,
            interruption=interruption,
        )
    return result


def run_all(
    jobs: Iterable[Job],
    prepared: Prepared,
    lanes: Lanes = Lanes(),
    *,
    tensorboard: bool = False,
    say: Callable[[str], None] = lambda line: None,
    failed: Callable[[Job, Exception], None] | None = None,
    interruption: Interruption | None = None,
) -> list[dict[str, Any]]:
    """Runs jobs of one program, see `program`, as many at a time as there are lanes. Returns the results by their ends.

    An error of one trial's own, such as a directory that cannot be written, goes to `failed` and leaves the others
    alone; without `failed` it is raised. Raises what `run` does.
    """
    jobs = list(jobs)
    for t in (job.settings.training for job in jobs):
        check_batch_size(
            t.batch_size, lanes.mesh.size if lanes.count == 1 else 1, t.accumulate
        )
    with explained(jobs[0].settings, lanes.count, lanes.mesh.size):
        return _Crew(
            jobs,
            prepared,
            lanes,
            say,
            tensorboard,
            failed,
            interruption or Interruption(),
        ).run()


def program(settings: Settings, prepared: Prepared):
    """What trials must have in common to be lanes of one population, apart from their corpus."""
    e, t = settings.evaluation, settings.training
    how = Search(e.beam, e.alpha, e.max_length, e.max_extra)
    return (
        program_of(settings, prepared.vocabulary().size, prepared.length(settings)),
        how,
        e.batch_size,
        t.batch_size,
        t.strategy,
        t.ema > 0,
    )


def measure(settings: Settings, prepared: Prepared, count: int) -> Measured:
    """How fast `count` lanes of such trials train here; what is compiled for it stays compiled."""
    lanes = Lanes(count, settings.training.strategy)
    own, how, *_ = program(settings, prepared)
    functions, t = compiled(own, lanes, how), settings.training
    states = lanes.stack(
        [jax.device_get(initial_state(own, settings, functions.init))] * count
    )
    hypers = lanes.stack([jax.device_get(hyper_of(settings))] * count)
    slots = np.stack([batches(prepared, t, i).take(CHUNK) for i in range(count)])
    fed = Feed(prepared.train, lanes, t.sequence_length)(slots)

    def timed(steps):
        nonlocal states
        begin = time.perf_counter()
        states, metrics = functions.steps(states, hypers, *fed, steps)
        jax.block_until_ready(metrics)
        return time.perf_counter() - begin

    first, once = timed(1), timed(1)
    steps = int(min(CHUNK, max(1, SECONDS / once)))
    each = timed(steps) / steps
    return Measured(max(0.0, first - each), each)


def _help(settings, prepared, lanes, interruption):
    """What a process does that is not the first: its rows of each batch. Raises Interrupted where the first does."""
    t = settings.training
    check_batch_size(t.batch_size, lanes.mesh.size, t.accumulate)
    own, how, *_ = program(settings, prepared)
    functions, feed = (
        compiled(own, lanes, how),
        Feed(prepared.train, lanes, t.sequence_length),
    )
    data, states = batches(prepared, t, settings.seed), None
    while (count := multihost.meet(interruption=interruption)) > 0:
        if states is None:
            state = _shared(jax.device_get(initial_state(own, settings)), data)
            states, hypers = (
                lanes.stack([state]),
                lanes.stack([jax.device_get(hyper_of(settings))]),
            )
        rows = lanes.own_rows(data.take(count))
        states, metrics = functions.steps(states, hypers, *feed(_chunk([rows])), count)
        jax.block_until_ready(metrics)
        interruption.unsaved = True
    if count == multihost.STOPPED:
        raise Interrupted


def _shared(state, data):
    """The first process's state on all, and its data iterator's."""
    place = np.array(list(data.get_state().values()), np.int32)
    state, place = multihost.broadcast((state, place))
    data.set_state(dict(zip(data.get_state(), place.tolist(), strict=True)))
    return state


def _chunk(slots):
    """(L, CHUNK, rows, S) of each lane's (count, rows, S) or None, filled up with -1, which names no pair."""
    shape = next(own.shape for own in slots if own is not None)
    chunk = np.full((len(slots), CHUNK, *shape[1:]), -1, np.int32)
    for lane, own in enumerate(slots):
        if own is not None:
            chunk[lane, : len(own)] = own
    return chunk


class _Entry(NamedTuple):
    """What was dispatched for one seat: its batches, their FLOPs, the step it is at then, whether a line is due there."""

    seat: Seat
    drawn: Drawn
    flops: float
    step: int
    due: bool


class _Pending(NamedTuple):
    """Steps that were dispatched, and for whom."""

    metrics: Any
    count: int
    entries: list[_Entry]


class _Crew:
    """Lanes and who is in them."""

    def __init__(self, jobs, prepared, lanes, say, tensorboard, failed, interruption):
        self.waiting, self.prepared, self.lanes = jobs, prepared, lanes
        self.say, self.tensorboard, self.failed, self.interruption = (
            say,
            tensorboard,
            failed,
            interruption,
        )
        self.program, how, rows, *_ = program(jobs[0].settings, prepared)
        self.functions = compiled(self.program, lanes, how)
        self.judge = Judge(
            self.functions, prepared, lanes, self.program, rows, interruption.check
        )
        self.feed = Feed(prepared.train, lanes, self.program.sequence_length)
        self.seats, self.pending, self.results = [None] * lanes.count, None, []
        self.states = self.hypers = None
        self.limit, self.since, self.shared = 1, None, False

    def run(self) -> list[dict[str, Any]]:
        try:
            while self._seated():
                self.interruption.check()
                self._advance()
                if any(
                    seat.due(seat.training.evaluate_every)
                    or seat.due(seat.training.save_every)
                    for seat in self._taken()
                ):
                    self._flush()
                    self._look_after()
            return self.results
        except Interrupted:
            self._leave()
            raise
        finally:
            for seat in self._taken():
                seat.opened.close()
            self.interruption.unsaved = False

    def _leave(self):
        """Saves what no checkpoint has yet. Steps that are dispatched are waited for."""
        self._flush()
        for seat in self._taken():
            with self._of(seat):
                seat.save_between(take_lane(self.states, self.lanes.place(seat.lane)))

    def _taken(self):
        return [seat for seat in self.seats if seat]

    def _seated(self) -> bool:
        """Fills empty lanes from those that wait; whether anybody is there."""
        while True:
            new = []
            for lane, seat in enumerate(self.seats):
                while seat is None and self.waiting:
                    job = self.waiting.pop(0)
                    with _guarded(job, self.failed):
                        directory = Directory(job.path)
                        if done := directory.open(job.settings):
                            self.results.append(done)
                            continue
                        seat = self.seats[lane] = Seat(job, directory, lane, self)
                        new.append(seat)
            if not new:
                return bool(self._taken())
            self._place(new)
            # One that was interrupted after its last save has only its end to come.
            self._look_after(new)

    def _place(self, new):
        if self.states is None:
            filled = [seat or new[0] for seat in self.seats]
            self.states = self.lanes.stack([seat.state for seat in filled])
            self.hypers = self.lanes.stack([seat.hyper for seat in filled])
        else:
            for seat in new:
                place = self.lanes.place(seat.lane)
                self.states = put_lane(self.states, place, seat.state)
                self.hypers = put_lane(self.hypers, place, seat.hyper)
        for seat in new:
            seat.state = seat.hyper = None  # given away

    def _advance(self):
        """Dispatches steps for all lanes; what the steps before gave is logged while these run."""
        seats = self._taken()
        count = multihost.meet(
            min(self.limit, *(seat.until() for seat in seats)), self.interruption
        )
        if multihost.several() and not self.shared:
            _shared(
                jax.device_get(take_lane(self.states, self.lanes.place(0))),
                seats[0].batches,
            )
            self.shared = True
        slots, entries = [None] * self.lanes.count, []
        for seat in seats:
            drawn = seat.draw(count)
            slots[seat.lane] = self.lanes.own_rows(drawn.slots)
            pairs = drawn.slots[drawn.slots >= 0]
            work = flops.of_training(
                self.program, *(side.lengths[pairs] for side in self.prepared.train)
            )
            entries.append(
                _Entry(seat, drawn, work, seat.step, seat.due(seat.training.log_every))
            )
        self.states, metrics = self.functions.steps(
            self.states, self.hypers, *self.feed(_chunk(slots)), count
        )
        self._flush(_Pending(metrics, count, entries))

    def _flush(self, following: _Pending | None = None):
        """Logs what is pending; `following` is pending from now on. A trial whose loss is no number ends here."""
        pending, self.pending = self.pending, following
        if pending is None:
            return
        metrics = {
            name: np.asarray(x).reshape(self.lanes.count, -1)[:, : pending.count]
            for name, x in jax.device_get(pending.metrics).items()
        }
        self.interruption.unsaved = True
        self._pace(pending.count)
        for entry in pending.entries:
            seat = entry.seat
            if self.seats[seat.lane] is not seat:
                continue
            own = {name: x[seat.lane] for name, x in metrics.items()}
            bad = seat.too_many(is_finite(own))
            with self._of(seat):
                if bad is None:
                    seat.log.steps(entry.step, own, entry.flops, entry.due)
                else:
                    self._diverged(
                        entry, own, bad, entry.step - pending.count + 1 + bad
                    )

    def _pace(self, count):
        now = time.perf_counter()
        if self.since is not None:
            each = (now - self.since) / count
            self.limit = int(min(CHUNK, max(1, SECONDS / each)))
        self.since = now

    def _diverged(self, entry, metrics, i, step):
        found = f"loss {metrics['loss'][i]:g}, gradient norm {metrics['grad_norm'][i]:g} at step {step}"
        if entry.seat.training.nonfinite == "skip":
            found += f", the last of {SKIPS} such in a row"
        self._end(
            entry.seat,
            dict(
                status="diverged",
                error=f"diverged: {found}",
                step=step,
                batch=entry.seat.identity(entry.drawn, i),
            ),
        )

    def _look_after(self, seats=None):
        """Evaluates and saves where that is due, and ends who is done."""
        seats = self._taken() if seats is None else seats
        due = [seat for seat in seats if seat.due(seat.training.evaluate_every)]
        losses = self.judge.losses(self.states) if due else None
        self._evaluate(
            [seat for seat in due if not seat.directory.evaluated(seat.step)], losses
        )
        for seat in seats:
            if seat.due(seat.training.save_every) and self.seats[seat.lane] is seat:
                with self._of(seat):
                    seat.save(take_lane(self.states, self.lanes.place(seat.lane)))
        self._finish(
            [seat for seat in due if seat.last and self.seats[seat.lane] is seat],
            losses,
        )
        self.since = None

    def _evaluate(self, seats, losses):
        if not seats:
            return
        scores = self.judge.validation(
            self.states, losses, {seat.lane: seat.job.settings for seat in seats}
        )
        for seat in seats:
            with self._of(seat):
                seat.evaluated(
                    scores[seat.lane],
                    take_lane(self.states, self.lanes.place(seat.lane)),
                )

    def _finish(self, seats, losses):
        if not seats:
            return
        found = self.judge.end(
            self.states,
            losses,
            [
                Examined(seat.job.settings, seat.lane, seat.checkpoints, seat.directory)
                for seat in seats
            ],
        )
        for seat, scores in zip(seats, found, strict=True):
            with self._of(seat):
                state = take_lane(self.states, self.lanes.place(seat.lane))
                skipped = (
                    dict(skipped=seat.log.skipped())
                    if seat.training.nonfinite == "skip"
                    else {}
                )
                self._end(
                    seat,
                    dict(
                        status="finished",
                        parameters=count_parameters(seat.job.settings, state),
                        steps=seat.step,
                        **scores,
                        test_sentences=len(self.prepared.test.text.target),
                        seconds=seat.directory.last("validation")["seconds"],
                        tokens_per_second=seat.directory.speed(),
                        real_tokens=seat.batches.real_tokens,
                        **skipped,
                    ),
                )

    def _end(self, seat, result):
        """Writes the last file of a trial, once all others are whole, and frees its lane."""
        self.seats[seat.lane] = None
        seat.opened.close()
        seat.directory.finish(result)
        self.results.append(result)

    @contextlib.contextmanager
    def _of(self, seat):
        """An error inside is this trial's own."""
        with _guarded(seat.job, self.failed):
            try:
                yield
            except Exception:
                self.seats[seat.lane] = None
                seat.opened.close()
                raise


@contextlib.contextmanager
def _guarded(job, failed):
    try:
        yield
    except Exception as error:
        if failed is None:
            raise
        failed(job, error)
