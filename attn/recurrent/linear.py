"""Linear attention of one head (Katharopoulos et al. 2020), in O(N) time and memory.

    o_i = Σ_j φ(q_i)·φ(k_j) v_j / Σ_j φ(q_i)·φ(k_j),   φ(x) = elu(x) + 1

N tokens, K = d_k, V = d_v, W = V + 1.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attn.pytrees import at_least_float32
from attn.recurrent.chunks import both_ways
from attn.recurrent.gated import CHUNK, gated_linear


def feature_map(x: Float[Array, "*N K"]) -> Float[Array, "*N K"]:
    """Returns φ(x) = elu(x) + 1, which is above 0."""
    # As written, 1 + expm1(x) would lose the small ones to rounding.
    return jnp.where(x > 0, x + 1, jnp.exp(jnp.minimum(x, 0)))


def with_one(v: Float[Array, "*N V"]) -> Float[Array, "*N W"]:
    """Returns values with one more feature, 1, whose sum is the denominator."""
    return jnp.concatenate([v, jnp.ones_like(v[..., :1])], axis=-1)


def divided(sums: Float[Array, "*N W"]) -> Float[Array, "*N V"]:
    """Returns the sums over their last feature, and 0 where that is 0."""
    total = sums[..., -1:]
    return sums[..., :-1] / jnp.where(total == 0, 1, total)


def linear_attention(
    q: Float[Array, "N K"],
    k: Float[Array, "N K"],
    v: Float[Array, "N V"],
    *,
    causal: bool = True,
    begins: Bool[Array, "N"] | None = None,
    ends: Bool[Array, "N"] | None = None,
    chunk: int = CHUNK,
) -> Float[Array, "N V"]:
    """Computes linear attention over the tokens up to each token, or over all.

    Args:
      q, k, v: queries and keys, before φ, and values.
      causal: whether a token sees none behind it.
      begins, ends: where runs of tokens begin, and where they end; a token sees those of
        its run alone. All are one run unless given.
      chunk: as for `gated_linear`.
    """
    dtype = at_least_float32(jnp.result_type(q, k, v))
    q, k, v = (x.astype(dtype) for x in (q, k, v))
    arrays = feature_map(q), feature_map(k), with_one(v)

    def rule(*arrays, begins, is_backwards):
        # Both directions together see each token once.
        return gated_linear(*arrays, begins=begins, own=not is_backwards, chunk=chunk)

    if causal:
        return divided(rule(*arrays, begins=begins, is_backwards=False))
    return divided(both_ways(rule, arrays, begins, ends))
