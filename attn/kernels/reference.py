"""The definition of attention, for one head: every other kernel is held to this one.

N queries, M keys, K = d_k, V = d_v.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn.dropout import Drop
from attn.kernels.tile import Tile


def reference(
    q: Float[Array, "N K"],
    k: Float[Array, "M L"],
    v: Float[Array, "M V"],
    *,
    score,
    mask,
    taint,
    bias=None,
    drop: Drop | None = None,
):
    """softmax(score(q, k) + bias) v over the keys that `mask` shows, textbook form.

    Returns the output (N, V) in v's dtype, the log of the softmax's denominator (N,) and the weights (N, M) before and
    after dropout, in float32 at least. A query that sees no key has output 0, LSE −inf, weights 0 and gradient 0.
    """
    (n, _), (m, _) = q.shape, k.shape
    tile = Tile(
        score, q, k.T, v.T, taint, bias, mask, drop, jnp.arange(n), jnp.arange(m), m
    )
    s = tile.scores()
    top = jax.lax.stop_gradient(s.max(-1, keepdims=True))
    # A row of −inf: subtracting its maximum would be −inf − (−inf) = NaN, in the value and in every gradient.
    top = jnp.where(top == -jnp.inf, 0.0, top)
    e = jnp.exp(s - top)
    total = e.sum(-1, keepdims=True)
    empty = total == 0
    weights = e / jnp.where(empty, 1.0, total)
    lse = jnp.where(empty, -jnp.inf, top + jnp.log(jnp.where(empty, 1.0, total)))[:, 0]
    dropped = tile.dropped(weights)
    out = jnp.einsum(
        "nm,mv->nv", dropped.astype(v.dtype), v, preferred_element_type=weights.dtype
    )
    return out.astype(v.dtype), lse, weights, dropped
