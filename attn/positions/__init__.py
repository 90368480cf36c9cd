"""Positions: how a model knows where a token stands, one value for each way.

A value has hooks, which do nothing by default: `table` is added to the embeddings, at the
`places` of the tokens; `rotate` turns queries and keys; `bias` is added to the scores of
self-attention, `gates` make such a bias of the tokens, and `counts` are what contextual
attention adds to them. One's own is a frozen dataclass,
a subclass of `Positions` with one hook or more, in any file:

    @dataclasses.dataclass(frozen=True)
    class Logarithmic(attn.positions.Positions):
        def bias(self, key, h, causal):
            return LogBias(jnp.ones(h))  # see attn.positions.biases

B batch (any leading axes), N tokens, L the length of a table, D = d_model, H = h heads,
K = d_k.
"""

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn.arithmetic import Products
from attn.positions import tables
from attn.positions.biases import (
    ALiBiBias,
    BucketBias,
    RelativeBias,
    alibi_slopes,
    bias,
    bias_of_heads,
    bias_row,
    bucket_of_distance,
)
from attn.positions.forget import ForgetBias, ForgetGates
from attn.positions.functional import FireBias, KerpleLogBias, KerplePowerBias
from attn.positions.rotary import (
    SCALINGS,
    check_scaling,
    rotary,
    rotary_rates,
    scaled_rates,
    turned,
    yarn_magnitude,
)
from attn.positions.tables import LAYOUTS, sinusoidal

