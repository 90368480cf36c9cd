"""How often the runs of one method beat those of another, over several tasks, and exact tests.

In a task with n runs x of one method and m runs y of another the share of wins is

    θ = (#{x_i > y_j} + #{x_i = y_j} / 2) / n·m,

an estimate of P(X > Y) + P(X = Y) / 2 (Mann and Whitney 1947). It asks for no distribution of
runs: some may have learned a task and others not, and one that diverged is −inf. Over tasks
shares are averaged by weights, as O'Brien sums ranks ("Procedures for comparing samples with
multiple endpoints", 1984): Σ w_t θ_t / Σ w_t.

Where both methods' runs have one distribution in each task, all ways to choose which n of the
n + m values are the first's are as likely. So the probability of an average as large as that
seen is counted, not approximated, with ties as they are.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import optimize, stats


class Contest(NamedTuple):
    """Holds the runs of two methods in one task; larger values are better."""

    ours: Sequence[float]
    theirs: Sequence[float]
    weight: int = 1

    @property
    def pairs(self) -> int:
        """The number of pairs of a run each."""
        return len(self.ours) * len(self.theirs)

    @property
    def share(self) -> float:
        """The share of wins θ."""
        ours = np.asarray(self.ours, float)[:, None]
        theirs = np.asarray(self.theirs, float)
        return float(np.mean((ours > theirs) + 0.5 * (ours == theirs)))


class PValues(NamedTuple):
    """Holds the probabilities, of equal methods, of what was seen or further out."""

    better: float
    worse: float


def average(tasks: Sequence[Contest]) -> float:
    """Returns the average share of wins, by the tasks' weights."""
    return float(np.average([t.share for t in tasks], weights=_weights(tasks)))


def p_values(tasks: Sequence[Contest]) -> PValues:
    """Returns the exact one-sided p-values of the average share of wins."""
    # Twice the wins are whole numbers; tasks with other numbers of pairs have a common scale.
    pairs = math.lcm(*(task.pairs for task in tasks))
    distribution, seen = np.ones(1), 0
    for task in tasks:
        scale = task.weight * pairs // task.pairs
        of_task = np.zeros(2 * task.pairs * scale + 1)
        of_task[::scale] = _null(task)
        distribution = np.convolve(distribution, of_task)
        seen += scale * round(2 * task.pairs * task.share)
    # Sums of probabilities may be above one by their rounding.
    better = min(1.0, float(distribution[seen:].sum()))
    return PValues(better, min(1.0, float(distribution[: seen + 1].sum())))


def _null(task):
    """Returns the probabilities of 0, 1, 2, … as twice the wins, if all splits are as likely.

    Wins are the sum of our ranks less the least that they may be, with the mean rank for
    ties: the splits are counted rank by rank (of which doubles are whole numbers).
    """
    n = len(task.ours)
    ranks = np.round(2 * stats.rankdata([*task.ours, *task.theirs])).astype(int)
    counts = np.zeros((n + 1, ranks.sum() + 1))
    counts[0, 0] = 1
    for rank in ranks:
        # From the last count on, so that each value is chosen once.
        for chosen in range(n, 0, -1):
            counts[chosen, rank:] += counts[chosen - 1, : len(counts[0]) - rank]
    least = n * (n + 1)
    of_wins = counts[n, least : least + 2 * task.pairs + 1]
    return of_wins / math.comb(len(ranks), n)


def interval(tasks: Sequence[Contest], level: float) -> tuple[float, float]:
    """Returns an approximate interval of the average share, of the probability `level`.

    It has all averages from which the one seen is less than z standard deviations off, where
    every task's share is moved alike, and has the variance of Newcombe's method 5 there
    (2006, "Confidence intervals for an effect size measure based on the Mann-Whitney
    statistic", part 2), with s the smaller number of runs:

        V(θ) = θ (1 − θ) (1 + ((n + m) / 2 − 1) ((1 − θ) / (2 − θ) + θ / (1 + θ))) / n·m

    times 1 + 1 / s, as V of estimates is smaller than V of what they estimate.
    """
    z = stats.norm.ppf((1 + level) / 2)
    weights = _weights(tasks) / _weights(tasks).sum()
    shares = np.array([task.share for task in tasks])
    seen = weights @ shares

    def moved(by):
        return np.clip(shares + by, 0.0, 1.0)

    def excess(by):
        # Zero where the average seen is z standard deviations off.
        variances = [_variance(x, t) for x, t in zip(moved(by), tasks, strict=True)]
        return (weights @ moved(by) - seen) ** 2 - z**2 * (weights**2 @ variances)

    ends = []
    for farthest in (-shares.max(), 1 - shares.min()):
        # Where even the farthest is near enough, it is the end.
        is_within = excess(farthest) <= 0
        by = (
            farthest
            if is_within
            else optimize.brentq(excess, 1e-9 * farthest, farthest)
        )
        ends.append(float(weights @ moved(by)))
    return ends[0], ends[1]


def _variance(share, task):
    """Returns the variance of a task's share of wins where the true one is `share`."""
    n, m = len(task.ours), len(task.theirs)
    spread = 1 + ((n + m) / 2 - 1) * ((1 - share) / (2 - share) + share / (1 + share))
    return share * (1 - share) * spread / (n * m) * (1 + 1 / min(n, m))


def _weights(tasks):
    return np.array([task.weight for task in tasks], float)
