"""Dropout with cheap random bits.

Drawing bits with JAX's threefry generator takes longer than the matrix products of a small Transformer on a CPU.
Here threefry is asked for two words per call, and a 32-bit mixing function spreads them over the elements.
"""

import dataclasses
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32


def mixed_bits(key: Array, shape: tuple[int, ...]) -> UInt32[Array, "..."]:
    """Uniform 32-bit words: a bijective avalanche function of a counter, entered with two secret words of `key`.

    The two multiply-xorshift rounds are Wellons' "lowbias32" (2018), the second word entering between two passes.
    Good enough for dropout, which is what its tests hold it to; not for cryptography.
    """
    return _mixed(key, _counter(shape))


def _mixed(key, counter):
    words = jax.random.bits(key, (2,), jnp.uint32)
    return _mix(_mix(counter ^ words[0]) + words[1])


def _counter(shape):
    if math.prod(shape) > 2**32:
        raise ValueError(f"dropout over {shape}: more than 2^32 elements would repeat their random bits")
    return jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape)


def _mix(x):
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Drop:
    """Inverted dropout as a value: zero each element with probability `rate`, scale the rest by 1/(1 − rate)."""

    rate: Any  # a number, which may be traced
    key: Any

    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        return self._drop(x, _counter(x.shape))

    def tile(self, x: Float[Array, "n m"], i: Int[Array, "n"], j: Int[Array, "m"],
             columns: int | Int[Array, ""]) -> Float[Array, "n m"]:
        """What a call on a whole (rows, columns) array does to its rows i and columns j, whose cells x holds."""
        row = i.astype(jnp.uint32)[:, None] * jnp.asarray(columns, jnp.uint32)
        return self._drop(x, row + j.astype(jnp.uint32)[None])

    def _drop(self, x, counter):
        # 24 bits: what float32 holds exactly, so that rate·2^24 is the threshold and not near it.
        threshold = jnp.ceil(jnp.asarray(self.rate, jnp.float32) * 2**24).astype(jnp.uint32)
        keep = (_mixed(self.key, counter) >> 8) >= threshold
        return jnp.where(keep, x * (1 / (1 - jnp.asarray(self.rate, x.dtype))), 0)


class Dropout(nn.Module):
    """Drops when, and only when, the caller supplies a random key: `apply(..., rngs={"dropout": key})`.

    `rate` may be a traced value, so that trials with different rates share a compiled program.
    """

    rate: float | Float[Array, ""]

    @nn.compact
    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        if not self.has_rng("dropout"):
            return x
        return Drop(self.rate, self.make_rng("dropout"))(x)
