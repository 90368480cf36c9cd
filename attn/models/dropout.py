"""Dropout as a Linen module."""

import flax.linen as nn
from jaxtyping import Array, Float

from attn.arguments import is_never
from attn.kernels.drop import Drop


class Dropout(nn.Module):
    """Drops when, and only when, the caller supplies a random key.

    That is `apply(..., rngs={"dropout": key})`. `rate` may be a traced value, so that
    trials with different rates share a compiled program.

    Raises:
      ValueError: a known rate that is not from 0 to 1.
    """

    rate: float | Float[Array, ""]

    @nn.compact
    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        is_never("rate", self.rate)  # for its error
        if not self.has_rng("dropout"):
            return x
        return Drop(self.rate, self.make_rng("dropout"))(x)
