"""A time is filled with steps and evaluations, which then stay as they are."""

import itertools

import pytest

from experiments.errors import UserError, WorkdirError
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


def test_a_trial_that_was_begun_without_a_budget_has_none(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert kept(tmp_path, None) is None
    with pytest.raises(WorkdirError, match="was begun without --budget"):
        kept(tmp_path, "10m")


def test_only_what_takes_much_longer_is_slowed():
    plan = choose("10m", 600.0, Costs(0.1, 2.0, 70.0), tiny.resolve())
    assert not is_slowed(plan, plan.seconds * 1.15)
    assert is_slowed(plan, plan.seconds * 1.25)


def test_costs_are_measured_of_all_that_a_trial_does():

    once = measure_costs(tiny.shared(), tiny.corpus())
    assert min(once) > 0
    # Validation and test have 12 sentences each, of which an evaluation translates 5.
    assert once.end > once.evaluation
