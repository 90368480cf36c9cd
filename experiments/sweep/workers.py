"""Worker processes for the trials of a sweep, and who runs what.

A group is the trials that can be lanes of one program. `planner` says how each group is run; groups of the same number
of processes share a pool, and in a pool a worker is given trials of the program that it has compiled.
"""

import concurrent.futures as futures
import contextlib
import os
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from experiments.data.dataset import Prepared
from experiments.settings import Data
from experiments.sweep.plan import Planned, group_trials, lane_key
from experiments.sweep.schedule import Schedule, Way, choose
from experiments.sweep.workdir import is_finished, record_failure
from experiments.system import machine
from experiments.system.files import write_json
from experiments.system.machine import Machine
from experiments.system.process import Process
from experiments.system.signals import Interrupted, Interruption
from experiments.training.speed import Measured

PATIENCE = 120.0
"""Seconds that workers have to save and leave; more than a compilation takes."""


_prepared: dict[Data, Prepared] = {}


_interruption = Interruption()


_listening = contextlib.ExitStack()


class Worker(Process):
    """A process that runs some trials at a time, and stays warm: what it compiled is there for the next."""

    def __init__(self, threads: int, prepared: dict[Data, Prepared]):
        super().__init__(_begin, threads, prepared)
        self.program = None

    def machine(self) -> Machine:
        return self.submit(_machine).result()

    def measure(self, one: Planned, lanes: int) -> futures.Future:
        """Of `Measured`, or None where it failed."""
        return self.submit(_measure, one.settings, lanes)

    def run(self, workdir: Path, some: list[Planned], lanes: int) -> futures.Future:
        self.program = lane_key(some[0].settings)
        return self.submit(_run, workdir, some, lanes)


class Pools:
    """Workers by their number of threads, started when first asked for."""

    def __init__(self, prepared: dict[Data, Prepared]):
        self._prepared, self._pools = prepared, {1: [Worker(1, prepared)]}
        self.machine = self._pools[1][0].machine()

    def of(self, way: Way) -> list[Worker]:
        pool = self._pools.setdefault(way.threads(self.machine), [])
        pool += [
            Worker(way.threads(self.machine), self._prepared)
            for _ in range(way.workers - len(pool))
        ]
        return pool[: way.workers]

    def stop(self) -> None:
        for worker in (worker for pool in self._pools.values() for worker in pool):
            worker.stop()


def schedules(
    pools: Pools,
    todo: list[Planned],
    guess: Callable[[list[Planned]], float],
    wish: Way | None,
    say: Callable[[str], None],
) -> list[tuple[list[Planned], Schedule]]:
    """How each group is to be run; `guess` gives a group's seconds on a CPU, `say` gets a line for each measured."""
    found = []
    for group in group_trials(todo):
        if wish:
            found.append((group, Schedule(wish, "as asked")))
            continue
        steps = [one.settings.training.steps for one in group]
        about = guess(group) if pools.machine.backend == "cpu" else None
        found.append(
            (
                group,
                choose(
                    pools.machine,
                    steps,
                    about,
                    lambda way, one=group[0]: _measured(pools.of(way), one, way),
                ),
            )
        )
        if found[-1][1].why.startswith("measured"):
            say(f"{group[0].name}: {found[-1][1].way.name} ({found[-1][1].why})")
    return found


def _measured(pool, one, way):
    """The slowest of the workers, all measuring at once."""
    found = [
        future.result()
        for future in [worker.measure(one, way.lanes) for worker in pool]
    ]
    return None if None in found else Measured(*map(max, zip(*found, strict=True)))


