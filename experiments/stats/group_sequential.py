"""Levels of tests that are looked at several times, by the correlation of the looks.

A difference is looked at after n_1 < n_2 < … seeds. Its z-scores Z_l at the looks are those of
a sum of equal parts,

    Z_l = S_l / √n_l,   S_l − S_(l−1) ~ Normal(0, n_l − n_(l−1)),

so they are correlated by √(n_a / n_b), and the probability of an extreme value at any look is
less than the sum over looks. The level of a look is the largest with which the probability of
a first extreme value there is what the look may spend (Lan and DeMets 1983, "Discrete
sequential boundaries for clinical trials"), by Armitage, McPherson and Rowe's recursion (1969,
"Repeated significance tests on accumulating data").

Of m comparisons each spends what independent ones may of the family's; the maximum over
comparisons that depend on each other is less often extreme. The larger m, the less the looks
depend on each other in their tails, and the nearer the levels to what is spent.
"""

import functools
from collections.abc import Sequence

import numpy as np
from scipy import optimize, special

_NODES = 400
"""Points of the integrals over the paths that have had no extreme value yet."""


def nominal_levels(
    counts: Sequence[int], spent: Sequence[float], comparisons: int = 1
) -> tuple[float, ...]:
    """Returns the level of each look for the largest of some comparisons.

    `counts` are the seeds at each look, `spent` the probabilities of a first false verdict at
    each, which add up to that of any.
    """
    whole = np.cumsum(spent)
    each = -np.expm1(np.log1p(-whole) / comparisons)
    levels = []
    for z in _bounds(tuple(counts), tuple(np.diff(each, prepend=0.0))):
        own = 2 * special.ndtr(-z)
        levels.append(float(-np.expm1(comparisons * np.log1p(-own))))
    return tuple(levels)


def _missing(z, count, step, points, weights, wanted):
    """Returns by what the probability of an exit at z is more than is wanted."""
    edge = z * np.sqrt(count)
    beyond = special.ndtr((points - edge) / step)
    below = special.ndtr((-edge - points) / step)
    return weights @ (beyond + below) - wanted


@functools.cache
def _bounds(counts, exits):
    """Returns z at each look, two-sided, for the probabilities of a first exit at each."""
    # Of the paths that are left: points S, and their weight times density.
    points, weights = np.zeros(1), np.ones(1)
    nodes, of_nodes = np.polynomial.legendre.leggauss(_NODES)
    bounds = []
    for count, before, wanted in zip(counts, (0, *counts), exits, strict=False):
        step = np.sqrt(count - before)

        known = count, step, points, weights, wanted
        z = optimize.brentq(_missing, 0.0, 38.0, args=known, xtol=1e-10)
        bounds.append(z)
        edge = z * np.sqrt(count)
        inside = edge * nodes
        apart = (inside[:, None] - points) / step
        density = np.exp(-(apart**2) / 2) / (np.sqrt(2 * np.pi) * step)
        points, weights = inside, edge * of_nodes * (density @ weights)
    return bounds
