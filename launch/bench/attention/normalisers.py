"""Computes attention under each normaliser in float64 numpy, with its initial parameters.

s are the scores (n, M) of one head, −inf where a key is hidden; every query sees one key
at least. A function of them returns the weights, and a function from their gradient to
that of s.
"""

import functools

import numpy as np

from launch.bench.attention import oracle

BISECTIONS = 60
"""Each halves an interval of length 1: the last is below the rounding of float64."""


def head(x, visible, normaliser: str, score: str):
    """Returns the output (n, V) of one head, as `oracle.head` with softmax does."""
    return _weights(x, visible, normaliser, score)[0] @ x["v"]


def gradient(x, visible, g, normaliser: str, score: str) -> dict[str, np.ndarray]:
    """Returns the gradient of Σ g · output to everything in `x`."""
    weights, back = _weights(x, visible, normaliser, score)
    g_s = back(g @ x["v"].T)
    return {"v": weights.T @ g, **oracle.SCORES[score](x)[1](g_s)}


def _weights(x, visible, normaliser, score):
    s = np.where(visible, oracle.SCORES[score](x)[0], -np.inf)
    return NORMALISERS[normaliser](s)


def _count(s):
    return np.isfinite(s).sum(-1, keepdims=True)


def _exponential(s, rest=-np.inf, factor=1.0):
    """Takes softmax of factor · s, with `rest` among the exponents."""
    seen = np.isfinite(s)
    # The factor may be 0, and 0 times −inf is NaN.
    scaled = np.where(seen, factor * np.where(seen, s, 0), -np.inf)
    top = np.maximum(scaled.max(-1, keepdims=True), rest)
    e = np.exp(scaled - top)
    w = e / (e.sum(-1, keepdims=True) + np.exp(rest - top))

    def back(g):
        return factor * w * (g - (w * g).sum(-1, keepdims=True))

    return w, back


def _scalable(s):
    return _exponential(s, factor=0.43 * np.log(_count(s)))


def _sigmoid(s):
    w = 1 / (1 + _count(s) * np.exp(-s))
    return w, lambda g: w * (1 - w) * g


def _relu(s):
    count = _count(s)
    return np.maximum(s, 0) / count, lambda g: (s > 0) * g / count


def _entmax(s, alpha):
    s = (alpha - 1) * s
    high = s.max(-1, keepdims=True)
    low = high - 1
    for _ in range(BISECTIONS):
        tau = (low + high) / 2
        many = (_power(s - tau, alpha).sum(-1, keepdims=True)) > 1
        low, high = np.where(many, tau, low), np.where(many, high, tau)
    w = _power(s - low, alpha)
    slope = np.where(w > 0, w ** (2 - alpha), 0)

    def back(g):
        mean = (slope * g).sum(-1, keepdims=True) / slope.sum(-1, keepdims=True)
        return slope * (g - mean)

    return w, back


def _stick_breaking(s):
    share = np.where(np.isfinite(s), 1 / (1 + np.exp(-s)), 0)
    # The cumulative product of what is left, from the last key, without the key's own.
    left = np.cumprod((1 - share)[:, ::-1], axis=-1)[:, ::-1]
    w = share * np.concatenate([left[:, 1:], np.ones_like(left[:, :1])], axis=-1)

    def back(g):
        through_later = np.cumsum(w * g, axis=-1) - w * g
        return w * (1 - share) * g - share * through_later

    return w, back


def _power(u, alpha):
    return np.maximum(u, 0) ** (1 / (alpha - 1))


NORMALISERS = {
    "off_by_one": functools.partial(_exponential, rest=0.0),
    "sink": functools.partial(_exponential, rest=0.0),
    "scalable_softmax": _scalable,
    "sigmoid": _sigmoid,
    "relu": _relu,
    "sparsemax": functools.partial(_entmax, alpha=2.0),
    "entmax": functools.partial(_entmax, alpha=1.5),
    "adaptive_entmax": functools.partial(_entmax, alpha=1.5),
    "asentmax": functools.partial(_entmax, alpha=1.5),
    "stick_breaking": _stick_breaking,
}
