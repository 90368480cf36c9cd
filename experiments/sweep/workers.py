"""Worker processes, each of which takes trials and trains those of one program at a time."""

import concurrent.futures as futures
import contextlib
import os
import signal
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.data.dataset import Dataset
from experiments.settings import Data
from experiments.sweep.joiner import Board
from experiments.sweep.plan import Trial, lane_key
from experiments.sweep.schedule import Layout
from experiments.system import machine
from experiments.system.machine import Machine
from experiments.system.process import Process
from experiments.system.signals import STATUS, Interrupted, Interruption
from experiments.training.speed import Measured

# The state of a worker process, which `_start` sets up there.
_prepared: dict[Data, Dataset] = {}
_interruption = Interruption()
_listening = contextlib.ExitStack()


class Group(NamedTuple):
    """Trials of one program, and how many a worker trains at a time."""

    trials: list[Trial]
    lanes: int


class Worker(Process):
    """Trains in a process that keeps what it compiled for the next trials."""

    def __init__(
        self,
        threads: int,
        prepared: dict[Data, Dataset],
        trackers: tuple[str, ...] = (),
    ):
        super().__init__(_start, threads, prepared)
        self._trackers = trackers

    def machine(self) -> Machine:
        """Returns what the process runs on."""
        return self.result(self.submit(machine.here))

    def result(self, future: futures.Future):
        """Waits for a call's result; raises Interrupted where a signal has ended it."""
        try:
            return future.result()
        except futures.BrokenExecutor:
            if self.exit_status() == STATUS:
                raise Interrupted from None
            raise

    def measure(self, trial: Trial, lanes: int) -> futures.Future:
        """Starts to measure a trial; the future gives `Measured`, or None for a failure."""
        return self.submit(_measure, trial.settings, lanes)

    def train(
        self, workdir: Path, groups: Sequence[Group], joiner: str, number: int
    ) -> futures.Future:
        """Starts to take and train trials as the worker of this number, until none is free."""
        return self.submit(_train, workdir, groups, joiner, number, self._trackers)


class Pools:
    """Keeps workers by their number of threads, started when first asked for.

    Each trial's lines go to the `trackers` too.
    """

    def __init__(self, prepared: dict[Data, Dataset], trackers: tuple[str, ...] = ()):
        self._prepared = prepared
        self._trackers = trackers
        # A worker says what the machine is: an accelerator is the workers' to open. Of a
        # CPU it has the threads of the likely layout, which cannot be changed later.
        first = Worker(1, prepared, trackers)
        self.machine = first.machine()
        threads = 1
        if self.machine.backend != "cpu":
            # Its threads are those that compile, and one alone takes minutes.
            first.stop()
            threads = self.machine.cores
            first = Worker(threads, prepared, trackers)
        self._pools = {threads: [first]}

    def workers(self, layout: Layout) -> list[Worker]:
        """Returns as many workers as the layout has."""
        threads = layout.threads(self.machine)
        pool = self._pools.setdefault(threads, [])
        while len(pool) < layout.workers:
            pool.append(Worker(threads, self._prepared, self._trackers))
        return pool[: layout.workers]

    def measure(self, trial: Trial, layout: Layout) -> Measured | None:
        """Returns the times of the slowest worker, all measuring at once; None for a failure."""
        pending = [
            (worker, worker.measure(trial, layout.lanes))
            for worker in self.workers(layout)
        ]
        times = [worker.result(future) for worker, future in pending]
        return None if None in times else Measured(*map(max, zip(*times, strict=True)))

    def stop(self) -> None:
        """Kills all workers."""
        for pool in self._pools.values():
            for worker in pool:
                worker.stop()


def _start(threads: int, prepared: dict[Data, Dataset]):
    """Sets up a worker process, before JAX starts its backend."""
    if threads < machine.cores():
        # The size of XLA's thread pool.
        os.environ["NPROC"] = str(threads)
        # Others share the machine, and may share a GPU: JAX would take most of its memory.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    # The parent's first question, `machine.here`, is answered by this error.
    with contextlib.suppress(machine.PlatformError):
        machine.use_compile_cache()
    _prepared.update(prepared)
    # SIGTERM alone, as `process` leaves Ctrl-C to the parent.
    _listening.enter_context(_interruption.listening([signal.SIGTERM], alone=False))


def _measure(settings, lanes):
    # Imported here, because the process that plans needs none of it.
    from experiments.training import speed

    try:
        return speed.measure(settings, _prepared[settings.data], lanes)
    except Exception:
        # A layout that fails, as for want of memory, is only not chosen.
        traceback.print_exc()
        return None


def _train(workdir, groups, joiner, number, trackers=()):
    """Trains what is free of some groups, one group after another.

    The next is the one that has most trials, preferably of a program that no other worker is
    at, here or elsewhere.
    """
    trials = [trial for group in groups for trial in group.trials]
    board = Board(workdir, trials, joiner, number)
    left = [Group(list(group.trials), group.lanes) for group in groups]
    left.sort(key=lambda group: len(group.trials), reverse=True)
    place = number
    while left:
        taken = board.programs()
        apart = [group for group in left if _program(group) not in taken] or left
        # Workers that begin at the same time begin with different programs.
        group = apart[place % len(apart)]
        place = 0
        # What is given back later is found by the parent's next look at all trials.
        left.remove(group)
        _train_group(board, group, trackers)


def _program(group):
    return lane_key(group.trials[0].settings)


def _train_group(board, group, trackers):
    """Trains what is free of a group; a failure is written to the result.json of its trials.

    No failure goes further: the other trials of a sweep run on.
    """
    from experiments.training import loop
    from experiments.training.start_point import StartPoint
    from experiments.training.trackers import Tracking
    from experiments.trial.lanes import Lanes

    settings = group.trials[0].settings

    def take():
        board.settle_ended()
        trial = board.take(group.trials)
        return trial and loop.Job(
            trial.settings,
            board.path(trial),
            trial.name,
            trial.point,
            StartPoint(alike=board.alike(trial)),
        )

    try:
        loop.run_all(
            take,
            _prepared[settings.data],
            Lanes(group.lanes, settings.training.strategy),
            tracking=Tracking(trackers, board.workdir),
            failed=lambda job, error: _fail(board, job.path.name, error),
            interruption=_interruption,
        )
    # An error of no trial alone, as of memory; trials that ended keep their results.
    except Exception as error:
        for name in board.claims.held:
            _fail(board, name, error)
    finally:
        board.give_back(board.claims.held)


def _fail(board, name, error):
    trace = "".join(traceback.format_exception(error))
    board.fail(board.by_name[name], f"{type(error).__name__}: {error}", trace)
