"""What the probes are made of: inputs, exact results, and how far off a result is.

B batch, N queries, M keys, H heads, K = d_k, V = d_v, A = an additive score's hidden width.
"""

import numpy as np

from launch.bench import exact
from launch.bench.exact import error

B, N, M, H, K, A = 2, 5, 7, 3, 11, 13
CLOSE = 3e-5
"""In parts of the largest exact value: of float32's class."""

DENSE = np.random.default_rng(1).random((B, H, N, M)) < 0.6
DENSE[..., 0] = True
LENGTHS = np.array([4, M])
HIDDEN = (0, slice(4, None))
"""The keys that LENGTHS hides."""
EMPTY = np.array([0, M])
"""Lengths with which no query of example 0 sees anything."""


def inputs(n=N, m=M, v=K, names=()):
    """q, k, v, and those of the scores' parameters and the bias that `names` has; float64."""
    draw = np.random.default_rng(0).normal
    shapes = dict(w=(H, K, K), w_q=(H, K, A), w_k=(H, K, A), w_v=(H, A), bias=(B, H, n, m))
    x = {"q": draw(size=(B, n, H, K)), "k": draw(size=(B, m, H, K)), "v": draw(size=(B, m, H, v))}
    return x | {name: draw(size=shapes[name]) for name in names}


def like(x, seed=2):
    """Normal random numbers in x's shapes."""
    draw = np.random.default_rng(seed).normal
    return {name: draw(size=array.shape) for name, array in x.items()}


def weights(x, v=K):
    """g (B, N, H, V) of a loss Σ g · output."""
    return np.random.default_rng(3).normal(size=(*x["q"].shape[:3], v))


def visible(x, call):
    """call's mask, lengths, causal and window together, as an array (B, H, N, M)."""
    n, m = x["q"].shape[1], x["k"].shape[1]
    i, j = np.arange(n)[:, None], np.arange(m)[None]
    seen = np.ones((B, H, n, m), bool) if call.mask is None else call.mask.copy()
    if call.lengths is not None:
        seen &= j < call.lengths[:, None, None, None]
    if call.causal is not None:
        seen &= j <= i + call.causal
    if call.window is not None:
        seen &= (i - call.window[0] <= j) & (j <= i + call.window[1])
    return seen


def exact_output(x, call):
    return exact.attention(x, visible(x, call), call.score)


def exact_gradient(x, call, g, h=None):
    return exact.attention_gradient(x, visible(x, call), g, h, call.score)


def off(found, wanted, most=CLOSE, what="off by"):
    """None where found is wanted, to `most`; else how far it is off."""
    far = error(found, wanted)
    return None if far <= most else "gives NaN" if far == float("inf") else f"{what} {far:.1e}"
