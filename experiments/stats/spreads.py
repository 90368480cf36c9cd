"""Learns the spread of every row of a table over seeds from all of its rows.

Row i has an estimated variance s²_i over seeds with ν_i degrees of freedom. Its true standard
deviation σ_i is like the other rows', within a factor:

    ν_i s²_i / σ²_i ~ χ²(ν_i),   m flat,   τ ~ half-normal(0.6),
    log σ_i ~ 0.95 Normal(m, τ²) + 0.05 Normal(m, τ² + 1.5²).

With few seeds a row's spread so follows the table's, with many its own. One row in twenty may
be odd, and vary several times as much or as little as the rest, without making the others'
spreads less certain; the other metrics of its runs say whether it does (`oddness_of`). τ is
learned too, and all of it stays uncertain: what is drawn here are
standard deviations that fit the table.
Smyth (2004, "Linear models and empirical Bayes methods for assessing differential expression
in microarray experiments") shrinks variances so, with fixed m and τ, which for the few rows
of a table claims more than is known.

K rows, R draws.
"""

from typing import NamedTuple

import numpy as np
from scipy import special

USUAL_TAU = 0.6
"""The scale of the prior of τ: spreads that differ by a factor of 1.8 are usual, 3.3 are rare."""

ODD = 0.05
"""The share of rows that are odd."""

ODD_TAU = 2.5
"""How far the logarithms of odd rows' spreads are from the others', in units of τ's scale: with
0.6 by factors of 4.5."""

FAR_TAU = 4.0
"""The same of rows that other metrics call odd, before they say how odd."""

_MS = 64
_TAUS = 8
_SIGMAS = 192

_CACHED = 1 << 16
"""Numbers that a core's cache holds, with as many beside them."""


