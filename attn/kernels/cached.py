"""The kernel of a decoder's step: few queries, keys and values kept from step to step as products want them.

Keys have tokens last and heads come first, so that a step copies nothing: laid out as `attention()` has them, XLA on a
CPU transposes the whole cache at every step. What is kept was written by the model itself; NaN is not looked for.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def cached(
    q: Float[Array, "N K"],
    k: Float[Array, "K M"],
    v: Float[Array, "M V"],
    *,
    score,
    visible: Bool[Array, "n M"],
    bias: Float[Array, "m M"] | None = None,
    best: bool = False,
) -> Float[Array, "N V"]:
    """softmax(score(q, k) + bias) v of one head, n and m = N or 1; a query that sees nothing gets 0. With `best` the
    value of the first of the best keys."""
    s = score(q, k.T)
    s = jnp.where(visible, s if bias is None else s + bias, -jnp.inf)
    top = s.max(-1, keepdims=True)
    if best:
        s = jnp.where(
            jnp.arange(s.shape[-1])[None] == s.argmax(-1, keepdims=True), s, -jnp.inf
        )
    e = jnp.exp(s - jnp.where(jnp.isfinite(top), top, 0))
    return (
        (e.astype(v.dtype) @ v)
        / jnp.maximum(e.sum(-1, keepdims=True), jnp.finfo(e.dtype).tiny)
    ).astype(v.dtype)


def over_cache(
    q: Float[Array, "*B N H K"],
    k: Float[Array, "*B H K M"],
    v: Float[Array, "*B H M V"],
    *,
    score,
    visible: Bool[Array, "*B n M"],
    bias: Float[Array, "H m M"] | None = None,
    best: bool = False,
) -> Float[Array, "*B N H V"]:
    """`cached` for every head of every example."""
    *batch, _, h, _ = q.shape

    def one_head(q, k, v, score, bias, visible):
        return cached(q, k, v, score=score, visible=visible, bias=bias, best=best)

    score = jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (h, *jnp.shape(leaf)[1:])), score
    )
    over_all = jax.vmap(one_head, in_axes=(0, 0, 0, 0, 0, None))
    for _ in batch:
        over_all = jax.vmap(over_all, in_axes=(0, 0, 0, None, None, 0))
    return jnp.moveaxis(
        over_all(jnp.moveaxis(q, -2, -3), k, v, score, bias, visible), -3, -2
    )


def as_cached(k: Float[Array, "*B M H K"], v: Float[Array, "*B M H V"]):
    """Keys and values as `attention()` has them, laid out as `cached` wants them."""
    return jnp.moveaxis(k, -3, -1), jnp.moveaxis(v, -3, -2)