def run_all(
    pools: Pools,
    workdir: Path,
    chosen: list[tuple[list[Planned], Schedule]],
    watch: Callable[[list[Planned]], None],
    interruption: Interruption | None = None,
) -> Iterator[Planned]:
    """Runs all groups, pool after pool, yielding each trial as it ends; `watch(running)` is called twice a second.

    At word to stop the workers are told, and waited for, and Interrupted is raised.
    """
    write_json(
        workdir / "schedule.json",
        [
            dict(
                trials=[one.directory for one in group],
                way=schedule.way._asdict(),
                why=schedule.why,
            )
            for group, schedule in chosen
        ],
    )
    for way in {schedule.way.workers: schedule.way for _, schedule in chosen}.values():
        crews = [
            crew
            for group, schedule in chosen
            if schedule.way.workers == way.workers
            for crew in _crews(group, schedule.way)
        ]
        yield from _run_pool(
            pools.of(way), workdir, crews, watch, interruption or Interruption()
        )


def _crews(group, way):
    """(trials, lanes) that one worker runs in one call: a trial, or with lanes its share of the group."""
    if way.lanes == 1:
        return [([one], 1) for one in group]
    return [
        (group[i :: way.workers], way.lanes)
        for i in range(min(way.workers, len(group)))
    ]


def _run_pool(workers, workdir, left, watch, interruption):
    running = {}
    while left or running:
        if interruption.asked:
            for worker, _ in running.values():
                worker.terminate()
            futures.wait(running, timeout=PATIENCE)
            raise Interrupted
        for worker in workers:
            if left and worker not in {worker for worker, _ in running.values()}:
                crew = _choose(left, worker, [other for other, _ in running.values()])
                left.remove(crew)
                running[worker.run(workdir, *crew)] = worker, list(crew[0])
        done, _ = futures.wait(
            running, timeout=0.5, return_when=futures.FIRST_COMPLETED
        )
        if interruption.asked:
            continue  # so may the workers have been
        for future, (worker, some) in list(running.items()):
            if future in done:
                del running[future]
                if isinstance(error := future.exception(), Interrupted):
                    interruption.asked = (
                        True  # the worker was told by another than this process
                    )
                    continue
                if error is not None:
                    for one in some:
                        record_failure(
                            workdir,
                            one,
                            f"the worker process died ({error}); it may have run out of memory",
                        )
                    worker.restart()
                yield from some
            elif len(some) > 1:
                for one in [one for one in some if is_finished(workdir, one)]:
                    some.remove(one)
                    yield one
        watch([one for _, some in running.values() for one in some])


def _choose(left, worker, busy):
    """The next trials: of the program this worker has compiled, or of the largest group that no other is at."""
    programs = Counter(lane_key(some[0].settings) for some, _ in left)
    if worker.program not in programs:
        taken = {other.program for other in busy}
        worker.program = max(programs, key=lambda p: (p not in taken, programs[p]))
    return next(
        crew for crew in left if lane_key(crew[0][0].settings) == worker.program
    )


def _begin(threads: int, prepared: dict[Data, Prepared]):
    """First thing in a worker process, before JAX starts its backend."""
    if threads < machine.cores():
        os.environ["NPROC"] = str(threads)  # the size of XLA's thread pool
    machine.use_compile_cache()
    _prepared.update(prepared)
    _listening.enter_context(_interruption.listening([signal.SIGTERM], alone=False))


def _machine():
    return machine.here()


def _measure(settings, lanes):
    from experiments.training import speed

    try:
        return speed.measure(settings, _prepared[settings.data], lanes)
    except Exception:
        traceback.print_exc()
        return None


def _run(workdir, some, lanes):
    """Runs trials of one program; a failure is written to the result.json of those it concerns, and goes no further."""
    from experiments.training import loop
    from experiments.trial.lanes import Lanes

    def failed(job, error):
        one = next(one for one in some if workdir / one.directory == job.path)
        record_failure(
            workdir,
            one,
            f"{type(error).__name__}: {error}",
            "".join(traceback.format_exception(error)),
        )

    jobs = [
        loop.Job(one.settings, workdir / one.directory, one.name, one.point)
        for one in some
    ]
    settings = some[0].settings
    try:
        loop.run_all(
            jobs,
            _prepared[settings.data],
            Lanes(lanes, settings.training.strategy),
            failed=failed,
            interruption=_interruption,
        )
    except Exception as error:
        for job in jobs:
            if not is_finished(
                workdir, next(o for o in some if workdir / o.directory == job.path)
            ):
                failed(job, error)
