"""The simulation of entries of which the truth is known."""

import numpy as np
import pytest

from experiments.bar import judge, rules
from launch.bench import bar
from launch.bench.bar import CELLS, Cell, simulate

BY_NAME = {cell.name: cell for cell in CELLS}


def test_what_is_clearly_better_beats_and_equals_do_not():
    counts = simulate(Cell("", better=(4.0,) * len(bar.TASKS)), 10, 0)
    assert (counts.entries, counts.better, counts.worse) == (10, 10, 0)
    counts = simulate(BY_NAME["equal"], 40, 0)
    # 1 % of 40, and what chance adds to it with a probability of 1 in 1,000.
    assert counts.better <= 3
    assert counts.worse <= 3
    assert counts.covered >= 36


def test_what_is_clearly_worse_stops_early():
    counts = simulate(Cell("", better=(-4.0,) * len(bar.TASKS)), 10, 0)
    assert (counts.worse, counts.stopped) == (10, 10)


def test_the_true_share_is_that_of_normal_runs():
    # P(X > Y) where the means are 2 standard deviations apart, in three of seven tasks.
    one = 0.9213503964748575
    share = bar.true_share(BY_NAME["three tasks, 2 sd better"])
    assert share == pytest.approx((3 * one + 4 * 0.5) / 7, abs=0.005)


@pytest.mark.parametrize("name", ["equal", "equal, half of the runs learn"])
def test_equal_cells_draw_equal_runs(name):
    rng = np.random.default_rng(0)
    ours = bar._runs(rng, BY_NAME[name], 4000)
    theirs = bar._runs(rng, Cell("", learned=BY_NAME[name].learned), 4000)
    for task in bar.TASKS:
        x, y = (np.array([*side[task.name].values()]) for side in (ours, theirs))
        assert abs(x.mean() - y.mean()) < 5 * x.std() * (2 / 4000) ** 0.5
        assert abs(x.std() / y.std() - 1) < 0.1


def test_the_cells_are_judged_as_the_command_judges(monkeypatch):
    """By the looks and levels of the rules."""
    monkeypatch.setattr(rules, "LEVEL", 0.4)
    assert 2 <= simulate(BY_NAME["equal"], 20, 0).better <= 15
    seen = []

    def is_hopeless(runs, opponents, tasks):
        seen.append((len(runs["copy"]), [len(x["copy"]) for x in opponents]))
        return False

    monkeypatch.setattr(judge, "is_hopeless", is_hopeless)
    simulate(BY_NAME["equal"], 1, 0)
    assert seen == [(min(rules.LOOKS), [rules.BASE_SEEDS, max(rules.LOOKS)])]


def test_who_stops_is_judged_by_the_first_look(monkeypatch):
    monkeypatch.setattr(judge, "is_hopeless", lambda *_: True)
    seen = []

    def judged(ours, theirs, tasks):
        seen.append(len(ours["copy"]))
        return judge_as_ever(ours, theirs, tasks)

    judge_as_ever = judge.judge
    monkeypatch.setattr(judge, "judge", judged)
    simulate(BY_NAME["equal"], 3, 0)
    assert seen == [min(rules.LOOKS)] * 3


def test_an_interval_that_leaves_the_truth_out_is_not_counted(monkeypatch):
    monkeypatch.setattr(bar, "true_share", lambda cell: 1.5)
    assert simulate(BY_NAME["equal"], 3, 0).covered == 0
