"""How a machine's processes are shared between the groups of a sweep."""

import json
from types import SimpleNamespace

import pytest

from experiments.sweep import here
from experiments.sweep.plan import plan_trials
from experiments.system.machine import Machine
from experiments.system.signals import Interruption
from experiments.training.speed import Measured
from experiments.trial import cost
from tests.experiments import tiny

POINTS = [{"model.N": n} for n in (1, 2, 3)]
"""Three programs of one trial each."""


@pytest.fixture
def submit(tmp_path, monkeypatch):
    """A function that returns the workers of each group: of a machine, for trials."""

    def submitted(machine, trials, **options):
        measure = lambda trial, layout: Measured(1.0, 1.0 / layout.workers)
        pools = SimpleNamespace(machine=machine, measure=measure, stop=lambda: None)
        monkeypatch.setattr(here, "Pools", lambda *_: pools)
        # Nothing is trained.
        monkeypatch.setattr(here, "run_trials", lambda *_, **how: iter([None]))
        one = here.Here(tmp_path, {}, here.Wishes(), print, Interruption(), **options)
        training = one.train(trials)
        next(training)
        chosen = one._chosen or one._choose_some(trials)
        training.close()
        return [schedule.layout.workers for _, schedule in chosen]

    return submitted


def test_groups_of_one_trial_share_the_processes(submit, tmp_path):
    trials = plan_trials(tiny.config(), POINTS)
    assert submit(Machine("cpu", 1, 2), trials) == [2, 2, 2]
    layouts = [
        entry["layout"]
        for entry in json.loads((tmp_path / "schedule.json").read_text())
    ]
    assert [layout["workers"] for layout in layouts] == [2, 2, 2]


def test_a_guest_shares_them_too(submit):
    trials = plan_trials(tiny.config(), POINTS)
    assert submit(Machine("cpu", 1, 64), trials, is_guest=True) == [3, 3, 3]


@pytest.mark.parametrize(("backend", "groups"), [("gpu", 1), ("cpu", 2)])
def test_a_guest_measures_one_group_and_leaves_the_rest_to_others(
    submit, backend, groups
):
    points = [point | {"seed": seed} for point in POINTS[:2] for seed in range(2)]
    trials = plan_trials(tiny.config(), points)
    assert len(submit(Machine(backend, 1, 64), trials, is_guest=True)) == groups


def test_a_trial_alone_has_all_cores(submit):
    trials = plan_trials(tiny.config(), POINTS[:1])
    assert submit(Machine("cpu", 1, 2), trials) == [1]


def test_no_more_processes_than_memory_has_room_for(submit):
    trials = plan_trials(tiny.config(), POINTS)
    needs = [cost.memory(trial.settings) for trial in trials]
    # Room for two of the largest, and for three of the smallest.
    machine = Machine("cpu", 1, 64, max(2 * needs[2], 3 * needs[0]))
    expected = [min(3, machine.memory // need) for need in needs]
    assert submit(machine, trials) == expected and expected[2] == 2
