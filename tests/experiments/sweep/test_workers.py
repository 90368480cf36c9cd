"""Worker processes: they take trials, settle them, and end as they are told."""

import os
import signal
import time

import pytest

from experiments.sweep import workers
from experiments.sweep.claims import Claims, list_claims
from experiments.sweep.joiner import name_of
from experiments.sweep.plan import group_trials, plan_trials
from experiments.sweep.schedule import Layout
from experiments.system import machine
from experiments.system.files import read_json
from experiments.system.machine import Machine
from experiments.system.signals import Interrupted
from experiments.training import loop
from tests.experiments import tiny
from tests.experiments.sweep.stand_ins import finish


def planned(count):
    return plan_trials({}, [tiny.POINT | {"seed": seed} for seed in range(count)])


def stop_alone():
    """Is what a scheduler may do to a worker that compiles: it has nothing to save."""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)


@pytest.mark.ci
def test_a_worker_that_is_stopped_while_it_measures_is_an_interruption():
    worker = workers.Worker(1, {})
    try:
        with pytest.raises(Interrupted):
            worker.result(worker.submit(stop_alone))
    finally:
        worker.stop()


@pytest.fixture
def trained(monkeypatch):
    """The trials that end, as many at a time as there are lanes; `ends` says how."""
    monkeypatch.setattr(workers, "_prepared", dict.fromkeys([tiny.resolve().data]))
    done = []

    def run_all(take, prepared, lanes, *, failed, **options):
        """Is loop.run_all with trials of no steps."""
        running = [job for job in (take() for _ in range(lanes.count)) if job]
        while running:
            job = running.pop(0)
            done.append(job.path.name)
            run_all.end(job, failed)
            running += filter(None, [take()])

    run_all.end = lambda job, failed: finish(job.path, Here())
    monkeypatch.setattr(loop, "run_all", run_all)
    run_all.done = done
    return run_all


class Here:
    """Stands for a trial whose directory is the one that is given."""

    directory = "."


def start(workdir, trials, lanes=1, number=0):
    groups = [workers.Group(group, lanes) for group in group_trials(trials)]
    workers._train(workdir, groups, "me", number)


def test_lanes_settle_their_trials_one_by_one(trained, tmp_path):
    trials = planned(5)
    seen = []

    def end(job, failed):
        seen.append(len(list_claims(tmp_path).running()))
        finish(job.path, Here())

    trained.end = end
    start(tmp_path, trials, lanes=2)
    assert trained.done == [name_of(trial) for trial in trials]
    assert list_claims(tmp_path).ended == {*trained.done}
    assert seen == [2, 2, 2, 2, 1]


@pytest.mark.parametrize("is_own", [True, False])
def test_errors_are_those_of_trials(trained, tmp_path, is_own):
    """A trial's own error leaves the others alone; any other fails all that run."""
    trials = planned(3)

    def end(job, failed):
        try:
            raise ValueError("no\nmemory")
        except ValueError as error:
            if not is_own:
                raise
            failed(job, error)

    trained.end = end
    start(tmp_path, trials, lanes=2)
    assert len(trained.done) == (3 if is_own else 1)
    results = [read_json(tmp_path / t.directory / "result.json") for t in trials]
    failed = [result for result in results if result]
    assert len(failed) == (3 if is_own else 2)
    assert failed[0]["error"] == "ValueError: no memory"
    assert "in end" in failed[0]["traceback"]
    assert list_claims(tmp_path).running() == []


def test_an_interrupted_worker_gives_its_trials_back(trained, tmp_path):
    def end(job, failed):
        raise Interrupted

    trained.end = end
    (trial,) = planned(1)
    with pytest.raises(Interrupted):
        start(tmp_path, [trial])
    assert list_claims(tmp_path).numbers == {name_of(trial): 1}


def test_a_worker_begins_with_a_program_that_no_other_is_at(trained, tmp_path):
    ones = planned(3)
    twos = plan_trials({}, [tiny.POINT | {"seed": i, "model.N": 2} for i in range(2)])
    assert Claims(tmp_path, "other").take(name_of(ones[0]), 0)
    start(tmp_path, [*ones, *twos])
    assert trained.done == [name_of(trial) for trial in (*twos, *ones[1:])]


def test_workers_that_begin_together_begin_with_different_programs(trained, tmp_path):
    for number in range(3):
        trained.done.clear()
        trials = plan_trials({}, [tiny.POINT | {"model.N": N} for N in (1, 2)])
        start(tmp_path / f"{number}", trials, number=number)
        first = trials[number % 2]
        assert trained.done[0] == name_of(first) and len(trained.done) == 2


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
