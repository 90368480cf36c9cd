"""Positions: how a model knows where a token stands, one value for each way.

A value has three hooks, which do nothing by default: `table` is added to the embeddings,
`rotate` turns queries and keys, `bias` is added to the scores of self-attention. One's own
is a frozen dataclass, a subclass of `Positions` with one hook or more, in any file:

    @dataclasses.dataclass(frozen=True)
    class Kerple(attn.positions.Positions):
        def bias(self, key, h, causal):
            return LogBias(jnp.ones(h))  # see attn.positions.biases

B batch (any leading axes), N tokens, L the length of a table, D = d_model, H = h heads,
K = d_k.
"""

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn.positions import tables
from attn.positions.biases import (
    ALiBiBias,
    BucketBias,
    RelativeBias,
    alibi_slopes,
    bias,
    bias_row,
    bucket_of_distance,
)
from attn.positions.rotary import rotary
from attn.positions.tables import LAYOUTS, sinusoidal

__all__ = [
    "LAYOUTS",
    "POSITIONS",
    "T5",
    "ALiBi",
    "ALiBiBias",
    "BucketBias",
    "Learned",
    "NoPositions",
    "Positions",
    "Relative",
    "RelativeBias",
    "Rotary",
    "Sinusoidal",
    "alibi_slopes",
    "bias",
    "bias_row",
    "bucket_of_distance",
    "rotary",
    "sinusoidal",
]


@dataclasses.dataclass(frozen=True)
class Positions:
    """Knows nothing of positions; the base of all values that do."""

    trained: ClassVar[bool] = False
    """States that the table is a parameter."""

    def table(self, key: Array, length: int, d_model: int) -> Float[Array, "L D"]:
        """Returns the table of `length` positions that is added to the embeddings."""
        return tables.zeros(length, d_model)

    def rotate(
        self,
        x: Float[Array, "*B N H K"],
        positions: Int[Array, "*b N"],
    ) -> Float[Array, "*B N H K"]:
        """Returns queries or keys of self-attention, turned by their positions."""
        return x

    def bias(self, key: Array, h: int, causal: bool) -> Any:
        """Makes the value that is added to the scores of self-attention, or None.

        Args:
          key: a random key for its initial values.
          h: the number of heads.
          causal: whether a query sees no key behind it.

        Returns:
          A value with a `tile`, see `attn.positions.biases`. Its arrays are parameters of
          the layer, unless its `trained` is False.
        """
        return None

    def check(self, d_model: int, d_k: int) -> None:
        """Raises ValueError where the value cannot serve a model of these widths."""

    @property
    def in_layers(self) -> bool:
        """Tells whether the value acts in the layers, and not in the table alone.

        Models whose positions differ in tables only are one program: a table is data.
        """
        # A hook that a subclass leaves alone is the base's own function.
        return self.rotates or type(self).bias is not Positions.bias

    @property
    def rotates(self) -> bool:
        """Tells whether the value turns queries and keys."""
        return type(self).rotate is not Positions.rotate


@dataclasses.dataclass(frozen=True)
class NoPositions(Positions):
    """Knows nothing of positions: an encoder sees a bag of tokens."""


@dataclasses.dataclass(frozen=True)
class Sinusoidal(Positions):
    """Adds the paper's fixed sines and cosines, or another layout, see `sinusoidal`."""

    base: float = 10_000.0
    layout: str = "interleaved"

    def table(self, key: Array, length: int, d_model: int) -> Float[Array, "L D"]:
        """Computes the sines and cosines; the key is not used."""
        return jnp.asarray(sinusoidal(length, d_model, self.layout, self.base))

    def check(self, d_model: int, d_k: int) -> None:
        """Raises ValueError for an unknown layout, an odd d_model, or a base below 1."""
        tables.check_sinusoidal(d_model, self.layout, self.base)


