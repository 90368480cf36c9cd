"""Trials that train the same: one is trained, and the others wait until they can copy it."""

import itertools
import time

import pytest

from experiments.sweep import joiner
from experiments.sweep.claims import (
    Claims,
    Presence,
)
from experiments.sweep.joiner import name_of, run_trials
from experiments.sweep.plan import plan_trials
from experiments.sweep.workdir import open_workdir
from tests.experiments import tiny
from tests.experiments.sweep.stand_ins import (
    FakePools,
    Worker,
    as_layout,
    fail,
    finish,
    ran,
    train,
)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(joiner, "TICK", 0.001)
    monkeypatch.setattr(joiner, "AGE", 0.0)


def scored(workdir, seeds=3):
    """Trials of rows that differ in their scores; the first and last share a program."""
    rows = ({}, {"evaluation.beam": 2}, {"evaluation.alpha": 0.0})
    points = [row | {"seed": seed} for row in rows for seed in range(seeds)]
    trials = plan_trials(tiny.config(), points)
    open_workdir(workdir, "config.py", tiny.config(), [], trials)
    return trials


def training(trials):
    return [trial.settings.training_key() for trial in trials]


class Training(Worker):
    """Notes which trainings others are at when it begins, and which are copied."""

    now = ()

    def run(self, workdir, trials, lanes):
        assert not {*training(trials)} & {*itertools.chain(*self.now.values())}
        self.now[self] = training(trials)
        return super().run(workdir, trials, lanes)

    def go_on(self):
        self.now.pop(self, None)
        super().go_on()


@pytest.mark.parametrize("age", [0.0, 60.0])
@pytest.mark.parametrize("lanes", [1, 2])
def test_a_trial_waits_for_the_one_that_it_is_to_copy(
    tmp_path, monkeypatch, lanes, age
):
    monkeypatch.setattr(joiner, "AGE", age)
    trials = scored(tmp_path)
    workers = [Training(), Training()]
    Training.now = {}
    train(tmp_path, trials, *workers, choose=as_layout(2, lanes))
    assert sorted(ran(*workers)) == sorted(trials)
    for worker in workers:
        for share in worker.shares:
            assert len({*training(share.trials)}) == len(share.trials)


@pytest.mark.parametrize("only_copies", [False, True])
def test_what_another_process_trains_is_waited_for(tmp_path, only_copies):
    first, *_ = trials = scored(tmp_path, seeds=1)
    with Presence(tmp_path, silence=0.4) as other:
        claims = Claims(tmp_path, other.name)
        claims.take(name_of(first), 0)
        worker = Worker()
        mine = trials[1:] if only_copies else trials
        process = run_trials(FakePools(worker), tmp_path, mine, as_layout())
        for _ in range(5):
            next(process)
        assert worker.shares == []
        guest = run_trials(
            FakePools(worker), tmp_path, mine, as_layout(), stays=False, silence=30.0
        )
        deadline = time.monotonic() + 5
        for _ in guest:
            assert time.monotonic() < deadline
        finish(tmp_path, first)
        claims.end(name_of(first))
    for _ in process:
        worker.go_on()
    assert sorted(ran(worker)) == sorted(trials[1:])


def test_the_copy_of_a_trial_that_fails_is_trained(tmp_path):
    first, *_ = trials = scored(tmp_path, seeds=1)
    ends = {name_of(first): fail}
    worker = Worker(lambda path, trial: ends.get(name_of(trial), finish)(path, trial))
    train(tmp_path, trials, worker)
    assert sorted(ran(worker)) == sorted(trials)
