"""The part of a head that a kernel works on: some queries, and the keys that they reach.

N queries, M keys, K = d_k, V = d_v of the head; n queries, m keys of the tile.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn.pytrees import at_least_float32


class Tile(NamedTuple):
    """Queries i and keys j of one head.

    Keys and values have their tokens last: the gradient of q kᵀ with respect to kᵀ is a
    product of contiguous rows, three times faster on a CPU than that with respect to k.
    """

    score: Any
    normaliser: Any
    q: Any  # Float[Array, "n K"]
    k: Any  # Float[Array, "K m"]
    v: Any  # Float[Array, "V m"]
    taint: Any  # Taint of its queries and keys, or None
    bias: Any  # Float[Array, "n m"], a value with a `tile`, or None
    mask: Any
    drop: Any
    i: Any  # Int[Array, "n"]
    runs: Any  # of its keys, one after another: a tuple of Int[Array, "_"], neighbours each
    columns: Any  # M, with which `drop` counts its random bits

    @property
    def j(self) -> Int[Array, "m"]:
        """The places of its keys."""
        return self._of_keys(lambda run: run)

    def scores(self) -> Float[Array, "n m"]:
        """Computes score(q, k) + bias in float32 at least, −inf where the mask hides.

        Taint makes NaN of the scores that see NaN or Inf, and of no others.
        """
        s = self.score(self.q, self.k.T)
        s = s.astype(at_least_float32(s.dtype))
        if self.bias is not None:
            bias = self.bias
            if hasattr(bias, "tile"):
                bias = self._of_keys(lambda run: self.bias.tile(self.i, run))
            s = s + bias.astype(s.dtype)
        if self.taint is not None:
            s = s + self.taint.tile().astype(s.dtype)
        if not self.mask.parts:
            return s
        visible = self._of_keys(lambda run: self.mask.tile(self.i, run))
        return jnp.where(visible, s, -jnp.inf)

    def exponents(self) -> tuple[Array, Array | None]:
        """Computes the exponents (n, m) and the rest, as `attn.normalisers` says of both."""
        x, rest = self.normaliser.exponents(self.scores())
        return x, None if rest is None else jnp.asarray(rest, x.dtype)

    def dropped(self, x: Float[Array, "n m"]) -> Float[Array, "n m"]:
        """Returns x after the dropout of these queries and keys."""
        if self.drop is None:
            return x
        return self.drop.tile(x, self.i, self.j, self.columns)

    def _of_keys(self, function: Callable) -> Array:
        """Returns `function(run)` of all runs of keys, side by side."""
        if len(self.runs) == 1:
            return function(self.runs[0])
        return jnp.concatenate([function(run) for run in self.runs], axis=-1)
