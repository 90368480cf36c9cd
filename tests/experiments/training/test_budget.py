"""A time is filled with steps and evaluations, which then stay as they are."""

import itertools
import json

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.data.vocabulary import EOS
from experiments.errors import UserError, WorkdirError
from experiments.evaluation import evaluator
from experiments.system.files import DamagedError
from experiments.training import budget
from experiments.training.budget import (
    SAVED,
    Costs,
    choose,
    is_slowed,
    keep,
    kept,
    measure_costs,
)
from tests.experiments import tiny

COSTS = [
    Costs(step, evaluation, end)
    for step, evaluation, end in itertools.product(
        (0.0004, 0.03, 2.0), (0, 0.2, 9.0), (0, 7.0)
    )
]


@pytest.mark.parametrize("seconds", [60, 600, 28_800])
@pytest.mark.parametrize("costs", COSTS)
def test_what_is_chosen_fills_the_time(costs, seconds):
    t = tiny.resolve().training
    plan = choose("1m", seconds, costs, tiny.resolve())
    chosen = plan.changes
    steps = chosen["training.steps"]
    every = chosen["training.evaluate_every"]
    count = -(-steps // every)
    taken = steps * costs.step + count * costs.evaluation
    assert taken == pytest.approx(plan.seconds)
    left = seconds - costs.end
    # What is left is too little for a step with its evaluation.
    assert left - costs.step - costs.evaluation <= taken <= left
    # More than one evaluation, and one at the end, take at most a tenth of the time.
    assert count <= 2 or (count - 1) * costs.evaluation <= 0.1 * left
    assert count <= 20 + 1
    save_every = chosen["training.save_every"]
    assert save_every % chosen["training.log_every"] == 0
    assert chosen["training.log_every"] <= t.log_every
    assert save_every * costs.step <= max(SAVED, t.log_every * costs.step)
    assert chosen["training.until"] == "steps"
    # They are settings that a trial can have.
    tiny.resolve(**{key.replace(".", "__"): x for key, x in chosen.items()})


def test_what_the_user_gives_stays():
    costs = Costs(0.1, 1.0, 5.0)
    fixed = ("training.evaluate_every", "training.log_every", "training.until")
    plan = choose("1m", 65.0, costs, tiny.resolve(training__evaluate_every=10), fixed)
    # 60 s of steps of 0.1 s, with an evaluation of a second every ten.
    assert plan.changes == {"training.steps": 300, "training.save_every": 8}


def test_a_time_without_room_for_a_step_is_refused():
    with pytest.raises(UserError, match=r"--budget=1m is too short: .* takes 72 s"):
        choose("1m", 60.0, Costs(0.1, 2.0, 70.0), tiny.resolve())


def test_a_plan_is_kept_for_the_same_command(tmp_path):
    plan = choose("10m", 600.0, Costs(0.1, 2.0, 70.0), tiny.resolve())
    assert kept(tmp_path, "10m") is None and kept(tmp_path, None) is None
    keep(tmp_path, plan)
    assert kept(tmp_path, "10m") == plan == kept(tmp_path, None)
    with pytest.raises(
        WorkdirError, match="was begun with --budget=10m, and its 4,900 steps are fixed"
    ):
        kept(tmp_path, "11m")


@pytest.mark.parametrize(
    "damage",
    [
        lambda plan: plan.pop("costs"),
        lambda plan: plan["costs"].update(more=1),
        lambda plan: plan["changes"].pop("training.steps"),
        lambda plan: plan.update(changes=None),
    ],
)
def test_a_file_that_holds_no_plan_is_named(tmp_path, damage):
    keep(tmp_path, choose("10m", 600.0, Costs(0.1, 2.0, 70.0), tiny.resolve()))
    plan = json.loads((tmp_path / "budget.json").read_text())
    damage(plan)
    (tmp_path / "budget.json").write_text(json.dumps(plan))
    with pytest.raises(DamagedError, match=r"budget\.json is damaged"):
        kept(tmp_path, "10m")


def test_a_trial_that_was_begun_without_a_budget_has_none(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert kept(tmp_path, None) is None
    with pytest.raises(WorkdirError, match="was begun without --budget"):
        kept(tmp_path, "10m")


def test_only_what_takes_much_longer_is_slowed():
    plan = choose("10m", 600.0, Costs(0.1, 2.0, 70.0), tiny.resolve())
    assert not is_slowed(plan, plan.seconds * 1.15)
    assert is_slowed(plan, plan.seconds * 1.25)


def share_of_forty(ids):
    """Of 40 steps, those that the longest references of two batches take in the mean."""
    order = np.argsort([len(source) for source in ids.source], kind="stable")
    lengths = np.array([len(target) + 1 for target in ids.target])[order]
    return min(1.0, np.mean([lengths[:6].max(), lengths[6:].max()]) / 40)


def test_costs_are_measured_of_all_that_a_trial_does(monkeypatch):
    """By a clock on which each evaluated batch takes a second, whatever it is of."""
    clock = [0.0]

    def batch(*_, **__):
        clock[0] += 1.0
        return (jnp.full((1, 8, 1, 12), EOS), jnp.zeros((1, 8, 1)))

    def losses(self, states, heldout=None):
        clock[0] += 12.0
        return None

    monkeypatch.setattr(budget.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(budget.Evaluator, "losses", losses)
    monkeypatch.setattr(
        budget.speed, "measure", lambda *_: budget.speed.Measured(0.0, 0.25)
    )
    functions = evaluator.evaluation_functions
    monkeypatch.setattr(
        evaluator,
        "evaluation_functions",
        lambda *known: functions(*known)._replace(greedy=batch, search=batch),
    )
    own = tiny.resolve(evaluation__max_length=40, evaluation__batch_size=8)
    costs = measure_costs(own, tiny.corpus())
    of_validation, of_test = (
        share_of_forty(heldout.ids)
        for heldout in (tiny.corpus().validation, tiny.corpus().test)
    )
    # Each set has 12 sentences, two batches of 8, of which an evaluation translates 5.
    assert costs.step == 0.25 and of_validation < 0.9
    assert costs.evaluation == pytest.approx(12 + of_validation)
    assert costs.end == pytest.approx(24 + 2 * of_validation + 2 * of_test)
    twice = measure_costs(
        tiny.resolve(
            evaluation__max_length=40,
            evaluation__batch_size=8,
            training__keep_best=True,
        ),
        tiny.corpus(),
    )
    assert twice.end == pytest.approx(2 * costs.end)
