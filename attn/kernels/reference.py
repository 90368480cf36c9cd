"""The definition of attention, for one head: every other kernel is held to this one.

N queries, M keys, K = d_k, L = the width of a key, V = d_v.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attn.kernels.drop import Drop
from attn.precision import at_least_float32


def reference(
    q: Float[Array, "N K"],
    k: Float[Array, "M L"],
    v: Float[Array, "M V"],
    *,
    score,
    mask: Bool[Array, "N M"],
    bias: Float[Array, "N M"] | None = None,
    drop: Drop | None = None,
):
    """Computes softmax(score(q, k) + bias) v over the keys that `mask` shows.

    Args:
      q, k, v: queries, keys and values; finite, or NaN spreads from a hidden key too.
      score: a function of q and k that gives (N, M) scores.
      mask: True where a query may attend to a key.
      bias: added to the scores.
      drop: dropout of the weights.

    Returns:
      The output (N, V) in v's dtype, the log of the softmax's denominator (N,), and the
      weights (N, M) before and after dropout, the last three in the scores' dtype, or float32 if it
      holds less. A
      query that sees no key has output 0, LSE −inf, weights 0 and gradient 0.
    """
    s = score(q, k)
    s = s.astype(at_least_float32(s.dtype))
    if bias is not None:
        s = s + bias.astype(s.dtype)
    s = jnp.where(mask, s, -jnp.inf)

    # The maximum cancels in the quotient and in the LSE: it has no gradient.
    top = jax.lax.stop_gradient(s.max(-1, keepdims=True, initial=-jnp.inf))
    # In a row of −inf, subtracting the maximum would be −inf − (−inf) = NaN, in the value
    # and in every gradient.
    top = jnp.where(top == -jnp.inf, 0.0, top)
    e = jnp.exp(s - top)
    total = e.sum(-1, keepdims=True)
    # 0 / 1 keeps the weights of such a row at 0, with a gradient that is 0 and not NaN.
    empty = total == 0
    total = jnp.where(empty, 1.0, total)
    weights = e / total
    lse = jnp.where(empty, -jnp.inf, top + jnp.log(total))[:, 0]

    dropped = weights if drop is None else drop(weights)
    # Factors are in v's dtype, fast in bfloat16, and sums in the scores' dtype.
    out = jnp.einsum(
        "nm,mv->nv", dropped.astype(v.dtype), v, preferred_element_type=s.dtype
    )
    return out.astype(v.dtype), lse, weights, dropped
