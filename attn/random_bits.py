"""Cheap random bits: a 32-bit mixing function of a counter, for dropout and for sampling.

Drawing bits with JAX's threefry generator takes longer than the matrix products of a
small Transformer on a CPU. Here threefry is asked for two words per call, and the mixing
function spreads them over the elements. Its statistics are good enough for dropout,
which is what the tests hold it to; it is not meant for cryptography.
"""

import math
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt32


def mix(x: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """Applies Wellons' "lowbias32" (2018) to each word.

    It is a bijection of 32-bit words in which each bit of x changes half of the result's.
    """
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def counter(shape: tuple[int, ...]) -> UInt32[Array, "..."]:
    """Numbers the elements of an array of `shape`, row by row.

    Raises:
      ValueError: more than 2^32 elements, which would repeat their random bits.
    """
    size = math.prod(shape)
    if size > 2**32:
        raise ValueError(
            f"dropout over {shape}: more than 2^32 elements would repeat their random bits"
        )
    return jnp.arange(size, dtype=jnp.uint32).reshape(shape)


def random_bits(
    key: Array,
    count: UInt32[Array, "..."],
    stream: int | UInt32[Array, "..."] = 0,
) -> UInt32[Array, "..."]:
    """Returns a uniform 32-bit word for each number in `count`, of each stream.

    Computes mix(mix(count ^ w_0) + w_1) with two secret words w of `key`: the second
    enters between two passes of `mix`, so that streams of related keys differ. Streams of
    one key, broadcastable to `count`, are for more than 2^32 numbers: they change w_1.
    """
    # A cheap key is two words already; only other keys have to draw them.
    if jax.random.key_impl(key) == _CHEAP:
        words = jax.random.key_data(key)
    else:
        words = jax.random.bits(key, (2,), jnp.uint32)
    return _hash(words, count, stream)


def typed_key(key: Array) -> Array:
    """Returns a random key of `jax.random.key`, also of the words of a `PRNGKey`.

    Both give the same random numbers.

    Raises:
      TypeError: what is no random key.
    """
    dtype = getattr(key, "dtype", None)
    if dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return key
    if dtype != jnp.uint32 or jnp.ndim(key) < 1:
        kind = type(key).__name__ if dtype is None else f"{dtype}{list(key.shape)}"
        raise TypeError(f"a random key is needed, as jax.random.key(0), not {kind}")
    return jax.random.wrap_key_data(key)


def keys_of_heads(name: str, key: Array, shape: tuple[int, ...]) -> Array:
    """Returns a key for each example and head, `shape` = (*B, H).

    `key` is one for all, or one for each example (*B).

    Raises:
      TypeError: what is no random key.
      ValueError: keys that are not of the examples.
    """
    keys = typed_key(key)
    if keys.ndim == 0:
        return jax.random.split(keys, shape)
    if keys.shape == shape[:-1]:
        return split_each(keys, shape[-1])
    raise ValueError(
        f"{name} of shape {keys.shape} must be one key, or one for each example, "
        f"{shape[:-1]}"
    )


def split_each(keys: Array, count: int) -> Array:
    """Returns `count` keys (*B, count) made of each of the keys (*B)."""
    split = jax.vmap(lambda key: jax.random.split(key, count))
    return split(keys.reshape(-1)).reshape(*keys.shape, count)


def cheap_key(key: Array) -> Array:
    """Returns a key drawn from `key` that is two words of the mixing function.

    It serves dropout and initial values. Flax folds a number into the key at each place
    of dropout. With threefry that is small work, but compiling it at every place takes
    longer than compiling the model; folding into this key is an exclusive or.
    """
    words = jax.random.bits(key, (2,), jnp.uint32)
    return jax.random.wrap_key_data(words, impl=_CHEAP)


def _hash(words: Array, count: Array, stream: Any = 0) -> Array:
    # mix(0) is 0: the words of stream 0 are those of the key.
    return mix(mix(count ^ words[0]) + (words[1] + mix(jnp.uint32(stream))))


def _fold_in(words: Array, number: Any) -> Array:
    # The factor makes order matter, and a number folded in twice not cancel.
    number = jnp.asarray(number).astype(jnp.uint32)
    return words * jnp.uint32(0x9E3779B1) ^ mix(number[None] ^ _APART)


def _split(words: Array, shape: tuple[int, ...]) -> Array:
    # The complement, because the children of `words` itself by fold_in must be others.
    numbers = counter(shape).reshape(-1)
    return jax.vmap(_fold_in, (None, 0))(~words, numbers).reshape(*shape, 2)


def _bits(words: Array, width: int, shape: tuple[int, ...]) -> Array:
    """Draws words of 8 to 64 bits."""
    if width == 64:
        high, low = _hash(words, counter((2, *shape))).astype(jnp.uint64)
        return high << 32 | low
    bits = _hash(words, counter(shape))
    return (bits >> (32 - width)).astype(f"uint{width}")


# Two numbers, or both words of a key would change in the same way.
_APART = np.array([0x85EBCA6B, 0xC2B2AE35], np.uint32)
_CHEAP = jax.extend.random.define_prng_impl(
    key_shape=(2,),
    random_bits=_bits,
    fold_in=_fold_in,
    name="attn_mix",
    tag="mix",
    seed=lambda seed: _fold_in(jnp.zeros(2, jnp.uint32), seed),
    split=_split,
)
