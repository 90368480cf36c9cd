"""Shares of wins against counting by hand, their probabilities against all splits."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from experiments.stats.wins import Contest, average, interval, p_values

pytestmark = pytest.mark.quick


def counted(task):
    pairs = itertools.product(task.ours, task.theirs)
    return sum(1.0 if x > y else 0.5 if x == y else 0.0 for x, y in pairs) / task.pairs


def splits(task):
    """All ways to deal a task's runs to the two sides."""
    runs = [*task.ours, *task.theirs]
    for chosen in itertools.combinations(range(len(runs)), len(task.ours)):
        ours = [runs[i] for i in chosen]
        theirs = [x for i, x in enumerate(runs) if i not in chosen]
        yield task._replace(ours=ours, theirs=theirs)


TIED = Contest([3.0, 1.0, 2.0], [2.0, 2.0, 0.0, 1.0])
DIVERGED = Contest([-math.inf, 5.0], [-math.inf, 4.0, 6.0], weight=2)


@pytest.mark.parametrize("task", [TIED, DIVERGED, Contest([1.0], [1.0])])
def test_a_share_counts_wins_and_half_of_the_ties(task):
    assert task.share == pytest.approx(counted(task))


def test_the_average_is_weighted():
    expected = (counted(TIED) + 2 * counted(DIVERGED)) / 3
    assert average([TIED, DIVERGED]) == pytest.approx(expected)


@pytest.mark.parametrize(
    "tasks",
    [
        [TIED],
        [DIVERGED],
        [TIED, DIVERGED],
        [TIED, Contest([4.0, 1.0], [2.0, 3.0, 3.0])],
    ],
    ids=lambda tasks: f"{len(tasks)} tasks",
)
def test_p_is_the_share_of_splits_that_are_as_far_out(tasks):
    seen = average(tasks)
    all_splits = itertools.product(*map(splits, tasks))
    averages = np.array([average(split) for split in all_splits])
    p = p_values(tasks)
    assert p.better == pytest.approx(np.mean(averages >= seen - 1e-12))
    assert p.worse == pytest.approx(np.mean(averages <= seen + 1e-12))


def test_p_of_one_task_is_that_of_scipy():
    rng = np.random.default_rng(0)
    task = Contest(rng.standard_normal(8) + 0.5, rng.standard_normal(16))
    for side, p in zip(("greater", "less"), p_values([task]), strict=True):
        exact = stats.mannwhitneyu(
            task.ours, task.theirs, alternative=side, method="exact"
        )
        assert p == pytest.approx(exact.pvalue)


def test_equals_in_every_run_have_p_one():
    assert p_values([Contest([1.0] * 4, [1.0] * 5)] * 3) == (1.0, 1.0)


@pytest.mark.parametrize("shifts", [[0.0] * 4, [1.0] * 4, [2.0, 0.0, 0.0, -1.0]])
@pytest.mark.parametrize("runs", [(8, 8), (4, 16)])
def test_intervals_hold_the_true_share(shifts, runs):
    rng = np.random.default_rng(1)
    truth = np.mean(stats.norm.cdf(np.array(shifts) / math.sqrt(2)))
    n, m = runs
    held = 0
    for _ in range(300):
        tasks = [
            Contest(rng.standard_normal(n) + shift, rng.standard_normal(m))
            for shift in shifts
        ]
        low, high = interval(tasks, 0.95)
        held += low <= truth <= high
    # Three standard errors of 300 draws.
    assert held / 300 > 0.95 - 3 * math.sqrt(0.95 * 0.05 / 300)


def variance(share, n, m):
    """Newcombe's method 5, and what estimated shares lack."""
    more = (1 - share) / (2 - share) + share / (1 + share)
    of_pairs = share * (1 - share) * (1 + ((n + m) / 2 - 1) * more)
    return of_pairs / (n * m) * (1 + 1 / min(n, m))


@pytest.mark.parametrize("count", [1, 4])
def test_ends_are_z_standard_deviations_off(count):
    """Of equal tasks, whose average varies less."""
    z = stats.norm.ppf(0.95)
    for end in interval([TIED] * count, 0.9):
        off = z * math.sqrt(variance(end, 3, 4) / count)
        assert abs(end - TIED.share) == pytest.approx(off)


def test_an_interval_of_wins_alone_ends_at_one():
    low, high = interval([Contest([2.0, 3.0], [0.0, 1.0])], 0.98)
    assert 0 < low < 0.5
    assert high == 1.0
    more, _ = interval([Contest([2.0] * 8, [0.0] * 8)], 0.98)
    assert low < more < 1


def test_an_interval_of_losses_alone_begins_at_zero():
    task = Contest([0.0, 1.0], [2.0, 3.0])
    other = Contest([2.0, 3.0], [0.0, 1.0])
    low, high = interval([task], 0.98)
    assert (1 - high, 1 - low) == pytest.approx(interval([other], 0.98))


def test_weights_are_those_of_the_interval_too():
    heavy, light = (
        interval([TIED._replace(weight=9), DIVERGED], 0.9),
        interval([TIED, DIVERGED._replace(weight=18)], 0.9),
    )
    alone = interval([TIED], 0.9)
    assert abs(heavy[0] - alone[0]) < abs(light[0] - alone[0])
