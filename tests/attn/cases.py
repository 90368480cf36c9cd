"""Cases that tests of kernels share: sizes, masks and scores, each beside what a
float64 oracle makes of it.

Sizes are different primes. A mask stands beside what it lets each query see, (B, H, N,
M); a score beside the function of one query and one key that it is in head h.
"""

import jax.numpy as jnp
import numpy as np

from attn import Additive, Bilinear, Dot, Mask, ScaledDot
from tests.attn import oracle
from tests.cases import the_rest_in_ci

B = 2
N = 5
M = 7
H = 3
K = 11
V = 13

LENGTHS = np.array([4, 7])
Q_IDS = np.array([[1, 1, 2, 2, 0], [1, 2, 3, 3, 3]])
K_IDS = np.array([[1, 1, 2, 2, 2, 0, 0], [3, 3, 2, 2, 1, 1, 1]])
DENSE = np.random.default_rng(1).random((B, H, N, M)) < 0.5
ROW = np.arange(N)[:, None]
COLUMN = np.arange(M)[None]

MASKS = {
    "none": (None, np.ones((B, H, N, M), bool)),
    "causal": (Mask.causal(), np.broadcast_to(COLUMN <= ROW, (B, H, N, M))),
    "causal, offset": (
        Mask.causal(offset=M - N),
        np.broadcast_to(COLUMN <= ROW + 2, (B, H, N, M)),
    ),
    "window": (
        Mask.window(1, 2),
        np.broadcast_to((ROW - 1 <= COLUMN) & (COLUMN <= ROW + 2), (B, H, N, M)),
    ),
    "padding": (
        Mask.padding(LENGTHS),
        np.broadcast_to(LENGTHS[:, None, None, None] > COLUMN, (B, H, N, M)),
    ),
    "segments": (
        Mask.segments(Q_IDS, K_IDS),
        np.broadcast_to((Q_IDS[:, :, None] == K_IDS[:, None])[:, None], (B, H, N, M)),
    ),
    "dense": (Mask.dense(DENSE), DENSE),
    "dense, one head and example": (
        Mask.dense(DENSE[:1, :1]),
        np.broadcast_to(DENSE[:1, :1], (B, H, N, M)),
    ),
    "causal & padding & dense": (
        Mask.causal() & Mask.padding(LENGTHS) & Mask.dense(DENSE),
        (COLUMN <= ROW) & (LENGTHS[:, None, None, None] > COLUMN) & DENSE,
    ),
}


def draw_qkv():
    """Returns random queries, keys and values."""
    draw = np.random.default_rng(0).normal
    return [
        jnp.asarray(draw(size=shape), jnp.float32)
        for shape in ((B, N, H, K), (B, M, H, K), (B, M, H, V))
    ]


PARAMETERS = [
    np.random.default_rng(2).normal(size=(H, *shape)).astype(np.float32) * 0.5
    for shape in ((K, 4), (K, 4), (4,), (4,), (K, K), (K, 2), (2, K))
]
W_Q, W_K, W_V, W_B, W, LEFT, RIGHT = PARAMETERS

SCORES = {
    "scaled dot": (ScaledDot(), lambda h: oracle.scaled_dot),
    "dot": (Dot(), lambda h: np.dot),
    "scale=0.3": (ScaledDot(scale=0.3), lambda h: lambda q, k: 0.3 * q @ k),
    "bilinear": (Bilinear(W), lambda h: lambda q, k: q @ W[h] @ k),
    "bilinear, low rank": (
        Bilinear(LEFT, RIGHT),
        lambda h: lambda q, k: q @ LEFT[h] @ RIGHT[h] @ k,
    ),
    "additive": (
        Additive(W_Q, W_K, W_V, W_B),
        lambda h: lambda q, k: W_V[h] @ np.tanh(q @ W_Q[h] + k @ W_K[h] + W_B[h]),
    ),
}

ALL = "causal & padding & dense"
# Every mask and every score; the rest of their pairs is for .ci/run.
CASES = [(mask, "scaled dot") for mask in MASKS]
CASES += [(ALL, score) for score in SCORES if score != "scaled dot"]
# What goes through masks and scores as attention does has the others in .ci/run: a score
# that is no product and one that is, under a mask of three kinds.
FIRST = [(ALL, "additive"), (ALL, "scaled dot")]
SCORES_FIRST = the_rest_in_ci([*FIRST, *(x for x in CASES if x not in FIRST)], first=2)
