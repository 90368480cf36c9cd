"""The kernel of a decoder's step over latents, from which keys and values are made.

Key j of a head is c_j W_K and its value c_j W_V (DeepSeek-AI 2024, "DeepSeek-V2", section
2.1.2), and the cache keeps c_j for all heads. As q · (c W_K) = (q W_Kᵀ) · c and
Σ_j w_j (c_j W_V) = (Σ_j w_j c_j) W_V, neither is made of each c: W_K goes to the queries
and W_V to the output. C = d_c numbers of a latent, H heads of queries, J of W_K and W_V.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn.kernels.cached import as_cached, over_cache


def over_latents(
    q: Float[Array, "*B N H K"],
    c: Float[Array, "*B M C"],
    w_k: Float[Array, "C J K"],
    w_v: Float[Array, "C J V"],
    *,
    score: Any,
    **options: Any,
) -> Float[Array, "*B N H V"]:
    """Computes `over_cache` of the keys c W_K and values c W_V, with the same options.

    A score that is no product with the keys as they are, such as an additive one, has the
    keys and values made of all latents, for this step.
    """
    if not takes_latents(score, q.shape[-1]):
        k, v = (jnp.einsum("...mc,cjk->...mjk", c, w) for w in (w_k, w_v))
        return over_cache(q, *as_cached(k, v), score=score, **options)

    def in_groups(x: Array) -> Array:
        j = w_k.shape[1]
        return x.reshape(*x.shape[:-2], j, x.shape[-2] // j, x.shape[-1])

    def joined(x: Array) -> Array:
        return x.reshape(*x.shape[:-3], -1, x.shape[-1])

    dot, q = _prepared(score, q)
    q = joined(jnp.einsum("...njgk,cjk->...njgc", in_groups(q), w_k))
    # One head of keys and values, which all queries share.
    c = jnp.expand_dims(c, -3)
    out = over_cache(q, c.swapaxes(-1, -2), c, score=dot, **options)
    return joined(jnp.einsum("...njgc,cjv->...njgv", in_groups(out), w_v))


def takes_latents(score: Any, d_k: int) -> bool:
    """Tells whether scores are products of queries, prepared, with keys as they are."""
    one_head = jax.tree.map(lambda x: x if jnp.ndim(x) == 0 else x[0], score)
    k = jnp.zeros((1, d_k))
    return score.is_product and one_head.prepare(k, k)[2] is k


def _prepared(score: Any, q: Array) -> tuple[Any, Array]:
    """Returns `Dot()`, and queries (*B, N, H, K) whose products with keys are the scores."""
    h, d_k = q.shape[-2:]

    def of_heads(leaf):
        return jnp.broadcast_to(leaf, (h, *jnp.shape(leaf)[1:]))

    def one_head(score, q):
        return score.prepare(q, jnp.zeros((1, d_k), q.dtype))[:2]

    mapped = jax.vmap(one_head, (0, -2), -2)
    for _ in q.shape[:-3]:
        mapped = jax.vmap(mapped, (None, 0))
    return mapped(jax.tree.map(of_heads, score), q)


def matrices_of_kept(
    w_k: Float[Array, "C J K"],
    w_v: Float[Array, "C J V"],
    biases: tuple[Float[Array, "J K"], Float[Array, "J V"]] | None,
    r: int,
) -> tuple[Array, Array]:
    """Returns the matrices of keys and values over all that a cache keeps of a token.

    That is its latent; 1, where there are biases, whose row they are; and the r numbers of
    a key that positions have turned, the end of every head's key and in no value.
    """
    if biases is not None:
        w_k, w_v = (
            jnp.concatenate([w, b[None]])
            for w, b in zip((w_k, w_v), biases, strict=True)
        )
    if r:
        w_k = jnp.pad(w_k, ((0, r), (0, 0), (0, r)))
        w_k = w_k.at[-r:, :, -r:].set(jnp.eye(r, dtype=w_k.dtype)[:, None])
        w_v = jnp.pad(w_v, ((0, r), (0, 0), (0, 0)))
    return w_k, w_v
