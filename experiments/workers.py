"""Worker processes for the trials of a sweep: one to a CPU core, or one for all accelerators.

On CPU, processes of one core each finish more trials an hour than one process with all cores (1.3 to 1.6 times on
two): small matrix products do not fill several cores.
"""

import concurrent.futures as futures
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import jax

from experiments import machine, sweep, trial
from experiments.prepared import Prepared
from experiments.processes import Process
from experiments.settings import Data
from experiments.sweep import Planned

_prepared: dict[Data, Prepared] = {}


class Worker(Process):
    """A process that runs one trial at a time, and stays warm: programs it compiled are there for the next trial."""

    def __init__(self, threads: int, prepared: dict[Data, Prepared]):
        super().__init__(_begin, threads, prepared)
        self.program = None

    def devices(self) -> tuple[str, int]:
        """The worker's backend and its number of devices."""
        return self.submit(_devices).result()

    def run(self, workdir: Path, one: Planned) -> futures.Future:
        self.program = program(one)
        return self.submit(_run, workdir, one)


def program(one: Planned):
    """What decides the trial's compiled program, so that a worker can be given its like."""
    s, t = one.settings, one.settings.training
    return trial.program(s, s.data.vocabulary, t.row_pieces), t.rows, t.strategy, s.evaluation


def start(prepared: dict[Data, Prepared], count: int = 0) -> list[Worker]:
    """`count` workers; 0 chooses: one to a core on CPU, one in all on an accelerator or on several CPU devices."""
    cores = machine.cores()
    if count == 0:
        first = Worker(1, prepared)
        if first.devices() != ("cpu", 1):
            first.stop()
            return [Worker(cores, prepared)]
        return [first] + [Worker(1, prepared) for _ in range(cores - 1)]
    return [Worker(max(1, cores // count), prepared) for _ in range(count)]


def run_all(workers: list[Worker], workdir: Path, todo: list[Planned],
            watch: Callable[[dict[Worker, Planned], list[Planned]], None]) -> Iterator[Planned]:
    """Runs `todo` on the workers, yielding each trial as it ends; calls `watch(running, left)` twice a second."""
    left, running = list(todo), {}
    while left or running:
        for worker in workers:
            if left and worker not in {w for w, _ in running.values()}:
                one = _choose(left, worker, [w for w, _ in running.values()])
                left.remove(one)
                running[worker.run(workdir, one)] = worker, one
        done, _ = futures.wait(running, timeout=0.5, return_when=futures.FIRST_COMPLETED)
        watch(dict(running.values()), left)
        for future in done:
            worker, one = running.pop(future)
            if (error := future.exception()) is not None:
                sweep.fail(workdir, one, f"the worker process died ({error}); it may have run out of memory")
                worker.restart()
            yield one


def _choose(left, worker, busy):
    """The next trial: of the program this worker has compiled, or of the largest group that no other is at."""
    groups = Counter(program(one) for one in left)
    if worker.program not in groups:
        taken = {other.program for other in busy}
        worker.program = max(groups, key=lambda p: (p not in taken, groups[p]))
    return next(one for one in left if program(one) == worker.program)


def _begin(threads: int, prepared: dict[Data, Prepared]):
    """First thing in a worker process, before JAX starts its backend."""
    if threads < machine.cores():
        os.environ["NPROC"] = str(threads)  # the size of XLA's thread pool
    machine.use_compile_cache()
    _prepared.update(prepared)


def _devices():
    return jax.default_backend(), jax.local_device_count()


def _run(workdir, one):
    sweep.attempt(workdir, one, _prepared[one.settings.data])
