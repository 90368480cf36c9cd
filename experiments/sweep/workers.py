"""Runs the trials of a sweep in worker processes, and deals out who runs what.

A group is the trials that can be lanes of one program. `schedule` says how each group is
run; groups of the same number of processes share a pool, and in a pool a worker gets trials
of the program that it has compiled.
"""

import concurrent.futures as futures
import contextlib
import itertools
import os
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from experiments.data.dataset import Dataset
from experiments.settings import Data
from experiments.sweep.plan import Trial, group_trials, lane_key
from experiments.sweep.schedule import Layout, Schedule, choose
from experiments.sweep.workdir import is_finished, record_failure
from experiments.system import machine
from experiments.system.files import LockedError, lock, write_json
from experiments.system.machine import Machine
from experiments.system.process import Process
from experiments.system.signals import STATUS, Interrupted, Interruption
from experiments.training.speed import Measured

PATIENCE = 120.0
"""Seconds that workers have to save and leave; more than a compilation takes."""

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


class Share(NamedTuple):
    """Holds the trials that one worker runs in one call, and how many at a time."""

    trials: list[Trial]
    lanes: int

    @property
    def program(self):
        return lane_key(self.trials[0].settings)


class Pools:
    """Keeps workers by their number of threads, started when first asked for.

    Each trial's lines go to the `trackers` too.
    """

    def __init__(self, prepared: dict[Data, Dataset], trackers: tuple[str, ...] = ()):
        self._prepared = prepared
        self._trackers = trackers
        # A worker says what the machine is: an accelerator is the workers' to open.
        first = Worker(1, prepared, trackers)
        self._pools = {1: [first]}
        self.machine = first.machine()

    def workers(self, layout: Layout) -> list[Worker]:
        """Returns as many workers as the layout has."""
        threads = layout.threads(self.machine)
        pool = self._pools.setdefault(threads, [])
        while len(pool) < layout.workers:
            pool.append(Worker(threads, self._prepared, self._trackers))
        return pool[: layout.workers]

    def stop(self) -> None:
        """Kills all workers."""
        for pool in self._pools.values():
            for worker in pool:
                worker.stop()


def schedules(
    pools: Pools,
    todo: list[Trial],
    guess: Callable[[list[Trial]], float],
    wish: Layout | None,
    say: Callable[[str], None],
) -> list[tuple[list[Trial], Schedule]]:
    """Chooses how each group is to be run.

    `guess` gives a group's seconds on a CPU, `say` gets a line for each group that was
    measured, and `wish` is the layout that the user asked for.
    """
    chosen = []
    for group in group_trials(todo):
        if wish:
            chosen.append((group, Schedule(wish, "as asked")))
            continue
        steps = [trial.settings.training.steps for trial in group]
        about = guess(group) if pools.machine.backend == "cpu" else None
        measure = lambda layout, trial=group[0]: _measured(pools, trial, layout)
        schedule = choose(pools.machine, steps, about, measure)
        chosen.append((group, schedule))
        if schedule.why.startswith("measured"):
            say(f"{group[0].name}: {schedule.layout.name} ({schedule.why})")
    return chosen


def run_all(
    pools: Pools,
    workdir: Path,
    chosen: list[tuple[list[Trial], Schedule]],
    watch: Callable[[list[Trial]], None],
    interruption: Interruption | None = None,
) -> Iterator[Trial]:
    """Runs all groups, pool after pool, and yields each trial as it ends.

    `watch(running)` is called twice a second. After a stop signal the workers get one too
    and may save; then Interrupted is raised.
    """
    entries = []
    layouts = {}
    for group, schedule in chosen:
        directories = [trial.directory for trial in group]
        layout = schedule.layout._asdict()
        entries.append(dict(trials=directories, layout=layout, why=schedule.why))
        layouts[schedule.layout.workers] = schedule.layout
    write_json(workdir / "schedule.json", entries)
    for layout in layouts.values():
        shares = []
        for group, schedule in chosen:
            if schedule.layout.workers == layout.workers:
                shares += _shares(group, schedule.layout)
        workers = pools.workers(layout)
        interruption = interruption or Interruption()
        yield from _run_pool(workers, workdir, shares, watch, interruption)


