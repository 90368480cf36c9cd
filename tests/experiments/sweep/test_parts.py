"""Every trial is in one part, parts are about equal, and groups are seldom cut."""

import itertools

import pytest

from experiments.errors import UserError
from experiments.sweep.parts import TOLERANCE, Part, read_part, trials_of
from experiments.sweep.plan import lane_key, plan_trials
from experiments.sweep.points import expand, sweeps_of
from experiments.trial.cost import flops_of_a_step
from tests.experiments import tiny_config


def plan(points):
    return plan_trials(tiny_config.get_config(), points)


def names(trials):
    return [trial.name for trial in trials]


def parts_of(planned, count):
    return [trials_of(Part(i + 1, count), planned) for i in range(count)]


def work(trials):
    sizes = [trial.settings.training.steps for trial in trials]
    steps = [flops_of_a_step(trial.settings) for trial in trials]
    return sum(a * b for a, b in zip(sizes, steps, strict=True))


SEEDS = [
    {"model.h": h, "model.d_k": 16 // h, "seed": s} for s in range(5) for h in (1, 2, 4)
]
"""Three programs of five lanes, which the plan has in turn."""


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 15, 16, 40])
def test_each_trial_is_in_one_part_and_in_the_order_of_the_plan(count):
    planned = plan(SEEDS)
    parts = parts_of(planned, count)
    assert sorted(itertools.chain(*map(names, parts))) == sorted(names(planned))
    for part in parts:
        assert names(part) == [name for name in names(planned) if name in names(part)]
    assert sum(not part for part in parts) == max(0, count - len(planned))


@pytest.mark.parametrize("count", [2, 4, 7])
def test_parts_are_about_equal_in_work(count):
    """A cut is at most half a trial from its best place, or TOLERANCE between two groups."""
    planned = plan(SEEDS)
    share = work(planned) / count
    longest = max(work([trial]) for trial in planned)
    for part in parts_of(planned, count):
        assert abs(work(part) - share) <= longest + TOLERANCE * share


def test_lanes_of_one_program_stay_together():
    """Groups of almost equal work are whole in as many parts; else one is cut for each cut."""
    planned = plan(SEEDS)
    programs = lambda part: {lane_key(trial.settings) for trial in part}
    assert len(programs(planned)) == 3
    assert len({work([trial]) for trial in planned}) > 1
    assert [len(programs(part)) for part in parts_of(planned, 3)] == [1, 1, 1]
    assert sum(len(programs(part)) for part in parts_of(planned, 5)) <= 3 + 4


def test_a_long_trial_does_not_leave_parts_empty():
    long = [{"training.steps": 120, "training.warmup": 4}]
    short = [{"seed": s} for s in range(3)]
    for points in (long + short, short + long):
        parts = parts_of(plan(points), 4)
        assert [len(part) for part in parts] == [1, 1, 1, 1]
    # In two parts, the long one stands alone.
    assert names(parts_of(plan(long + short), 2)[0]) == names(plan(long))


def test_work_counts_and_not_trials():
    """Of four trials, one takes as long as the other three."""
    points = [{"seed": s} for s in range(3)] + [{"training.steps": 36}]
    first, second = parts_of(plan(points), 2)
    assert [len(first), len(second)] == [3, 1]


def test_parts_are_those_of_any_other_process():
    """Nothing that a machine measures decides: the same plan gives the same names."""
    points = expand(sweeps_of(tiny_config), ["heads", "seed"])
    once = [names(part) for part in parts_of(plan(points), 3)]
    assert once == [names(part) for part in parts_of(plan(points), 3)]
    assert once == [
        ["h=1 d_k=16 seed=0"],
        ["h=1 d_k=16 seed=1"],
        ["h=2 d_k=8 seed=0", "h=2 d_k=8 seed=1"],
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0/3", "from 1/3 to 3/3"),
        ("4/3", "from 1/3 to 3/3"),
        ("1/0", "from 1/1 to 1/1"),
        ("a/b", "as 3/20"),
        ("3", "as 3/20"),
        ("-1/3", "as 3/20"),
        ("1/3/4", "as 3/20"),
        ("1/" + "9" * 5000, "as 3/20"),
        ("１/３", "as 3/20"),
        ("", "as 3/20"),
    ],
)
def test_a_mistaken_part_names_the_remedy(text, words):
    with pytest.raises(UserError, match=words):
        read_part(text)


def test_a_part_of_very_many_is_found_at_once():
    assert trials_of(Part(999_999_999, 999_999_999), plan(SEEDS)) == []
    assert read_part("3/20") == Part(3, 20)
