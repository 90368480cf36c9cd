"""Dropout of attention weights and activations as a value that kernels can apply in tiles."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn.pytrees import pytree
from attn.random_bits import counter, random_bits


@pytree
class Drop:
    """Zeroes each element with probability `rate` and scales the rest by 1/(1 − rate)."""

    rate: Any  # a number, which may be traced
    key: Any

    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        return _dropped(self, x)

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
        columns = jnp.asarray(columns, jnp.uint32)
        # So many rows have numbers of their own, ⌊2^32 / columns⌋; those behind them begin
        # again, in another stream. Of one column the wrapped sum would be 0.
        several = jnp.maximum(columns, 2)
        rows = (jnp.uint32(0) - several) // several + 1
        stream, row = jnp.divmod(i.astype(jnp.uint32), rows)
        count = row[:, None] * columns + j.astype(jnp.uint32)[None]
        return self._drop(x, count, stream[:, None])

    def _drop(self, x: Array, count: Array, stream: Any = 0) -> Array:
        # 24 bits: what float32 holds exactly, so that rate·2^24 is the threshold and not
        # near it.
        rate = jnp.asarray(self.rate, jnp.float32)
        threshold = jnp.ceil(rate * 2**24).astype(jnp.uint32)
        keep = (random_bits(self.key, count, stream) >> 8) >= threshold
        kept = 1 - jnp.asarray(self.rate, x.dtype)
        # With rate 1 nothing is kept, and 1/0 would make NaN of the gradients of 0.
        return jnp.where(keep, x * (1 / jnp.where(kept > 0, kept, 1)), 0)


@jax.jit
def _dropped(drop: Drop, x: Array) -> Array:
    """Drops of all of x. Calls of one shape are traced once."""
    return drop._drop(x, counter(x.shape))
