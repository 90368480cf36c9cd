"""attention(): one function for every score and mask; picks a kernel and maps it over heads and batch."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from attn.dropout import Drop
from attn.kernels.reference import reference
from attn.kernels.tiled import BLOCK, tiled
from attn.masks import Mask
from attn.scores import Dot, ScaledDot

KERNELS = {"reference": reference, "tiled": tiled}

SMALL = 2**16
"""Scores of a head up to which implementation=None takes the textbook form: 256 KiB in float32."""


def attention(q: Float[ArrayLike, "*B N H K"], k: Float[ArrayLike, "*B M H L"], v: Float[ArrayLike, "*B M H V"], *,
              score=ScaledDot(), mask: Mask | None = None, bias: Float[ArrayLike, "..."] | None = None,
              dropout_rate: float | Float[Array, ""] = 0.0, dropout_key: Array | None = None,
              implementation: str | None = None, return_lse: bool = False, return_weights: bool = False):
    """softmax(score(q, k) + bias) v, over the keys that the mask shows ("Attention Is All You Need", section 3.2).

    B batch (any leading axes, none too), N queries, M keys, H heads, K = L = d_k, V = d_v; with a bilinear or additive
    score queries and keys may differ in width.

    Args:
      q, k, v: queries, keys and values, heads before the last axis.
      score: what is compared, see `attn.scores`; its parameters are one number or have a leading axis H.
      mask: what may be seen, see `attn.masks`. A query that sees nothing has output 0, LSE −inf and gradient 0.
      bias: added to the scores, broadcastable to (*B, H, N, M).
      dropout_rate: weights are dropped with this probability, each element, head and example for itself.
      dropout_key: random key, needed by and only by a dropout rate.
      implementation: "reference" (textbook, N·M memory), "tiled" (O(N + M) memory), or None for
        the first on short inputs and the second on long ones.
      return_lse: also return log Σ exp(score + bias), (*B, N, H), float32 at least.
      return_weights: also return the weights before dropout, (*B, H, N, M), float32 at least.

    Returns:
      The output (*B, N, H, V) in v's dtype; asked for, a tuple of it, the LSE and the weights, in this order.

    Raises:
      ValueError: shapes that do not fit each other, an unknown implementation, dropout without a key.
    """
    _check_shapes(q, k, v, score)
    kernel = _choose(implementation, q.shape[-3] * k.shape[-3], return_weights)
    drop = _drop(dropout_rate, dropout_key, (*q.shape[:-3], q.shape[-2]))
    # What is not asked for is not computed: the compiler drops what a jitted function does not return.
    wanted = (True, return_lse, return_weights)
    found = _mapped(q, k, v, score, mask or Mask(), bias, drop, kernel=kernel, wanted=wanted)
    return found if len(found) > 1 else found[0]


def _choose(implementation, pairs, return_weights):
    """The kernel to use. Raises ValueError for one that is unknown or cannot do what is asked, saying why."""
    if implementation is None:
        return "reference" if return_weights or pairs <= SMALL else "tiled"
    if implementation not in KERNELS:
        raise ValueError(f"unknown implementation {implementation!r}; known: {', '.join(KERNELS)}")
    if implementation == "tiled" and return_weights:
        raise ValueError("implementation='tiled' never has all weights at once; use 'reference' for return_weights")
    return implementation


@functools.partial(jax.jit, static_argnames=("kernel", "wanted"))
def _mapped(q, k, v, score, mask, bias, drop, *, kernel, wanted):
    """The kernel over every head of every example: those of its (output, LSE, weights) that are wanted."""
    *batch, n, h, _ = q.shape
    batch, m = tuple(batch), k.shape[-3]
    heads, examples = math.prod(batch) * h, (*batch, h)

    def flat(x, core):
        return jnp.broadcast_to(x, (*examples, *core)).reshape(heads, *core)

    score = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (h,)) if jnp.ndim(leaf) == 0 else leaf, score)
    q, k, v = (jnp.moveaxis(x, -2, -3).reshape(heads, *x.shape[-3::2]) for x in (q, k, v))
    rows = (jnp.arange(heads) % h, q, k, v, mask.flat(batch, h, n, m), None if bias is None else flat(bias, (n, m)),
            jax.tree.map(lambda x: x.reshape(heads), drop))

    def one_head(row):
        head, q, k, v, mask, bias, drop = row
        own = jax.tree.map(lambda leaf: leaf[head], score)
        return KERNELS[kernel](q, k, v, score=own, mask=mask, bias=bias, drop=drop)

    size = heads if kernel == "reference" else _group(n, m)
    found = jax.vmap(one_head)(rows) if size >= heads else jax.lax.map(one_head, rows, batch_size=size)
    out, *others = (x if x is None else x.reshape(*examples, *x.shape[1:]) for x in found)
    lse, weights = others
    lse = jnp.moveaxis(lse, -1, -2)
    return tuple(itertools.compress((jnp.moveaxis(out, -2, -3), lse, weights), wanted))


def _group(n, m):
    """Heads that the tiled kernel takes at once: on a CPU as many as keep a block of scores near the caches."""
    room = 2**23 if jax.default_backend() == "cpu" else 2**30
    return max(1, room // (4 * min(n, BLOCK) * m))


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


def _check_shapes(q, k, v, score):
    shapes = f"q {q.shape}, k {k.shape}, v {v.shape}"
    if not q.ndim == k.ndim == v.ndim >= 3:
        raise ValueError(f"q, k and v must be (*B, length, H, d), with the same number of axes; got {shapes}")
    if not q.shape[:-3] == k.shape[:-3] == v.shape[:-3] or not q.shape[-2] == k.shape[-2] == v.shape[-2]:
        raise ValueError(f"q, k and v must share the batch axes and the number of heads; got {shapes}")
    if k.shape[-3] != v.shape[-3]:
        raise ValueError(f"each key needs one value: {k.shape[-3]} keys, {v.shape[-3]} values; got {shapes}")
    if q.shape[-1] != k.shape[-1] and isinstance(score, (Dot, ScaledDot)):
        raise ValueError(f"d_k differs between queries and keys: {q.shape[-1]} and {k.shape[-1]}; got {shapes}")
