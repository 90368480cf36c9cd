"""Who is better, worse and the record, from runs of which the truth is known."""

import dataclasses
import math

import pytest

from experiments.bar import judge, rules
from experiments.stats import wins
from tests.experiments.bar import fakes

pytestmark = pytest.mark.quick

TASKS = rules.tasks_of("small")
BASE = fakes.log("base", seeds=16, seed=1).values()


def values(**changes):
    return fakes.log("other", **changes).values()


def test_what_is_better_in_every_task_is_better():
    found = judge.judge(values(better=3.0), BASE, TASKS)
    assert found.word == "better"
    assert set(found.tasks.values()) == {"better"}
    assert 0.5 < found.low < found.share < found.high <= 1
    assert found.p.better < 1e-6 < 0.99 < found.p.worse


def test_what_is_worse_in_every_task_is_worse():
    found = judge.judge(values(better=-3.0), BASE, TASKS)
    assert found.word == "worse"
    assert set(found.tasks.values()) == {"worse"}


def test_equals_are_undecided():
    found = judge.judge(values(seed=2), BASE, TASKS)
    assert found.word == "undecided"
    assert set(found.tasks.values()) == {"undecided"}
    assert found.low < 0.5 < found.high


def test_before_the_last_look_nothing_is_better():
    early = judge.first_seeds(values(better=3.0), 4)
    found = judge.judge(early, BASE, TASKS)
    assert found.word == "undecided"
    assert set(found.tasks.values()) == {"undecided"}
    assert found.p.better < rules.LEVEL


def test_at_the_first_look_worse_takes_its_level(monkeypatch):
    early = judge.first_seeds(values(better=-3.0), 4)
    assert judge.judge(early, BASE, TASKS).word == "worse"
    p = judge.judge(early, BASE, TASKS).p.worse
    monkeypatch.setattr(rules, "LOOKS", {4: p / 2, 8: 0.008})
    assert judge.judge(early, BASE, TASKS).word == "undecided"
    before = judge.first_seeds(early, 3)
    monkeypatch.setattr(rules, "LOOKS", {4: 1.0, 8: 0.008})
    assert judge.judge(before, BASE, TASKS).word == "undecided"


def test_after_all_seeds_worse_takes_the_last_level(monkeypatch):
    p = judge.judge(values(better=-1.0), BASE, TASKS).p.worse
    monkeypatch.setattr(rules, "LOOKS", {4: p / 2, 8: 2 * p})
    assert judge.judge(values(better=-1.0), BASE, TASKS).word == "worse"
    monkeypatch.setattr(rules, "LOOKS", {4: 2 * p, 8: p / 2})
    assert judge.judge(values(better=-1.0), BASE, TASKS).word == "undecided"


def test_the_fewest_seeds_of_a_task_count():
    runs = values(better=3.0)
    short = runs | {"copy": {seed: runs["copy"][seed] for seed in range(7)}}
    assert judge.judge(short, BASE, TASKS).word == "undecided"


def test_one_task_of_seven_needs_more_than_the_level():
    theirs = {task.name: dict(enumerate(range(16))) for task in TASKS}
    ours = {task.name: dict(enumerate([7.5] * 8)) for task in TASKS}
    ours["copy"] = dict(enumerate([15.5, 15.5, 15.5, 13.5, 12.5, 11.5, 10.5, 9.5]))
    alone = wins.Contest([*ours["copy"].values()], [*theirs["copy"].values()])
    p = wins.p_values([alone]).better
    assert rules.LEVEL / 7 < p < rules.LEVEL
    assert judge.judge(ours, theirs, TASKS).tasks["copy"] == "undecided"
    ours["copy"] = dict(enumerate([15.5] * 8))
    assert judge.judge(ours, theirs, TASKS).tasks["copy"] == "better"


def test_tasks_count_by_the_weights_of_the_rules():
    runs = values(better=3.0) | {"copy": values(better=-3.0)["copy"]}
    heavy = [
        dataclasses.replace(t, weight=50 if t.name == "copy" else 1) for t in TASKS
    ]
    assert judge.judge(runs, BASE, TASKS).word == "better"
    assert judge.judge(runs, BASE, heavy).word == "worse"


def test_the_interval_leaves_the_rules_level_on_each_side():
    found = judge.judge(values(better=1.0), BASE, TASKS)
    together = [
        wins.Contest([*values(better=1.0)[t.name].values()], [*BASE[t.name].values()])
        for t in TASKS
    ]
    assert (found.low, found.high) == wins.interval(together, 1 - 2 * rules.LEVEL)


def test_a_task_without_runs_is_named():
    lacking = {**BASE, "copy": {}}
    with pytest.raises(ValueError, match="no run of copy"):
        judge.judge(values(), lacking, TASKS)


def test_hopeless_is_who_is_worse_than_all():
    record = values(better=6.0, seed=3)
    worse = judge.first_seeds(values(better=-3.0), 4)
    assert judge.is_hopeless(worse, [BASE, record], TASKS)
    equal = judge.first_seeds(values(seed=4), 4)
    assert not judge.is_hopeless(equal, [BASE, record], TASKS)
    assert judge.is_hopeless(equal, [record], TASKS)


def test_each_entry_meets_the_record_of_its_time():
    entries = {
        "base": BASE,
        "like base": values(seed=5),
        "better": values(better=2.0, seed=6),
        "like base again": values(seed=7),
        "best": values(better=5.0, seed=8),
        "better, too late": values(better=2.0, seed=9),
    }
    found = judge.standings(entries, TASKS)
    records = [name for name, standing in found.items() if standing.is_record]
    assert records == ["base", "better", "best"]
    met = [standing.record for standing in found.values()]
    assert met == ["base", "base", "base", "better", "better", "best"]
    assert found["base"].against_base is None
    assert found["like base again"].against_record.word == "worse"
    assert found["like base again"].against_base.word == "undecided"
    assert found["better, too late"].against_base.word == "better"
    assert found["better, too late"].against_record.word == "worse"


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_what_diverged_is_worst(value):
    assert judge.oriented(value, TASKS[0]) == -math.inf


def test_less_is_better_where_the_task_says_so():
    characters = TASKS[-1]
    assert judge.oriented(1.2, characters) > judge.oriented(1.3, characters)
    assert judge.oriented(0.9, TASKS[0]) > judge.oriented(0.8, TASKS[0])