def _measured(pools, trial, layout):
    """Returns the times of the slowest worker, all measuring at once."""
    workers = pools.workers(layout)
    pending = [(worker, worker.measure(trial, layout.lanes)) for worker in workers]
    times = [worker.result(future) for worker, future in pending]
    return None if None in times else Measured(*map(max, zip(*times, strict=True)))


def _shares(group, layout):
    """Deals out a group: a trial a call, or with lanes a worker's whole share of it."""
    if layout.lanes == 1:
        return [Share([trial], 1) for trial in group]
    # Every n-th trial, so that long and short ones are spread over the workers.
    workers = min(layout.workers, len(group))
    return [Share(group[i :: layout.workers], layout.lanes) for i in range(workers)]


def _run_pool(workers, workdir, waiting, watch, interruption):
    """Runs shares on workers, each as soon as one is free; yields trials as they end."""
    running = {}
    while waiting or running:
        if interruption.asked:
            for worker, _ in running.values():
                worker.terminate()
            # Workers save their checkpoints before they leave.
            futures.wait(running, timeout=PATIENCE)
            raise Interrupted
        _start_waiting(workers, workdir, waiting, running)
        some_done = futures.FIRST_COMPLETED
        done, _ = futures.wait(running, timeout=0.5, return_when=some_done)
        if interruption.asked:
            # The workers may have got the signal too, so their errors mean nothing.
            continue
        for future, (worker, trials) in list(running.items()):
            if future in done:
                del running[future]
                error = future.exception()
                if _is_interruption(worker, error):
                    # Another process than this one has stopped the worker.
                    interruption.asked = True
                    # So that the loop does not end here, as if all had ended.
                    waiting.append(Share(trials, 1))
                    continue
                if error is not None:
                    _record_death(workdir, trials, error)
                    worker.restart()
                yield from trials
            elif len(trials) > 1:
                # Lanes end one by one, long before their share does.
                ended = [trial for trial in trials if is_finished(workdir, trial)]
                for trial in ended:
                    trials.remove(trial)
                    yield trial
        still_running = [trials for _, trials in running.values()]
        watch(list(itertools.chain(*still_running)))


def _start_waiting(workers, workdir, waiting, running):
    """Gives each idle worker a share, as long as there are any."""
    for worker in workers:
        busy = [other for other, _ in running.values()]
        if waiting and worker not in busy:
            share = _choose(waiting, worker, busy)
            waiting.remove(share)
            future = worker.run(workdir, *share)
            running[future] = worker, list(share.trials)


def _choose(waiting, worker, busy):
    """Returns the next share of a worker.

    It is of the program that the worker has compiled, else of the one with the most shares,
    preferably one that no other worker is at.
    """
    programs = Counter(share.program for share in waiting)
    if worker.program not in programs:
        taken = {other.program for other in busy}
        worker.program = max(programs, key=lambda p: (p not in taken, programs[p]))
    return next(share for share in waiting if share.program == worker.program)


def _is_interruption(worker, error):
    """Whether a call ended because its process was asked to stop.

    With nothing to save it leaves at once, even in the middle of a compilation.
    """
    if isinstance(error, futures.BrokenExecutor):
        return worker.exit_status() == STATUS
    return isinstance(error, Interrupted)


def _record_death(workdir, trials, error):
    message = f"the worker process died ({error}); it may have run out of memory"
    for trial in trials:
        record_failure(workdir, trial, message)


def _start(threads: int, prepared: dict[Data, Dataset]):
    """Sets up a worker process, before JAX starts its backend."""
    if threads < machine.cores():
        # The size of XLA's thread pool.
        os.environ["NPROC"] = str(threads)
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
    with contextlib.ExitStack() as locks:
        jobs = []
        for path, trial in by_path.items():
            job = loop.Job(trial.settings, path, trial.name, trial.point)
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
