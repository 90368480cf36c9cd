"""Dropout of attention weights and activations as a value that kernels can apply in tiles."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn.random_bits import counter, random_bits


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Drop:
    """Zeroes each element with probability `rate` and scales the rest by 1/(1 − rate)."""

    rate: Any  # a number, which may be traced
    key: Any

    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        return self._drop(x, counter(x.shape))

    def tile(
        self,
        x: Float[Array, "n m"],
        i: Int[Array, "n"],
        j: Int[Array, "m"],
        columns: int | Int[Array, ""],
    ) -> Float[Array, "n m"]:
        """Does to x what a call on the whole does to its rows i and columns j.

        The whole has so many `columns`; x holds its cells (i, j).
        """
        # In uint32, because the number of a cell passes 2^31 for long inputs.
        row = i.astype(jnp.uint32)[:, None] * jnp.asarray(columns, jnp.uint32)
        return self._drop(x, row + j.astype(jnp.uint32)[None])

    def _drop(self, x, count):
        # 24 bits: what float32 holds exactly, so that rate·2^24 is the threshold and not
        # near it.
        rate = jnp.asarray(self.rate, jnp.float32)
        threshold = jnp.ceil(rate * 2**24).astype(jnp.uint32)
        keep = (random_bits(self.key, count) >> 8) >= threshold
        kept = 1 - jnp.asarray(self.rate, x.dtype)
        # With rate 1 nothing is kept, and 1/0 would make NaN of the gradients of 0.
        return jnp.where(keep, x * (1 / jnp.where(kept > 0, kept, 1)), 0)