@dataclasses.dataclass(frozen=True)
class Learned(Positions):
    """Adds one trained vector a position, from N(0, 1/d_model).

    Gehring et al. 2017; the paper's Table 3, row E.
    """

    trained: ClassVar[bool] = True

    def table(self, key: Array, length: int, d_model: int) -> Float[Array, "L D"]:
        """Draws the initial vectors."""
        return tables.learned(key, length, d_model)


@dataclasses.dataclass(frozen=True)
class Rotary(Positions):
    """Turns queries and keys by their positions (Su et al. 2021), see `rotary`.

    `fraction` is the share of a head's d_k numbers that are turned, the first ones; their
    number must be even (Black et al. 2022, GPT-NeoX, has a quarter).
    """

    base: float = 10_000.0
    fraction: float = 1.0

    def rotate(
        self,
        x: Float[Array, "*B N H K"],
        positions: Int[Array, "*b N"],
    ) -> Float[Array, "*B N H K"]:
        """Returns x with its first numbers turned."""
        d_k = x.shape[-1]
        # A rotation is within a head, so any d_model passes.
        self.check(0, d_k)
        count = round(self.fraction * d_k)
        if count == d_k:
            return rotary(x, positions, self.base)
        turned = rotary(x[..., :count], positions, self.base)
        return jnp.concatenate([turned, x[..., count:]], axis=-1)

    def check(self, d_model: int, d_k: int) -> None:
        """Raises ValueError for a base below 1, or a fraction that turns an odd number."""
        tables.check_base(self.base)
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction={self.fraction} must be above 0, and 1 at most")
        if self.fraction == 1 and d_k % 2:
            raise ValueError(f"d_k={d_k} must be even: rotary positions turn pairs")
        # A share such as 0.7 is not exact in binary, so its product is given slack.
        count = self.fraction * d_k
        if abs(count - round(count)) > 1e-6 or round(count) % 2 or round(count) < 2:
            raise ValueError(
                f"fraction={self.fraction} of d_k={d_k} is {count:g}, which must be an "
                "even number: rotary positions turn pairs"
            )


@dataclasses.dataclass(frozen=True)
class ALiBi(Positions):
    """Subtracts slope · distance from the scores (Press et al. 2022), see `ALiBiBias`."""

    def bias(self, key: Array, h: int, causal: bool) -> ALiBiBias:
        """Makes the bias with the paper's slopes; the key is not used."""
        return ALiBiBias(jnp.asarray(alibi_slopes(h)))


@dataclasses.dataclass(frozen=True)
class T5(Positions):
    """Adds a trained number for each bucket of distances to the scores of each head.

    Raffel et al. 2020, see `BucketBias`; each layer has its own.
    """

    buckets: int = 32
    max_distance: int = 128

    def bias(self, key: Array, h: int, causal: bool) -> BucketBias:
        """Draws the numbers; without causality half of the buckets are for later keys."""
        return BucketBias.init(key, h, self.buckets, not causal, self.max_distance)

    def check(self, d_model: int, d_k: int) -> None:
        """Raises ValueError for buckets that do not make a bias in both directions."""
        # Two directions are the stricter case, and an encoder may have the same value.
        bucket_of_distance(self.buckets, True, self.max_distance)


@dataclasses.dataclass(frozen=True)
class Relative(Positions):
    """Adds a trained number for each distance up to `reach` to the scores of each head.

    See `RelativeBias`; each layer has its own. Shaw et al. 2018 found no gain beyond 16.
    """

    reach: int = 16

    def bias(self, key: Array, h: int, causal: bool) -> RelativeBias:
        """Draws the numbers."""
        return RelativeBias.init(key, h, self.reach)

    def check(self, d_model: int, d_k: int) -> None:
        """Raises ValueError for a reach below 1."""
        if self.reach < 1:
            raise ValueError(f"reach={self.reach} must be at least 1")


POSITIONS = {
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "none": NoPositions,
    "rotary": Rotary,
    "alibi": ALiBi,
    "t5": T5,
    "relative": Relative,
}
"""The classes of this package by name."""
