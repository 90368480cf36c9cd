"""Learns the spread of every row of a table over seeds from all of its rows.

Row i has an estimated variance s²_i over seeds with ν_i degrees of freedom. Its true standard
deviation σ_i is like the other rows', within a factor:

    ν_i s²_i / σ²_i ~ χ²(ν_i),   log σ_i ~ Normal(m, τ²),   m flat,   τ ~ half-normal(0.6).

With few seeds a row's spread so follows the table's, with many its own. τ is learned too, and
all of it stays uncertain: what is drawn here are standard deviations that fit the table.
Smyth (2004, "Linear models and empirical Bayes methods for assessing differential expression
in microarray experiments") shrinks variances so, with fixed m and τ, which for the few rows
of a table claims more than is known.

K rows, R draws.
"""

import numpy as np
from scipy import special

USUAL_TAU = 0.6
"""The scale of the prior of τ: spreads that differ by a factor of 1.8 are usual, 3.3 are rare."""

_MS = 64
_TAUS = 8
_SIGMAS = 128


def draw_spreads(
    variances: np.ndarray,
    freedom: np.ndarray,
    uniforms: np.ndarray,
    rng: np.random.Generator,
    usual_tau: float = USUAL_TAU,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws standard deviations of the rows from their posterior.

    `variances` (K,) are estimates with `freedom` (K,) degrees of freedom; a row of 0 degrees
    is drawn from what the others say. `uniforms` (R, K) choose each row's standard deviation
    within its distribution, so that a caller can make draws go together; `rng` draws m and τ.
    Returns (R, K) standard deviations, and the m and τ (R,) of each draw.

    Raises ValueError where no row has both a variance above 0 and degrees of freedom.
    """
    variances = np.asarray(variances, float)
    freedom = np.asarray(freedom, float)
    informative = (freedom > 0) & (variances > 0)
    if not informative.any():
        raise ValueError("no row has a spread over seeds to learn from")
    total = freedom[informative].sum()
    pooled = (freedom * variances)[informative].sum() / total
    # A row whose runs agree by luck has a small variance, not none.
    variances = np.maximum(variances, 1e-4 * pooled)
    log_sigmas = _centre(variances, freedom) + _reach(freedom, usual_tau) * np.linspace(
        -1, 1, _SIGMAS
    )
    ms = _centre(variances, freedom) + _reach_of_m(freedom) * np.linspace(-1, 1, _MS)
    # Quantiles of the prior, so that each has the same weight.
    taus = usual_tau * special.ndtri(0.5 + (np.arange(_TAUS) + 0.5) / (2 * _TAUS))
    likelihood = _likelihood(log_sigmas, variances, freedom)
    log_weights, cumulative = _posterior(
        log_sigmas, likelihood, ms, np.maximum(taus, 0.01)
    )
    weights = np.exp(log_weights - log_weights.max()).ravel()
    cells = rng.choice(weights.size, len(uniforms), p=weights / weights.sum())
    m = ms[cells // _TAUS]
    tau = taus[cells % _TAUS]
    sigmas = np.exp(_quantiles(log_sigmas, cumulative, cells, uniforms))
    return sigmas, m, tau


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
    return _reach_of_m(freedom) + 4 * usual_tau + 0.5


def _likelihood(log_sigmas, variances, freedom):
    """Returns log p(s²_i | σ) (K, G) up to what depends on s²_i alone."""
    ratios = variances[:, None] * np.exp(-2 * log_sigmas)
    return freedom[:, None] * (-log_sigmas - ratios / 2)


def _posterior(log_sigmas, likelihood, ms, taus):
    """Returns log weights (M, T), and each row's cumulative distribution (M, T, K, G)."""
    scaled = np.exp(likelihood - likelihood.max(-1, keepdims=True))
    distances = (log_sigmas - ms[:, None, None]) / taus[:, None]
    prior = np.exp(-0.5 * distances**2)
    prior /= np.maximum(prior.sum(-1, keepdims=True), 1e-300)
    joint = prior[:, :, None] * scaled
    cumulative = np.cumsum(joint, -1)
    evidence = np.maximum(cumulative[..., -1], 1e-300)
    log_weights = np.log(evidence).sum(-1)
    return log_weights, cumulative / evidence[..., None]


def _quantiles(log_sigmas, cumulative, cells, uniforms):
    """Returns (R, K): where each row's distribution in a draw's cell reaches its uniform."""
    rows = uniforms.shape[1]
    flat = cumulative.reshape(-1, rows, len(log_sigmas))
    used, places = np.unique(cells, return_inverse=True)
    flat = flat[used]
    # Each distribution is moved by its place, so that one rising list holds all of them.
    starts = np.arange(flat.shape[0] * rows).reshape(flat.shape[0], rows)
    rising = (flat + starts[..., None]).ravel()
    start = starts[places]
    wanted = np.searchsorted(rising, uniforms + start)
    wanted = np.minimum(wanted, rising.size - 1)
    index = np.clip(wanted - start * len(log_sigmas), 0, len(log_sigmas) - 1)
    above = rising[start * len(log_sigmas) + index] - start
    below = np.where(
        index > 0, rising[start * len(log_sigmas) + index - 1] - start, 0.0
    )
    step = log_sigmas[1] - log_sigmas[0]
    # Within a step of the grid each place is as likely.
    share = (uniforms - below) / np.maximum(above - below, 1e-12)
    return log_sigmas[index] + step * (np.clip(share, 0, 1) - 0.5)
