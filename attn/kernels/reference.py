"""The definition of attention, for one head: every other kernel is held to this one.

N queries, M keys, K = d_k, L = the width of a key, V = d_v.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attn.functions.softmax import softmax
from attn.kernels.drop import Drop
from attn.precision import at_least_float32, factors


def reference(
    q: Float[Array, "N K"],
    k: Float[Array, "M L"],
    v: Float[Array, "M V"],
    *,
    score,
    normaliser,
    mask: Bool[Array, "N M"],
    bias: Float[Array, "N M"] | None = None,
    drop: Drop | None = None,
):
    """Computes normaliser(score(q, k) + bias) v over the keys that `mask` shows.

    Args:
      q, k, v: queries, keys and values; finite, or NaN spreads from a hidden key too.
      score: a function of q and k that gives (N, M) scores.
      normaliser: a value of `attn.normalisers`, which makes weights of them.
      mask: True where a query may attend to a key.
      bias: added to the scores.
      drop: dropout of the weights.

    Returns:
      The output (N, V) in v's dtype, the log of the denominator (N,), None where the
      normaliser has none, and the weights (N, M) before and after dropout, the last three
      in the scores' dtype, or float32 if it holds less. A query that sees no key has
      output 0, weights 0 and gradient 0, and with softmax LSE −inf.
    """
    s = score(q, k)
    s = s.astype(at_least_float32(s.dtype))
    if bias is not None:
        s = s + bias.astype(s.dtype)
    s = jnp.where(mask, s, -jnp.inf)

    if hasattr(normaliser, "exponents"):
        weights, lse = softmax(*normaliser.exponents(s))
    else:
        weights = normaliser(s)
        lse = None

    dropped = weights if drop is None else drop(weights)
    # Factors are in v's dtype, fast in bfloat16, and sums in the scores' dtype.
    light = dropped.astype(v.dtype)
    out = jnp.einsum("nm,mv->nv", *factors(light, v), preferred_element_type=s.dtype)
    return out.astype(v.dtype), lse, weights, dropped
