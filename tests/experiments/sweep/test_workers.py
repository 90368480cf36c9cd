"""Worker processes: how they share a group of trials, and that measuring leads to a choice."""

import os
import signal
import time

import pytest

from experiments.sweep import workers
from experiments.sweep.plan import plan_trials
from experiments.sweep.schedule import Layout, layouts
from experiments.sweep.workdir import is_finished
from experiments.system.files import LockedError, lock, read_json
from experiments.system.signals import Interrupted, Interruption
from experiments.training import loop
from tests.experiments import tiny


def planned(count):
    return plan_trials({}, [tiny.POINT | {"seed": seed} for seed in range(count)])


def test_a_group_is_dealt_out():
    some = planned(5)
    assert workers._shares(some, Layout("", 2, 1)) == [([one], 1) for one in some]
    assert workers._shares(some, Layout("", 2, 4)) == [(some[::2], 4), (some[1::2], 4)]
    assert workers._shares(some[:1], Layout("", 2, 4)) == [(some[:1], 4)]


@pytest.mark.ci
def test_layouts_are_measured_and_the_best_is_taken(tmp_path):
    some = planned(3)
    said = []
    ended = []
    pools = workers.Pools({some[0].settings.data: tiny.corpus()})
    try:
        chosen = workers.schedules(pools, some, lambda group: 1e9, None, said.append)
        ((group, schedule),) = chosen
        assert group == some and schedule.layout in layouts(pools.machine, 3)
        assert schedule.why.startswith("measured: ") and schedule.why.count(
            " s"
        ) == len(layouts(pools.machine, 3))
        assert len(said) == 1 and schedule.layout.name in said[0]
        ended += [
            one.name
            for one in workers.run_all(pools, tmp_path, chosen, lambda running: None)
        ]
    finally:
        pools.stop()
    assert sorted(ended) == sorted(one.name for one in some)
    assert all(is_finished(tmp_path, one) for one in some)


def stop_alone():
    """Is what a scheduler may do to a worker that compiles: it has nothing to save."""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


class Signalled(workers.Worker):
    """Ends by a signal as soon as it is to run a trial."""

    def __init__(self, end):
        self.end = end
        super().__init__(1, {})

    def run(self, workdir, trials, lanes):
        return self.submit(self.end)


@pytest.mark.parametrize("end", [stop_alone, pytest.param(die, marks=pytest.mark.ci)])
def test_a_worker_that_is_stopped_alone_is_an_interruption_and_a_killed_one_a_failure(
    tmp_path, end
):
    (trial,) = planned(1)
    worker = Signalled(end)
    run = workers._run_pool(
        [worker], tmp_path, [workers.Share([trial], 1)], lambda _: None, Interruption()
    )
    result = tmp_path / trial.directory / "result.json"
    try:
        if end is stop_alone:
            with pytest.raises(Interrupted):
                list(run)
            assert not result.exists()
        else:
            assert list(run) == [trial]
            assert "it may have run out of memory" in read_json(result)["error"]
    finally:
        worker.stop()


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
