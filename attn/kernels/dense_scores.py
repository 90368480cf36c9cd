"""All scores of one head, for what needs them side by side.

n queries and m keys.
"""

import jax.numpy as jnp

from attn.precision import at_least_float32


def scores_of_head(q, k, v, *, score, normaliser, mask, taint, bias, drop):
    """Computes score(q, k) + bias of one head, 0 where the mask hides.

    Taint makes NaN of those that see a token of NaN or Inf.
    """
    i = jnp.arange(q.shape[0])
    j = jnp.arange(k.shape[0])
    s = score(q, k)
    s = s.astype(at_least_float32(s.dtype))
    if bias is not None:
        bias = bias.tile(i, j) if hasattr(bias, "tile") else bias
        s = s + bias.astype(s.dtype)
    if taint is not None:
        s = s + taint.tile().astype(s.dtype)
    return jnp.where(mask.tile(i, j), s, 0)
