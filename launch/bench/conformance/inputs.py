"""Makes the inputs of the probes, their exact results, and the error of a result.

B batch, N queries, M keys, H heads, K = d_k, V = d_v, A = the hidden width of an
additive score. The sizes differ, so that no two axes can be taken for each other.
"""

import numpy as np

from launch.bench.attention import oracle
from launch.bench.attention.oracle import error

B = 2
N = 5
M = 7
H = 3
K = 11
A = 13
CLOSE = 3e-5
"""In parts of the largest exact value: a float32 result is closer."""

DENSE = np.random.default_rng(1).random((B, H, N, M)) < 0.6
# Every query sees a key: rows that see none have probes of their own.
DENSE[..., 0] = True
LENGTHS = np.array([4, M])
HIDDEN = (0, slice(4, None))
"""The keys that LENGTHS hides."""
EMPTY = np.array([0, M])
"""Lengths with which no query of example 0 sees anything."""


def inputs(n=N, m=M, v=K, names=()):
    """Returns q, k and v, and those of the parameters and the bias in `names`.

    All are normal random numbers in float64.
    """
    normal = np.random.default_rng(0).normal
    shapes = {
        "w": (H, K, K),
        "w_q": (H, K, A),
        "w_k": (H, K, A),
        "w_v": (H, A),
        "bias": (B, H, n, m),
    }
    x = {
        "q": normal(size=(B, n, H, K)),
        "k": normal(size=(B, m, H, K)),
        "v": normal(size=(B, m, H, v)),
    }
    for name in names:
        x[name] = normal(size=shapes[name])
    return x


def like(x, seed=2):
    """Returns normal random numbers in the shapes of x."""
    normal = np.random.default_rng(seed).normal
    return {name: normal(size=array.shape) for name, array in x.items()}


def weights(x, v=K):
    """Returns g (B, N, H, V) of a loss Σ g · output."""
    # Not the seed of the inputs: g would be equal to q.
    return np.random.default_rng(3).normal(size=(*x["q"].shape[:3], v))


def visible(x, call):
    """Returns the mask, lengths, causal and window of a call as one array.

    It is boolean, (B, H, N, M).
    """
    n = x["q"].shape[1]
    m = x["k"].shape[1]
    i = np.arange(n)[:, None]
    j = np.arange(m)[None]
    # A copy of the mask, as &= would write into DENSE.
    seen = np.ones((B, H, n, m), bool) if call.mask is None else call.mask.copy()
    if call.lengths is not None:
        seen &= j < call.lengths[:, None, None, None]
    if call.causal is not None:
        seen &= j <= i + call.causal
    if call.window is not None:
        seen &= (i - call.window[0] <= j) & (j <= i + call.window[1])
    return seen


def exact_output(x, call, normaliser):
    """Returns the exact (output, LSE) of a call."""
    return oracle.attention(x, visible(x, call), call.score, normaliser)


def exact_gradient(x, call, normaliser, g, h=None):
    """Returns the exact gradient of Σ g · output + Σ h · LSE."""
    return oracle.attention_gradient(x, visible(x, call), g, h, call.score, normaliser)


def off(actual, expected, tolerance=CLOSE, what="off by"):
    """Returns None where the error is within `tolerance`, else how large it is."""
    largest = error(actual, expected)
    if largest <= tolerance:
        return None
    return "gives NaN" if largest == float("inf") else f"{what} {largest:.1e}"
