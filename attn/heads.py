"""Attention whose heads have to do with each other: differential and talking heads.

B batch (any leading axes), N queries, M keys, H heads, K = d_k, V = d_v; E = 2·K, of both
maps of a head; G = H, the heads after a mixture.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn.arguments import checked
from attn.attention import attention
from attn.kernels.dense_scores import scores_of_head
from attn.map_heads import map_heads
from attn.masks import Mask
from attn.normalisers import Softmax
from attn.precision import at_least_float32, factors
from attn.scores import Dot, ScaledDot


def differential(
    q: Float[Array, "*B N H E"],
    k: Float[Array, "*B M H E"],
    v: Float[Array, "*B M H V"],
    factor: float | Float[Array, ""],
    *,
    dropout_key: Array | None = None,
    return_weights: bool = False,
    **arguments: Any,
):
    """Computes (A_1 − λ A_2) v, λ = factor: Ye et al. 2024, section 2.1, before its norm.

    A_1 is of the first K numbers of queries and keys, A_2 of the other K. Each is one call
    of `attention` with `arguments`, which they share, and with dropout of its own: so it
    has the memory and the contract of that. With λ = 0 it is `attention`.

    Returns:
      The output (*B, N, H, V); asked for, a tuple of it and the weights A_1 − λ A_2,
      (*B, H, N, M), before dropout.
    """
    keys = [None, None]
    if dropout_key is not None:
        keys = list(jax.random.split(dropout_key))
    results = [
        attention(*qk, v, dropout_key=key, return_weights=return_weights, **arguments)
        for *qk, key in zip(halves(q), halves(k), keys, strict=True)
    ]
    return jax.tree.map(lambda one, other: minus(one, factor, other), *results)


def halves(x: Float[Array, "*B E"]) -> list[Float[Array, "*B K"]]:
    """Returns the first K numbers of each vector, and the others."""
    return jnp.split(x, 2, axis=-1)


def minus(a, factor, b):
    """Returns a − factor · b in a's dtype, subtracted in float32 at least."""
    wide = at_least_float32(a.dtype)
    factor = jnp.asarray(factor, wide)
    return (a.astype(wide) - factor * b.astype(wide)).astype(a.dtype)


def talking_heads(
    q: Float[Array, "*B N H K"],
    k: Float[Array, "*B M H L"],
    v: Float[Array, "*B M H V"],
    w_scores: Float[Array, "H G"],
    w_weights: Float[Array, "H G"],
    *,
    score=ScaledDot(),
    normaliser=Softmax(),
    mask: Mask | None = None,
    bias: Any = None,
    dropout_rate: float | Float[Array, ""] = 0.0,
    dropout_key: Array | None = None,
    return_weights: bool = False,
):
    """Computes attention whose heads mix their scores and their weights.

    Shazeer et al. 2020: s'_g = Σ_h s_h w_scores[h, g], a_g = normaliser(s'_g)
    over the keys that the mask shows, a'_g = Σ_h a_h w_weights[h, g], and a'_g v_g. With
    identity matrices it is `attention`. All heads' scores stand side by side: memory is
    H·N·M, whatever the kernel, and there is no `implementation` to choose.

    The other arguments are those of `attention`. The bias joins the scores before they are
    mixed; dropout is of a. What is hidden in a head counts as 0 in the mixture of scores.

    Returns:
      The output (*B, N, H, V) in v's dtype; asked for, a tuple of it and the weights a',
      (*B, H, N, M), after dropout.

    Raises:
      ValueError: fewer heads of keys than of queries, and what `attention` raises.
    """
    q, k, v, mask = checked(q, k, v, score, mask, bias)
    if k.shape[-2] != q.shape[-2]:
        raise ValueError(
            f"talking heads have keys and values of their own: {q.shape[-2]} heads of "
            f"queries, {k.shape[-2]} of keys"
        )
    s = map_heads(
        scores_of_head,
        q,
        k,
        v,
        score=score,
        normaliser=normaliser,
        mask=mask,
        bias=bias,
    )
    s = jnp.einsum("...nhm,hg->...gnm", s, w_scores.astype(s.dtype))
    # Without features all scores are 0, and so the bias is what the softmax is of.
    _, weights = attention(
        *(x[..., :0] for x in (q, k, v)),
        score=Dot(),
        normaliser=normaliser,
        mask=mask,
        bias=s,
        dropout_rate=dropout_rate,
        dropout_key=dropout_key,
        return_weights="after",
    )
    weights = jnp.einsum("...hnm,hg->...gnm", weights, w_weights.astype(weights.dtype))
    out = _weighted(weights, v)
    return (out, weights) if return_weights else out


def _weighted(weights, v):
    """Returns the sums (*B, N, H, V) of values by their weights (*B, H, N, M)."""
    # Of a query that sees NaN the weights are NaN already; from others it is kept.
    finite = jnp.where(jnp.isfinite(v), v, 0)
    out = jnp.einsum(
        "...hnm,...mhv->...nhv",
        *factors(weights.astype(v.dtype), finite),
        preferred_element_type=at_least_float32(v.dtype),
    )
    return out.astype(v.dtype)
