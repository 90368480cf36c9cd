"""Worker processes, each of which trains trials of one program at a time."""

import concurrent.futures as futures
import contextlib
import os
import signal
import traceback
from pathlib import Path

from experiments.data.dataset import Dataset
from experiments.settings import Data
from experiments.sweep.plan import Trial, lane_key
from experiments.sweep.schedule import Layout
from experiments.sweep.workdir import is_finished, record_failure, trained_alike
from experiments.system import machine
from experiments.system.files import LockedError, lock
from experiments.system.machine import Machine
from experiments.system.process import Process
from experiments.system.signals import STATUS, Interrupted, Interruption
from experiments.training.speed import Measured

# The state of a worker process, which `_start` sets up there.
_prepared: dict[Data, Dataset] = {}
_interruption = Interruption()
_listening = contextlib.ExitStack()


class Worker(Process):
    """Runs some trials at a time in a process that keeps what it compiled for the next."""

    def __init__(
        self,
        threads: int,
        prepared: dict[Data, Dataset],
        trackers: tuple[str, ...] = (),
    ):
        super().__init__(_start, threads, prepared)
        self._trackers = trackers
        # The program that it has compiled last, None before the first.
        self.program = None

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

    def run(self, workdir: Path, trials: list[Trial], lanes: int) -> futures.Future:
        """Starts to run trials of one program, `lanes` at a time."""
        self.program = lane_key(trials[0].settings)
        return self.submit(_run, workdir, trials, lanes, self._trackers)


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


def _run(workdir, trials, lanes, trackers=()):
    """Runs trials of one program; a failure is written to the result.json of its trials.

    No failure goes further: the other trials of a sweep run on. The directories are locked,
    so that no other process trains one of them at the same time.
    """
    from experiments.training import loop
    from experiments.training.trackers import Tracking
    from experiments.trial.lanes import Lanes

    by_path = {workdir / trial.directory: trial for trial in trials}

    def failed(job, error):
        trace = "".join(traceback.format_exception(error))
        message = f"{type(error).__name__}: {error}"
        record_failure(workdir, by_path[job.path], message, trace)

    settings = trials[0].settings
    alike = trained_alike(workdir)
    with contextlib.ExitStack() as locks:
        jobs = []
        for path, trial in by_path.items():
            others = tuple(workdir / name for name in alike.get(trial.directory, ()))
            job = loop.Job(trial.settings, path, trial.name, trial.point, alike=others)
            try:
                locks.enter_context(lock(path))
            except LockedError as error:
                failed(job, error)
            else:
                jobs.append(job)
        if not jobs:
            return
        try:
            loop.run_all(
                jobs,
                _prepared[settings.data],
                Lanes(lanes, settings.training.strategy),
                tracking=Tracking(trackers, workdir),
                failed=failed,
                interruption=_interruption,
            )
        # An error of no trial alone, as of memory; trials that ended keep their results.
        except Exception as error:
            for job in jobs:
                if not is_finished(workdir, by_path[job.path]):
                    failed(job, error)