__all__ = [
    "LAYOUTS",
    "POSITIONS",
    "SCALINGS",
    "T5",
    "ALiBi",
    "ALiBiBias",
    "BucketBias",
    "CoPE",
    "Fire",
    "FireBias",
    "Forget",
    "ForgetBias",
    "ForgetGates",
    "Kerple",
    "KerpleLogBias",
    "KerplePowerBias",
    "Learned",
    "NoPositions",
    "Positions",
    "Randomised",
    "Relative",
    "RelativeBias",
    "Rotary",
    "Sinusoidal",
    "alibi_slopes",
    "bias",
    "bias_of_heads",
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
        """Returns the table of `length` positions that is added to the embeddings.

        It has more rows where `places` tells of more.
        """
        return tables.zeros(length, d_model)

    def places(
        self,
        positions: Int[Array, "*B N"],
        length: int,
        key: Array | None = None,
    ) -> Int[Array, "*B N"]:
        """Returns the rows of the table for tokens that are counted from 0.

        Args:
          positions: which of its text each token is, from 0.
          length: the most positions of the model.
          key: a random key in training, if an rng named "positions" is given; else None.
        """
        return positions

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

    def gates(self, key: Array, d_model: int, h: int) -> Any:
        """Makes what reads a bias from the tokens of self-attention, or None.

        Returns:
          A value such as `attn.positions.forget.ForgetGates`. Its arrays are parameters of
          the layer.
        """
        return None

    def counts(self, key: Array, d_k: int) -> Float[Array, "P K"] | None:
        """Draws the table of `attn.contextual_attention`, a parameter of the layer, or None.

        With it that takes the place of `attention`.
        """
        return None

    def products(self, d_model: int, h: int, d_k: int) -> Products | None:
        """Counts the products of gates and counts; None for unknown.

        A subclass with these hooks has one of its own, or its FLOPs are unknown.
        """
        return None

    def check(self, d_model: int, d_k: int) -> None:
        """Raises ValueError where the value cannot serve a model of these widths."""

    @property
    def in_layers(self) -> bool:
        """Tells whether the value acts in the layers, and not in the table alone."""
        return self._has("rotate", "bias", "gates", "counts")

    @property
    def is_data(self) -> bool:
        """Tells whether the value fills a table and does no more.

        Models that differ in such values only are one program: a table is data.
        """
        return not self._has("rotate", "bias", "gates", "counts", "places")

    @property
    def has_gates(self) -> bool:
        """Tells whether a cache of decoding keeps sums of forget gates."""
        return self._has("gates")

    def _has(self, *hooks):
        # A hook that a subclass leaves alone is the base's own function.
        cls = type(self)
        return any(getattr(cls, hook) is not getattr(Positions, hook) for hook in hooks)

    @property
    def has_counts(self) -> bool:
        """Tells whether contextual attention is used, whose memory is of n²."""
        return self._has("counts")

    @property
    def rotates(self) -> bool:
        """Tells whether the value turns queries and keys."""
        return self._has("rotate")


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
    number must be even (Black et al. 2022, GPT-NeoX, has a quarter). For texts `factor`
    times longer than those of training, `scaling` says how wavelengths are stretched, see
    `scaled_rates`: linear, ntk or yarn; the last multiplies the turned numbers of queries
    and keys by `yarn_magnitude` too, and needs the `length` of training.
    """

    base: float = 10_000.0
    fraction: float = 1.0
    scaling: str = "linear"
    factor: float = 1.0
    length: int = 2048

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
        if self.factor == 1:
            rates = rotary_rates(count, self.base)
        else:
            scaling = self.scaling, self.factor, self.length
            rates = scaled_rates(count, self.base, *scaling)
        first = turned(x[..., :count], positions, rates)
        if self.scaling == "yarn" and self.factor > 1:
            first = first * jnp.asarray(yarn_magnitude(self.factor), x.dtype)
        if count == d_k:
            return first
        return jnp.concatenate([first, x[..., count:]], axis=-1)

    def check(self, d_model: int, d_k: int) -> None:
        """Raises ValueError for a base below 1, a scaling that makes no sense, or a fraction
        that turns an odd number.
        """
        tables.check_base(self.base)
        check_scaling(self.scaling, self.factor, self.length)
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


@dataclasses.dataclass(frozen=True)
class Kerple(Positions):
    """Subtracts a learned kernel of the distance from the scores (Chi et al. 2022).

    `kernel` is "log", see `KerpleLogBias`, or "power", see `KerplePowerBias`; each head of
    each layer has its own two numbers.
    """

    kernel: str = "log"

    def bias(self, key: Array, h: int, causal: bool) -> Any:
        """Draws the numbers."""
        return KERPLE_KERNELS[self.kernel].init(key, h)

    def check(self, d_model: int, d_k: int) -> None:
        """Raises ValueError for an unknown kernel."""
        if self.kernel not in KERPLE_KERNELS:
            known = ", ".join(KERPLE_KERNELS)
            raise ValueError(f"unknown kernel {self.kernel!r}; known: {known}")


KERPLE_KERNELS = {"log": KerpleLogBias, "power": KerplePowerBias}


@dataclasses.dataclass(frozen=True)
class Fire(Positions):
    """Adds an MLP of the distance, as a share of the position, to the scores.

    FIRE (Li et al. 2023), see `FireBias`; each layer has its own MLP, of `width` units.
    """

    width: int = 32
    threshold: float = 512.0

    def bias(self, key: Array, h: int, causal: bool) -> FireBias:
        """Draws the MLP; its threshold is learned from this one on."""
        return FireBias.init(key, h, self.width, self.threshold)

    def check(self, d_model: int, d_k: int) -> None:
        """Raises ValueError for a width below 1, or a threshold that is not above 0."""
        if self.width < 1:
            raise ValueError(f"width={self.width} must be at least 1")
        if not 0 < self.threshold < math.inf:
            raise ValueError(f"threshold={self.threshold} must be finite and above 0")


@dataclasses.dataclass(frozen=True)
class Forget(Positions):
    """Forgets by gates that each layer reads from its tokens (FoX, Lin et al. 2025).

    See `ForgetGates` and `ForgetBias`. A cache of decoding keeps one number more for each
    token and head.
    """

    def gates(self, key: Array, d_model: int, h: int) -> ForgetGates:
        """Draws the gates' projection."""
        return ForgetGates.init(key, d_model, h)

    def products(self, d_model: int, h: int, d_k: int) -> Products:
        """Counts those of the projection."""
        return Products(query=d_model * h)


@dataclasses.dataclass(frozen=True)
class CoPE(Positions):
    """Counts the keys between query and key by gates, up to p_max (Golovneva et al. 2024).

    See `attn.contextual_attention`; each layer has its own table of p_max + 1 vectors, 0 at
    first, for all heads. The paper's p_max is the length of training, or less. Memory is
    h·n².
    """

    p_max: int = 64

    def counts(self, key: Array, d_k: int) -> Float[Array, "P K"]:
        """Makes the table; the key is not used."""
        return jnp.zeros((self.p_max + 1, d_k))

    def products(self, d_model: int, h: int, d_k: int) -> Products:
        """Counts those of a head's query with each vector of the table."""
        return Products(query=h * d_k * (self.p_max + 1))

    def check(self, d_model: int, d_k: int) -> None:
        """Raises ValueError for a p_max below 1."""
        if self.p_max < 1:
            raise ValueError(f"p_max={self.p_max} must be at least 1")


@dataclasses.dataclass(frozen=True)
class Randomised(Sinusoidal):
    """Adds sinusoids of places drawn from a range longer than any text.

    Ruoss et al. 2023, "Randomized positional encodings boost length generalization of
    Transformers". In training, where an rng named "positions" is given, the N tokens of a
    row stand at N of `longest` places, drawn anew for each row without repetition and
    sorted. Otherwise token t of a model of `length` positions stands at ⌊t · longest /
    length⌋, the same in every text: a deviation, as theirs are drawn in tests too. Another:
    a text shorter than its row stands at the first of the row's places.
    """

    longest: int = 2048

    def table(self, key: Array, length: int, d_model: int) -> Float[Array, "L D"]:
        """Computes the sinusoids of all places. Raises ValueError for fewer than `length`."""
        if length > self.longest:
            raise ValueError(
                f"longest={self.longest} must be at least the {length} positions of the "
                "model"
            )
        return super().table(key, self.longest, d_model)

    def places(
        self,
        positions: Int[Array, "*B N"],
        length: int,
        key: Array | None = None,
    ) -> Int[Array, "*B N"]:
        """Returns places drawn with the key, or, without one, at equal distances."""
        if key is None:
            # In floating point the product of two integers might be rounded below.
            return positions * self.longest // length
        *batch, n = positions.shape
        keys = jax.random.split(key, math.prod(batch))

        def draw(key):
            places = jax.random.choice(key, self.longest, (n,), replace=False)
            return jnp.sort(places)

        drawn = jax.vmap(draw)(keys).reshape(positions.shape)
        return jnp.take_along_axis(drawn, positions, axis=-1)

    def check(self, d_model: int, d_k: int) -> None:
        """Raises ValueError for a layout or base as Sinusoidal's, or no place."""
        super().check(d_model, d_k)
        if not 1 <= self.longest < 2**15:
            raise ValueError(f"longest={self.longest} must be from 1 to 32767")


POSITIONS = {
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "none": NoPositions,
    "rotary": Rotary,
    "alibi": ALiBi,
    "t5": T5,
    "relative": Relative,
    "kerple": Kerple,
    "fire": Fire,
    "forget": Forget,
    "cope": CoPE,
    "randomised": Randomised,
}
"""The classes of this package by name."""
