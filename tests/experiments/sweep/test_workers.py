"""Worker processes: they end as they are told, and lock what they train."""

import os
import signal
import time

import pytest

from experiments.sweep import workers
from experiments.sweep.plan import plan_trials
from experiments.sweep.schedule import Layout
from experiments.system import machine
from experiments.system.files import LockedError, lock, read_json
from experiments.system.machine import Machine
from experiments.system.signals import Interrupted
from experiments.training import loop
from tests.experiments import tiny


def planned(count):
    return plan_trials({}, [tiny.POINT | {"seed": seed} for seed in range(count)])


def stop_alone():
    """Is what a scheduler may do to a worker that compiles: it has nothing to save."""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)


class Signalled(workers.Worker):
    """Ends by a signal as soon as it is to run a trial."""

    def __init__(self, end):
        self.end = end
        super().__init__(1, {})

    def run(self, workdir, trials, lanes):
        return self.submit(self.end)


@pytest.mark.ci
def test_a_worker_that_is_stopped_while_it_measures_is_an_interruption():
    worker = Signalled(stop_alone)
    try:
        with pytest.raises(Interrupted):
            worker.result(worker.submit(stop_alone))
    finally:
        worker.stop()


def test_a_sweep_locks_the_trials_that_it_trains(tmp_path, monkeypatch):
    first, second = planned(2)
    monkeypatch.setitem(workers._prepared, first.settings.data, None)
    trained = []

    def train(jobs, *arguments, **options):
        for job in jobs:
            with pytest.raises(LockedError, match="is in use by process"):
                loop.run(job.settings, tiny.corpus(), job.path)
            trained.append(job.name)

    monkeypatch.setattr(loop, "run_all", train)
    with lock(tmp_path / second.directory):
        workers._run(tmp_path, [first, second], 1)
    assert trained == [first.name]
    result = read_json(tmp_path / second.directory / "result.json")
    assert result["status"] == "failed" and "is in use by process" in result["error"]
    with lock(tmp_path / first.directory):
        pass


def test_workers_that_share_a_machine_take_what_they_need():
    cores = machine.cores()
    worker = workers.Worker(1, {})
    try:
        found = [
            worker.submit(os.getenv, name).result()
            for name in ("NPROC", "XLA_PYTHON_CLIENT_PREALLOCATE")
        ]
    finally:
        worker.stop()
    assert found == (["1", "false"] if cores > 1 else [os.getenv("NPROC"), None])


class Started:
    """Stands for a process on a machine with a GPU, and says when it was stopped."""

    def __init__(self, threads, prepared, trackers):
        self.threads = threads
        self.stopped = False

    def machine(self):
        return Machine("gpu", 1, 16)

    def stop(self):
        self.stopped = True


def test_a_gpus_worker_compiles_with_all_cores(monkeypatch):
    """XLA sizes the pool of threads that compile when the process opens the device."""
    started = []

    def start(*arguments):
        started.append(Started(*arguments))
        return started[-1]

    monkeypatch.setattr(workers, "Worker", start)
    pools = workers.Pools({})
    assert pools.workers(Layout("lanes", 1, 8)) == [started[-1]]
    # Two would take the GPU's memory twice.
    assert [(w.threads, w.stopped) for w in started] == [(1, True), (16, False)]
