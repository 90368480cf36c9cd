"""Dropout with cheap random bits.

Drawing bits with JAX's threefry generator takes longer than the matrix products of a small Transformer on a CPU.
Here threefry is asked for two words per call, and a 32-bit mixing function spreads them over the elements.
"""

import dataclasses
import math
from typing import Any

import flax.linen as nn
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32


def mixed_bits(key: Array, shape: tuple[int, ...]) -> UInt32[Array, "..."]:
    """Uniform 32-bit words: a bijective avalanche function of a counter, entered with two secret words of `key`.

    The second word enters between two passes of `mix`.
    Good enough for dropout, which is what its tests hold it to; not for cryptography.
    """
    return _mixed(key, _counter(shape))


def _mixed(key, counter):
    cheap = jax.random.key_impl(key) == _CHEAP
    return _of_words(
        jax.random.key_data(key) if cheap else jax.random.bits(key, (2,), jnp.uint32),
        counter,
    )


def _counter(shape):
    if math.prod(shape) > 2**32:
        raise ValueError(
            f"dropout over {shape}: more than 2^32 elements would repeat their random bits"
        )
    return jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape)


def mix(x: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """Wellons' "lowbias32" (2018): a bijection of 32-bit words in which each bit of x changes half of the result's."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def cheap_key(key: Array) -> Array:
    """A key drawn from `key` that is two words of the mixing function, for dropout and initial values.

    Flax folds a number into the key at each place of dropout. With threefry that is small work, but to compile it at
    every place takes longer than to compile the model; folding into this key is an exclusive or.
    """
    return jax.random.wrap_key_data(jax.random.bits(key, (2,), jnp.uint32), impl=_CHEAP)


def _of_words(words, counter):
    return mix(mix(counter ^ words[0]) + words[1])


def _folded(words, number):
    """The factor makes order matter, and a number folded in twice not cancel."""
    return words * jnp.uint32(0x9E3779B1) ^ mix(
        jnp.asarray(number).astype(jnp.uint32)[None] ^ _APART
    )


def _split(words, shape):
    # Not of `words` itself: its children by `fold_in` are others.
    return jax.vmap(_folded, (None, 0))(~words, _counter(shape).reshape(-1)).reshape(
        *shape, 2
    )


def _bits(words, width, shape):
    if width != 32:
        raise ValueError(f"a cheap key has words of 32 bits, not {width}")
    return _of_words(words, _counter(shape))


_APART = np.array([0x85EBCA6B, 0xC2B2AE35], np.uint32)
_CHEAP = jax.extend.random.define_prng_impl(
    key_shape=(2,),
    random_bits=_bits,
    fold_in=_folded,
    name="attn_mix",
    tag="mix",
    seed=lambda seed: _folded(jnp.zeros(2, jnp.uint32), seed),
    split=_split,
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Drop:
    """Inverted dropout as a value: zero each element with probability `rate`, scale the rest by 1/(1 − rate)."""

    rate: Any  # a number, which may be traced
    key: Any

    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        return self._drop(x, _counter(x.shape))

    def tile(
        self,
        x: Float[Array, "n m"],
        i: Int[Array, "n"],
        j: Int[Array, "m"],
        columns: int | Int[Array, ""],
    ) -> Float[Array, "n m"]:
        """What a call on a whole (rows, columns) array does to its rows i and columns j, whose cells x holds."""
        row = i.astype(jnp.uint32)[:, None] * jnp.asarray(columns, jnp.uint32)
        return self._drop(x, row + j.astype(jnp.uint32)[None])

    def _drop(self, x, counter):
        # 24 bits: what float32 holds exactly, so that rate·2^24 is the threshold and not near it.
        threshold = jnp.ceil(jnp.asarray(self.rate, jnp.float32) * 2**24).astype(
            jnp.uint32
        )
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
