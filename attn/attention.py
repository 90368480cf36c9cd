"""attention(): one function for every score and mask; picks a kernel and maps it over heads and batch."""

import functools
import itertools

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from attn.dropout import Drop
from attn.kernels.reference import reference
from attn.masks import Mask
from attn.scores import ScaledDot

KERNELS = {"reference": reference}


def attention(q: Float[ArrayLike, "*B N H K"], k: Float[ArrayLike, "*B M H K"], v: Float[ArrayLike, "*B M H V"], *,
              score=ScaledDot(), mask: Mask | None = None, bias: Float[ArrayLike, "..."] | None = None,
              dropout_rate: float | Float[Array, ""] = 0.0, dropout_key: Array | None = None,
              implementation: str | None = None, return_lse: bool = False, return_weights: bool = False):
    """softmax(score(q, k) + bias) v, over the keys that the mask shows ("Attention Is All You Need", section 3.2).

    B batch (any leading axes, none too), N queries, M keys, H heads, K = d_k, V = d_v.

    Args:
      q, k, v: queries, keys and values, heads before the last axis.
      score: what is compared, see `attn.scores`; its parameters are one number or have a leading axis H.
      mask: what may be seen, see `attn.masks`. A query that sees nothing has output 0, LSE −inf and gradient 0.
      bias: added to the scores, broadcastable to (*B, H, N, M).
      dropout_rate: weights are dropped with this probability, each element, head and example for itself.
      dropout_key: random key, needed by and only by a dropout rate.
      implementation: the kernel's name; None picks.
      return_lse: also return log Σ exp(score + bias), (*B, N, H), float32 at least.
      return_weights: also return the weights before dropout, (*B, H, N, M), float32 at least.

    Returns:
      The output (*B, N, H, V) in v's dtype; asked for, a tuple of it, the LSE and the weights, in this order.

    Raises:
      ValueError: shapes that do not fit each other, an unknown implementation, dropout without a key.
    """
    _check_shapes(q, k, v)
    if implementation not in (None, *KERNELS):
        raise ValueError(f"unknown implementation {implementation!r}; known: {', '.join(KERNELS)}")
    drop = _drop(dropout_rate, dropout_key, (*q.shape[:-3], q.shape[-2]))
    # What is not asked for is not computed: the compiler drops what a jitted function does not return.
    wanted = (True, return_lse, return_weights)
    found = _mapped(q, k, v, score, mask or Mask(), bias, drop, kernel=implementation or "reference", wanted=wanted)
    return found if len(found) > 1 else found[0]


@functools.partial(jax.jit, static_argnames=("kernel", "wanted"))
def _mapped(q, k, v, score, mask, bias, drop, *, kernel, wanted):
    """The kernel over every head of every example: those of its (output, LSE, weights) that are wanted."""
    *batch, n, h, _ = q.shape
    shape = (*batch, h, n, k.shape[-3])
    mask = mask.broadcast(tuple(batch), *shape[-3:])
    score = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (h,)) if jnp.ndim(leaf) == 0 else leaf, score)
    if bias is not None:
        bias = jnp.broadcast_to(bias, shape)

    def one_head(q, k, v, score, mask, bias, drop):
        return KERNELS[kernel](q, k, v, score=score, mask=mask, bias=bias, drop=drop)

    over_heads = jax.vmap(one_head, in_axes=(-2, -2, -2, 0, mask.heads(), 0, 0), out_axes=(-2, -1, 0))
    over_all = over_heads
    for _ in batch:
        over_all = jax.vmap(over_all, in_axes=(0, 0, 0, None, 0, 0, 0))
    return tuple(itertools.compress(over_all(q, k, v, score, mask, bias, drop), wanted))


def _drop(rate, key, shape):
    """One Drop per example and head, or None where nothing is to be dropped."""
    if isinstance(rate, (int, float)) and rate == 0:
        if key is not None:
            raise ValueError("dropout_key is given but dropout_rate is 0")
        return None
    if key is None:
        raise ValueError(f"dropout_rate={rate} needs a dropout_key")
    keys = jax.random.split(key, shape)
    return Drop(jnp.broadcast_to(jnp.asarray(rate, jnp.float32), shape), keys)


def _check_shapes(q, k, v):
    shapes = f"q {q.shape}, k {k.shape}, v {v.shape}"
    if not q.ndim == k.ndim == v.ndim >= 3:
        raise ValueError(f"q, k and v must be (*B, length, H, d), with the same number of axes; got {shapes}")
    if not q.shape[:-3] == k.shape[:-3] == v.shape[:-3] or not q.shape[-2] == k.shape[-2] == v.shape[-2]:
        raise ValueError(f"q, k and v must share the batch axes and the number of heads; got {shapes}")
    if k.shape[-3] != v.shape[-3]:
        raise ValueError(f"each key needs one value: {k.shape[-3]} keys, {v.shape[-3]} values; got {shapes}")
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"d_k differs between queries and keys: {q.shape[-1]} and {k.shape[-1]}; got {shapes}")
