"""Which of the scores of each query are its greatest."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attn.pytrees import at_least_float32


def is_in_top(s: Float[Array, "*n m"], k: int) -> Bool[Array, "*n m"]:
    """Tells which k scores of each row are the greatest, of equal ones the first.

    NaN counts as the greatest, so that it is not lost.
    """
    keys = _in_order(jax.lax.stop_gradient(s))
    least = _greatest(keys, min(k, s.shape[-1]))
    above = keys > least
    equal = keys == least
    room = k - above.sum(-1, keepdims=True)
    return above | (equal & (jnp.cumsum(equal, -1) <= room))


def _in_order(s: Float[Array, "*n m"]) -> Int[Array, "*n m"]:
    """Returns whole numbers in the order of the scores."""
    s = s.astype(at_least_float32(s.dtype))
    whole = {4: jnp.int32, 8: jnp.int64}[s.dtype.itemsize]
    # 0 and −0 are equal.
    bits = jax.lax.bitcast_convert_type(jnp.where(s == 0, 0, s), whole)
    most = jnp.iinfo(whole).max
    # Of numbers below 0 the others' bits are in the opposite order.
    return jnp.where(jnp.isnan(s), most, jnp.where(bits < 0, bits ^ most, bits))


def _greatest(keys: Int[Array, "*n m"], k: int) -> Int[Array, "*n 1"]:
    """Returns the k-th greatest of each row, found bit by bit: no device sorts as fast."""
    shape = (*keys.shape[:-1], 1)
    ends = jnp.iinfo(keys.dtype)

    def halve(_, between):
        low, high = between
        # Their mean, rounded up, without an overflow.
        middle = (low | high) - ((low ^ high) >> 1)
        is_enough = (keys >= middle).sum(-1, keepdims=True) >= k
        return jnp.where(is_enough, middle, low), jnp.where(is_enough, high, middle - 1)

    between = jnp.full(shape, ends.min), jnp.full(shape, ends.max)
    return jax.lax.fori_loop(0, ends.bits, halve, between)[0]