def draw_spreads(
    variances: np.ndarray,
    freedom: np.ndarray,
    uniforms: np.ndarray,
    rng: np.random.Generator,
    usual_tau: float = USUAL_TAU,
    oddness: "Oddness | None" = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws standard deviations of the rows from their posterior.

    `variances` (K,) are estimates with `freedom` (K,) degrees of freedom; a row of 0 degrees
    is drawn from what the others say. `uniforms` (R, K) choose each row's standard deviation
    within its distribution, so that a caller can make draws go together; `rng` draws m and τ.
    `oddness` is what a row's other metrics say. Returns (R, K) standard deviations, and the m
    and τ (R,) of each draw.

    Raises ValueError where no row has both a variance above 0 and degrees of freedom.
    """
    freedom = np.asarray(freedom, float)
    variances = _above_luck(np.asarray(variances, float), freedom)
    centre = _centre(variances, freedom)
    log_sigmas = centre + _reach(freedom, usual_tau) * np.linspace(-1, 1, _SIGMAS)
    ms = centre + _reach_of_m(freedom) * np.linspace(-1, 1, _MS)
    # Quantiles of the prior, so that each has the same weight.
    taus = usual_tau * special.ndtri(0.5 + (np.arange(_TAUS) + 0.5) / (2 * _TAUS))
    likelihood = _likelihood(log_sigmas, variances, freedom)
    usual = _normal(log_sigmas, ms, np.maximum(taus, 0.01))
    odd = _normal(log_sigmas, ms, np.hypot(taus, ODD_TAU * usual_tau) + 0.01)
    prior = (1 - ODD) * usual + ODD * odd
    own = _own_priors(oddness, freedom, usual, log_sigmas, ms, taus) if oddness else {}
    # All rows' evidence for each m and τ at once; what is far off has a weight of 0.
    evidence = prior @ likelihood.T
    for row, density in own.items():
        evidence[:, row] = density @ likelihood[row]
    weights = special.softmax(np.log(np.maximum(evidence, 1e-300)).sum(1))
    cells = rng.choice(weights.size, len(uniforms), p=weights)

    def of_rows(some):
        # A row whose runs say nothing of its spread is taken for a usual one.
        found = np.where((freedom > 0)[:, None], prior[some, None], usual[some, None])
        for row, density in own.items():
            found[:, row] = density[some]
        return found

    logs = np.empty(uniforms.shape)
    # Neighbours in order look up the same places, which is quicker.
    order = np.argsort(cells)
    at = cells[order], uniforms[order]
    logs[order] = _quantiles(log_sigmas, likelihood, of_rows, *at)
    return np.exp(logs), ms[cells // _TAUS], taus[cells % _TAUS]


def _above_luck(variances, freedom):
    """Returns the variances, at least a little: a row whose runs agree by luck has not none."""
    informative = (freedom > 0) & (variances > 0)
    if not informative.any():
        raise ValueError("no row has a spread over seeds to learn from")
    total = freedom[informative].sum()
    pooled = (freedom * variances)[informative].sum() / total
    return np.maximum(variances, 1e-4 * pooled)


def _own_priors(oddness, freedom, usual, log_sigmas, ms, taus) -> dict[int, np.ndarray]:
    """Returns {row: p(log σ | m, τ) on the grid} of the rows that other metrics call odd."""
    priors = {}
    for row in np.flatnonzero((freedom > 0) & oddness.are_odd):
        share, shift, spread = (x[row] for x in oddness.expected)
        moved = _normal(log_sigmas, ms + shift, np.hypot(taus, spread) + 0.01)
        priors[int(row)] = (1 - share) * usual + share * moved
    return priors


class Oddness(NamedTuple):
    """Holds what other metrics say of the rows' oddness in one, (K,) each."""

    share: np.ndarray
    """The probability of being odd, before this metric's runs are seen; ODD at least."""
    seen: np.ndarray
    """The same when they are seen too."""
    factor: np.ndarray
    """How many times the usual spread a row's is in this metric."""
    shift: np.ndarray
    """How far the logarithm of an odd row's spread is from m."""
    spread: np.ndarray
    """The standard deviation of that."""

    @property
    def expected(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(share, shift, spread): what is known before this metric's runs are seen."""
        return self.share, self.shift, self.spread

    @property
    def are_odd(self) -> np.ndarray:
        """(K,): the rows of which other metrics say that they are odd."""
        return (self.share > 2 * ODD) & (self.shift > 0)


def oddness_of(
    variances: np.ndarray,
    freedom: np.ndarray,
    correlation: np.ndarray,
    usual_tau: float = USUAL_TAU,
) -> list[Oddness]:
    """Returns for each of M metrics what the others say of its rows.

    A row is odd in all metrics of its runs or in none, and in all by a like factor. Metrics of
    the `correlation` (M, M) say the less of each other: their estimated variances are
    correlated by its square. `variances` and `freedom` are (M, K).
    """
    # Where all rows are said to have one spread, none is odd.
    wide = max(FAR_TAU * usual_tau, 1e-6)
    logs = []
    errors = []
    log_odds = []
    for of_metric, degrees in zip(variances, freedom, strict=True):
        known = (degrees > 0) & (of_metric > 0)
        own = np.full(len(degrees), np.nan)
        own[known] = 0.5 * np.log(of_metric[known]) - _log_bias(degrees[known])
        # The table's odd rows do not move its median.
        own -= np.median(own[known]) if known.any() else 0.0
        error = np.where(known, special.polygamma(1, np.maximum(degrees, 1) / 2) / 4, 1)
        usual = error + usual_tau**2 / 2
        odd = usual + wide**2
        factor = 0.5 * own**2 * (1 / usual - 1 / odd) - 0.5 * np.log(odd / usual)
        logs.append(np.nan_to_num(own))
        errors.append(np.where(known, usual, np.inf))
        log_odds.append(np.where(known, factor, 0.0))
    logs, errors, log_odds = map(np.stack, (logs, errors, log_odds))
    oddness = []
    for metric in range(len(logs)):
        news = 1 - correlation[metric] ** 2
        news[metric] = 0.0
        total = special.logit(ODD) + news @ log_odds
        precision = 1 / wide**2 + (news[:, None] / errors).sum(0)
        shift = (news[:, None] / errors * logs).sum(0) / precision
        share = np.maximum(ODD, special.expit(total))
        seen = special.expit(total + log_odds[metric])
        spread = 1 / np.sqrt(precision)
        oddness.append(Oddness(share, seen, np.exp(logs[metric]), shift, spread))
    return oddness


def _log_bias(freedom):
    """Returns E[log(χ²(ν) / ν)] / 2."""
    return (special.digamma(freedom / 2) - np.log(freedom / 2)) / 2


def _centre(variances, freedom):
    """Returns the mean of log σ, rows of few degrees counting less."""
    known = freedom > 0
    logs = 0.5 * np.log(variances[known]) - _log_bias(freedom[known])
    return np.average(logs, weights=1 / _chance(freedom[known]))


def _chance(freedom):
    """Returns the variance of an estimated log σ, with that between rows."""
    return special.polygamma(1, freedom / 2) / 4 + 0.3


def _reach_of_m(freedom):
    known = freedom[freedom > 0]
    # Few degrees in all have heavy tails.
    tails = 1 + 4 / known.sum()
    return 4 * tails * np.sqrt(1 / np.sum(1 / _chance(known)))


def _reach(freedom, usual_tau):
    return _reach_of_m(freedom) + (4 + 2 * ODD_TAU) * usual_tau + 0.5


def _likelihood(log_sigmas, variances, freedom):
    """Returns p(s²_i | σ) (K, G) up to what depends on s²_i alone; 1 at most."""
    ratios = variances[:, None] * np.exp(-2 * log_sigmas)
    logs = freedom[:, None] * (-log_sigmas - ratios / 2)
    return np.exp(logs - logs.max(-1, keepdims=True))


def _normal(log_sigmas, ms, taus):
    """Returns p(log σ | m, τ) of the normal distribution on the grid, (M T, G)."""
    distances = (log_sigmas - ms[:, None, None]) / taus[:, None]
    density = np.exp(-0.5 * distances**2).reshape(-1, len(log_sigmas))
    return density / np.maximum(density.sum(-1, keepdims=True), 1e-300)


def _quantiles(log_sigmas, likelihood, prior_of, cells, uniforms):
    """Returns (R, K): where each row's distribution in a draw's cell reaches its uniform.

    `prior_of(cells)` is (C, K, G), and `cells` are in rising order.
    """
    used, places = np.unique(cells, return_inverse=True)
    found = np.empty(uniforms.shape)
    # So few distributions at a time that they stay in the processor's cache.
    count = max(1, _CACHED // likelihood.size)
    for start in range(0, len(used), count):
        draws = slice(*np.searchsorted(places, [start, start + count]))
        chosen = places[draws] - start
        prior = prior_of(used[start : start + count])
        rising = _rising(prior * likelihood)
        found[draws] = _look_up(rising, chosen, uniforms[draws])
    step = log_sigmas[1] - log_sigmas[0]
    return log_sigmas[0] + step * (found - 0.5)


def _rising(cumulative):
    """Returns distributions (C, K, G), each moved by its place, as one rising list.

    The argument, their probabilities up to a factor, is overwritten.
    """
    np.cumsum(cumulative, axis=-1, out=cumulative)
    cumulative /= np.maximum(cumulative[..., -1:], 1e-300)
    cumulative += np.arange(cumulative[..., 0].size).reshape(*cumulative.shape[:2], 1)
    return cumulative


def _look_up(rising, places, uniforms):
    """Returns (R, K): the place on the grid at which a distribution reaches its uniform."""
    _, rows, size = rising.shape
    rising = rising.ravel()
    places = places[:, None] * rows + np.arange(rows)
    goals = uniforms + places
    index = np.searchsorted(rising, goals)
    index = np.clip(index, places * size, places * size + size - 1)
    before = np.where(index > places * size, rising[index - 1], places)
    # Within a step of the grid each place is as likely.
    share = (goals - before) / np.maximum(rising[index] - before, 1e-12)
    return index - places * size + np.clip(share, 0, 1)
