"""The kernel of a decoder's step: few queries, and keys and values kept from step to step.

Keys have tokens last and heads come first, so that a step copies nothing: with the layout
of `attention()`, XLA on a CPU transposes the whole cache at every step. The model wrote
the cache itself, so NaN is not looked for. H heads of queries share J heads of keys and
values.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attn.cache import begin_at
from attn.normalisers import softmax_parts
from attn.pytrees import at_least_float32


def cached(
    q: Float[Array, "N Q"],
    k: Float[Array, "K M"],
    v: Float[Array, "M V"],
    *,
    score: Any,
    normaliser: Any,
    visible: Bool[Array, "n M"],
    bias: Float[Array, "m M"] | None = None,
    best: bool = False,
    first: Int[Array, ""] | None = None,
) -> Float[Array, "N V"]:
    """Computes normaliser(score(q, k) + bias) v of one head, n and m = N or 1.

    A query that sees nothing gets 0. With `best` the result is the value of the first of
    the best keys. Keys begin at `first`, where that is given, and go on at 0.
    """
    s = score(q, k.T)
    s = s.astype(at_least_float32(s.dtype))
    s = jnp.where(visible, s if bias is None else s + bias, -jnp.inf)
    is_best = best and bool(s.shape[-1])
    if not is_best and hasattr(normaliser, "exponents"):
        _, e, total = softmax_parts(*normaliser.exponents(s))
        # Divided after the product: V divisions a query in place of M.
        return ((e.astype(v.dtype) @ v) / total).astype(v.dtype)
    if first is not None:
        # Weights may depend on the order of keys, be it for those that are equal alone.
        s = begin_at(s, first)
    if is_best:
        of_best = jnp.arange(s.shape[-1])[None] == s.argmax(-1, keepdims=True)
        # All of the weight is the best key's, whatever the normaliser would give it.
        weights = of_best & (s != -jnp.inf)
    else:
        weights = normaliser(s)
    if first is not None:
        weights = begin_at(weights, -first)
    return (weights.astype(v.dtype) @ v).astype(v.dtype)


def over_cache(
    q: Float[Array, "*B N H Q"],
    k: Float[Array, "*B J K M"],
    v: Float[Array, "*B J M V"],
    *,
    score: Any,
    normaliser: Any,
    visible: Bool[Array, "*B n M"],
    bias: Float[Array, "*b H m M"] | None = None,
    best: bool = False,
    first: Int[Array, "*t"] | None = None,
) -> Float[Array, "*B N H V"]:
    """Computes `cached` for every head of every example.

    A bias with axes before H has all axes of the batch; examples share one without. So it
    is with `first`.
    """
    *batch, _, h, _ = q.shape
    h_kv = k.shape[-3]

    def one_head(q, k, v, values, bias: Any, visible, first):
        score, normaliser = values
        arguments = dict(score=score, normaliser=normaliser, bias=bias, best=best)
        return cached(q, k, v, visible=visible, first=first, **arguments)

    def for_each_head(leaf):
        return jnp.broadcast_to(leaf, (h, *jnp.shape(leaf)[1:]))

    def in_groups(leaf, axis=0):
        shape = h_kv, h // h_kv
        return leaf.reshape(*leaf.shape[:axis], *shape, *leaf.shape[axis + 1 :])

    values = jax.tree.map(for_each_head, (score, normaliser))
    values = jax.tree.map(in_groups, values)
    of_bias = None
    if bias is not None:
        of_bias = 0 if bias.ndim > 3 else None
        bias = in_groups(bias, bias.ndim - 3)
    of_first = 0 if first is not None and jnp.ndim(first) else None
    mapped = jax.vmap(one_head, in_axes=(0, None, None, 0, 0, None, None))
    mapped = jax.vmap(mapped, in_axes=(0, 0, 0, 0, 0, None, None))
    for _ in batch:
        # Score and normaliser have no batch axis: all examples share them.
        mapped = jax.vmap(mapped, in_axes=(0, 0, 0, None, of_bias, 0, of_first))
    q = in_groups(jnp.moveaxis(q, -2, -3), len(batch))
    out = mapped(q, k, v, values, bias, visible, first)
    out = out.reshape(*batch, h, *out.shape[-2:])
    return jnp.moveaxis(out, -3, -2)


def as_cached(
    k: Float[Array, "*B M J K"], v: Float[Array, "*B M J V"]
) -> tuple[Array, Array]:
    """Returns keys and values of `attention()`'s layout in the layout of `cached`."""
    return jnp.moveaxis(k, -3, -1), jnp.moveaxis(v, -3, -2)


def from_cached(
    k: Float[Array, "*B J K T"], v: Float[Array, "*B J T V"]
) -> tuple[Array, Array]:
    """Returns keys and values of the layout of `cached` in that of `attention()`."""
    return jnp.moveaxis(k, -1, -3), jnp.moveaxis(v, -2, -3)
