"""Describes one call of attention, in terms that every library can be asked for.

An adapter has a function `attend(x, call)` that asks its library for exactly what
`call` says and returns (output, LSE or None). `x` is a dictionary of the arrays that
have gradients: q (B, N, H, K), k (B, M, H, K), v (B, M, H, V); the parameters of the
score, w (H, K, K) of "bilinear" or w_q, w_k (H, K, A) and w_v (H, A) of "additive";
and bias (B, H, N, M) where there is one.
"""

import dataclasses

import numpy as np


# Compared by identity, as its mask is an array: it is a key of caches.
@dataclasses.dataclass(frozen=True, eq=False)
class Call:
    """Holds what is asked of attention, beside the arrays."""

    score: str = "scaled_dot"
    """Or "bilinear", qᵀ W k, or "additive", vᵀ tanh(W_q q + W_k k)."""
    mask: np.ndarray | None = None
    """Boolean, broadcastable to (B, H, N, M), True = may attend."""
    lengths: np.ndarray | None = None
    """(B,): an example's keys are real below its length."""
    causal: int | None = None
    """Query i sees key j when j ≤ i + causal."""
    window: tuple[int, int] | None = None
    """(left, right): query i sees key j when i − left ≤ j ≤ i + right."""
    rate: float = 0.0
    """Dropout of the weights, drawn from `seed`. Without a seed, the library does what
    it does when it gets none."""
    seed: int | None = None
    lse: bool = False
    """Whether the logarithm of the sum of exponentials is returned too."""
