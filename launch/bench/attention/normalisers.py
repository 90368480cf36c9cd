"""Computes weights under each normaliser in float64 numpy, with its initial parameters.

A function of NORMALISERS takes the scores (n, m) of one head, −inf where a key is hidden, and
returns (weights (n, m), back, LSE (n, 1) or None). `back` takes the gradient of the weights,
and of the LSE, to that of the scores. A query that sees nothing has weights 0.

Complex scores go through all of it, for derivatives: see `oracle`.
"""

import functools

import numpy as np

BISECTIONS = 60
"""Each halves an interval of length 1: the last is below the rounding of float64."""


def _seen(s):
    """Returns which scores are seen, those with 0 for the others, and their number at least 1."""
    # NaN is seen, and shows. The imaginary part of a hidden score may be any.
    seen = s.real != -np.inf
    return seen, np.where(seen, s, 0), np.maximum(seen.sum(-1, keepdims=True), 1)


def _exponential(s, rest=-np.inf, factor=1.0):
    """Takes softmax of factor · s, with `rest` among the exponents."""
    seen, s, _ = _seen(s)
    scaled = factor * s
    # Of the real part, as complex numbers have no order; any shift gives the same.
    top = np.where(seen, scaled.real, -np.inf).max(-1, keepdims=True, initial=rest)
    # −inf less −inf, in a row that sees nothing, would be NaN.
    top = np.where(np.isfinite(top), top, 0.0)
    # The inner one too: exp of what is hidden may be too large.
    e = np.where(seen, np.exp(np.where(seen, scaled - top, 0)), 0)
    total = e.sum(-1, keepdims=True) + np.exp(rest - top)
    empty = total == 0
    # An empty row is divided by 1, so that it gets weights 0 and no warning.
    divisor = np.where(empty, 1.0, total)
    w = e / divisor

    def back(g, h=0.0):
        # The derivative of the LSE by the scores is factor · w as well, so h joins in.
        return factor * w * (g - (w * g).sum(-1, keepdims=True) + h)

    return w, back, np.where(empty, -np.inf, np.log(divisor) + top)


def _scalable(s):
    _, _, count = _seen(s)
    return _exponential(s, factor=0.43 * np.log(count))


def _sigmoid(s):
    seen, s, count = _seen(s)
    w = np.where(seen, 1 / (1 + count * np.exp(-s)), 0)
    return w, lambda g, h=0.0: w * (1 - w) * g, None


def _relu(s):
    _, s, count = _seen(s)
    positive = s.real > 0
    return np.where(positive, s, 0) / count, lambda g, h=0.0: positive * g / count, None


def _entmax(s, alpha):
    seen, s, _ = _seen(s)
    scaled = np.where(seen, (alpha - 1) * s.real, -np.inf)
    high = scaled.max(-1, keepdims=True, initial=-np.inf)
    high = np.where(np.isfinite(high), high, 0.0)
    low = high - 1
    for _ in range(BISECTIONS):
        tau = (low + high) / 2
        many = (_power(scaled - tau, alpha).sum(-1, keepdims=True)) > 1
        low, high = np.where(many, tau, low), np.where(many, high, tau)
    w = _power(scaled - low, alpha)

    def back(g, h=0.0):
        slope = np.where(w.real > 0, w ** (2 - alpha), 0)
        total = slope.sum(-1, keepdims=True)
        mean = (slope * g).sum(-1, keepdims=True) / np.where(total == 0, 1, total)
        return slope * (g - mean)

    if np.iscomplexobj(s):
        # The matrix of derivatives is symmetric, so that it is also that of `back`.
        w = w + 1j * back(s.imag)
    return w, back, None


def _stick_breaking(s):
    seen, s, _ = _seen(s)
    share = np.where(seen, 1 / (1 + np.exp(-s)), 0)
    # The cumulative product of what is left, from the last key, without the key's own.
    left = np.cumprod((1 - share)[:, ::-1], axis=-1)[:, ::-1]
    w = share * np.concatenate([left[:, 1:], np.ones_like(left[:, :1])], axis=-1)

    def back(g, h=0.0):
        through_later = np.cumsum(w * g, axis=-1) - w * g
        return w * (1 - share) * g - share * through_later

    return w, back, None


def _power(u, alpha):
    return np.maximum(u, 0) ** (1 / (alpha - 1))


NORMALISERS = {
    "softmax": _exponential,
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
