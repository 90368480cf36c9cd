"""Matrices in 8 bits a number: whole numbers, and a scale for each 64 of them.

small = quantise(params)
tokens = jax.jit(lambda small: greedy(model, {"params": dequantise(small)}, ...))(small)

x ≈ scale · n with n = −127 … 127 and scale = max |x| / 127 of its block, so x is off by half a
scale at most. Blocks are those of Dettmers et al. 2022, "8-bit Optimizers via Block-wise
Quantization"; steps are all alike here. It takes 8.5 bits a number.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from attn.precision import at_least_float32
from attn.pytrees import pytree

BLOCK = 64
"""Numbers that share a scale."""
LARGEST = 127
SMALLEST_ARRAY = 1024
"""Fewer numbers, as those of a score or a bias, are left as they are: they weigh little."""

_STATIC = {"static": True}


@pytree
class Int8:
    """Holds an array as B blocks of its numbers, in order, the last filled up with zeros."""

    numbers: Any  # Int8[Array, "B 64"]
    scales: Any  # Float[Array, "B 1"]
    shape: tuple[int, ...] = dataclasses.field(metadata=_STATIC)
    dtype: jnp.dtype = dataclasses.field(metadata=_STATIC)


def quantise(tree):
    """Returns `tree` with its matrices as `Int8`.

    These are arrays of two axes or more and of 1,024 floating-point numbers or more; other
    leaves stay. A block that has NaN or Inf becomes NaN.
    """
    return jax.tree.map(lambda x: _quantised(x) if _is_matrix(x) else x, tree)


def dequantise(tree):
    """Returns `tree` with each `Int8` as an array of its former shape and dtype again."""
    return jax.tree.map(
        lambda x: _array(x) if isinstance(x, Int8) else x,
        tree,
        is_leaf=lambda x: isinstance(x, Int8),
    )


def _is_matrix(x):
    floating = jnp.issubdtype(jnp.result_type(x), jnp.floating)
    return floating and jnp.ndim(x) >= 2 and jnp.size(x) >= SMALLEST_ARRAY


def _quantised(x):
    x = jnp.asarray(x)
    flat = x.astype(at_least_float32(x.dtype)).reshape(-1)
    blocks = jnp.pad(flat, (0, -flat.size % BLOCK)).reshape(-1, BLOCK)
    scales = jnp.abs(blocks).max(-1, keepdims=True) / LARGEST
    # A block of zeros has the scale 0, by which nothing can be divided.
    numbers = jnp.round(blocks / jnp.where(scales > 0, scales, 1))
    return Int8(numbers.astype(jnp.int8), scales, x.shape, x.dtype)


def _array(x):
    blocks = x.numbers.astype(x.scales.dtype) * x.scales
    size = math.prod(x.shape)
    return blocks.reshape(-1)[:size].reshape(x.shape).astype(x.dtype)
