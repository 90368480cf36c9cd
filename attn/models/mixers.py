"""Mixers: what mixes the positions of a sentence in a layer, one value for each way.

They are the rows of the paper's Table 1. A value makes the layer's Linen module and calls
it; one's own is a frozen dataclass, a subclass of `Mixer`, in any file. B batch (any
leading axes), N tokens, D = d_model, K hypotheses of one sentence, T entries of a cache.
"""

import dataclasses
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attn.masks import Mask
from attn.models.activations import ACTIVATIONS
from attn.models.convolution import Convolution
from attn.models.linear_attention import (
    DECAYS,
    RANK,
    DeltaHeads,
    GatedDeltaHeads,
    GatedLinearHeads,
    LinearHeads,
)
from attn.models.multihead import MultiHeadAttention, check_name
from attn.models.products import of_self_attention, seen
from attn.models.recurrence import CELLS, MATRICES, Recurrence
from attn.positions import NoPositions


@dataclasses.dataclass(frozen=True)
class Mixer:
    """Says how a layer mixes positions; the base of all such values.

    The module that `build` makes has a method `empty_cache(batch_shape, entries, dtype)`,
    and what `mix` and `decode_step` call of it.
    """

    name: ClassVar[str] = "own_mixer"
    """The name of the module in a layer's parameters."""
    attends: ClassVar[bool] = False
    """States that it is self-attention, and so uses score, heads and positions."""
    has_state: ClassVar[bool] = False
    """States that its cache is one state a hypothesis, and not an entry a position too."""

    def build(self, shape, design, causal: bool, P_attention=0.0) -> nn.Module:
        """Makes the module of one layer.

        Args:
          shape, design: those of the model.
          causal: whether a position sees none behind it, as in a decoder.
          P_attention: the dropout of attention weights; may be traced.
        """
        raise NotImplementedError(f"{type(self).__name__} has no build")

    def mix(
        self,
        module: nn.Module,
        x: Float[Array, "*B N D"],
        mask: Mask,
    ) -> Float[Array, "*B N D"]:
        """Returns the module's output of all positions."""
        return module(x, mask)

    def decode_step(
        self,
        module: nn.Module,
        x: Float[Array, "*B K D"],
        t: Int[Array, "*b"],
        cache: Any,
        visible: Bool[Array, "*B K T"],
    ):
        """Returns the output of K hypotheses at position t, and the new cache."""
        return module.decode_step(x, t, cache, visible)

    @property
    def last(self) -> int | None:
        """The number of last positions that a step sees at most; None for all."""
        return None

    def products(self, n, causal: bool, shape, design):
        """Counts the products of one layer's pass over n positions; None for unknown.

        A subclass has one of its own, or its FLOPs are unknown.

        Args:
          n: an array of numbers of positions, of which the counts are one too.
          causal, shape, design: as `build` gets them.
        """
        return None

    def check(self, d_model: int) -> None:
        """Raises ValueError where the value cannot serve a model of this width."""


@dataclasses.dataclass(frozen=True)
class SelfAttention(Mixer):
    """Mixes by self-attention with the design's score, heads and positions."""

    name: ClassVar[str] = "self_attention"
    attends: ClassVar[bool] = True

    def build(self, shape, design, causal: bool, P_attention=0.0) -> MultiHeadAttention:
        """Makes the multi-head attention."""
        return attention_module(
            shape, design, P_attention, positions=design.positions, causal=causal
        )

    def mix(
        self,
        module: nn.Module,
        x: Float[Array, "*B N D"],
        mask: Mask,
    ) -> Float[Array, "*B N D"]:
        """Returns attention from x to x."""
        return module(x, x, mask)

    def products(self, n, causal: bool, shape, design):
        """Counts those of all pairs that see each other, and of the matrices."""
        pairs = n * (n + 1) // 2 if causal else n**2
        return of_self_attention(n, pairs, shape, design)


@dataclasses.dataclass(frozen=True)
class Restricted(SelfAttention):
    """Mixes by self-attention restricted to `radius` positions on each side."""

    radius: int = 4

    @property
    def last(self) -> int:
        """The number of last positions that a step sees."""
        return self.radius + 1

    def mix(
        self,
        module: nn.Module,
        x: Float[Array, "*B N D"],
        mask: Mask,
    ) -> Float[Array, "*B N D"]:
        """Returns attention from x to its neighbours."""
        return module(x, x, mask & Mask.window(self.radius, self.radius))

    def decode_step(
        self,
        module: nn.Module,
        x: Float[Array, "*B K D"],
        t: Int[Array, "*b"],
        cache: Any,
        visible: Bool[Array, "*B K T"],
    ):
        """Returns the output of K hypotheses at position t, and the new cache.

        The cache may be a ring of radius + 1 positions.
        """
        # The cache has no later positions, so the right side needs no bound.
        positions = jnp.arange(visible.shape[-1]) // x.shape[-2]
        first = jnp.expand_dims(t, (-2, -1)) - self.radius
        first = first.reshape((1,) * (visible.ndim - first.ndim) + first.shape)
        near = positions.reshape((1,) * (visible.ndim - 1) + (-1,)) >= first
        visible = visible & near
        return module.decode_step(x, t, cache, visible)

    def products(self, n, causal: bool, shape, design):
        """Counts those of pairs that are near each other, and of the matrices."""
        pairs = seen(n, self.radius, 0 if causal else self.radius)
        return of_self_attention(n, pairs, shape, design)

    def check(self, d_model: int) -> None:
        """Raises ValueError for a radius below 0."""
        if self.radius < 0:
            raise ValueError(f"radius={self.radius} must be at least 0")


@dataclasses.dataclass(frozen=True)
class Recurrent(Mixer):
    """Mixes by a recurrent cell, a name of CELLS; in both directions in an encoder."""

    name: ClassVar[str] = "recurrence"
    cell: str = "gru"

    def build(self, shape, design, causal: bool, P_attention=0.0) -> Recurrence:
        """Makes the recurrence."""
        return Recurrence(shape.d_model, self.cell, both_ways=not causal)

    def products(self, n, causal: bool, shape, design):
        """Counts those of a cell's matrices; two cells of an encoder share the features."""
        halves = 4 if causal else 3
        return n * MATRICES[self.cell] * shape.d_model**2 * halves // 2

    def check(self, d_model: int) -> None:
        """Raises ValueError for an unknown cell."""
        check_name("cell", self.cell, CELLS)


@dataclasses.dataclass(frozen=True)
class Convolutional(Mixer):
    """Mixes by a convolution of 2·radius + 1 taps."""

    name: ClassVar[str] = "convolution"
    radius: int = 4

    def build(self, shape, design, causal: bool, P_attention=0.0) -> Convolution:
        """Makes the convolution."""
        return Convolution(shape.d_model, self.radius, causal)

    def taps(self, n, causal: bool):
        """Counts the taps of n positions that are not beyond the sentence's ends."""
        r = self.radius
        return seen(n, 2 * r, 0) if causal else seen(n, r, r)

    def products(self, n, causal: bool, shape, design):
        """Counts those of a matrix a tap."""
        return self.taps(n, causal) * shape.d_model**2

    def check(self, d_model: int) -> None:
        """Raises ValueError for a radius below 0."""
        if self.radius < 0:
            raise ValueError(f"radius={self.radius} must be at least 0")


@dataclasses.dataclass(frozen=True)
class SeparableConvolutional(Convolutional):
    """Mixes by a convolution of each feature by itself, and one matrix after it."""

    def build(self, shape, design, causal: bool, P_attention=0.0) -> Convolution:
        """Makes the convolution."""
        return Convolution(shape.d_model, self.radius, causal, separable=True)

    def products(self, n, causal: bool, shape, design):
        """Counts those of a number a feature and tap, and of one matrix."""
        d_model = shape.d_model
        return self.taps(n, causal) * d_model + n * d_model**2


@dataclasses.dataclass(frozen=True)
class LinearAttention(Mixer):
    """Mixes by linear attention: see `LinearHeads`, with the shape's h, d_k and d_v."""

    name: ClassVar[str] = "linear_attention"
    has_state: ClassVar[bool] = True

    def build(self, shape, design, causal: bool, P_attention=0.0) -> LinearHeads:
        """Makes the heads."""
        return LinearHeads(shape.d_model, shape.h, shape.d_k, shape.d_v, causal)

    def products(self, n, causal: bool, shape, design):
        """Counts those of the matrices, and of a state that is written and read.

        The state of d_k·d_v a head has one column more, the denominator's. An encoder has two
        directions. Chunks trade some products for others, which do not count.
        """
        numbers = shape.h * shape.d_k * (shape.d_v + 1)
        return n * (_matrices(shape) + _directions(causal) * 2 * numbers)


@dataclasses.dataclass(frozen=True)
class GatedLinearAttention(LinearAttention):
    """Mixes by gated linear attention: see `GatedLinearHeads`.

    `decay` is a name of DECAYS: what has a decay of its own, each feature of a key or each
    head.
    """

    name: ClassVar[str] = "gated_linear_attention"
    decay: str = "feature"

    def build(self, shape, design, causal: bool, P_attention=0.0) -> GatedLinearHeads:
        """Makes the heads."""
        return GatedLinearHeads(
            shape.d_model,
            shape.h,
            shape.d_k,
            shape.d_v,
            causal,
            self.decay,
            design.norm_epsilon,
        )

    def products(self, n, causal: bool, shape, design):
        """Counts those of the matrices, the output gate and the decays, and of the state."""
        d_model = shape.d_model
        of_heads = shape.h * shape.d_k
        ways = {"feature": RANK * (d_model + of_heads), "head": d_model * shape.h}
        gates = d_model * shape.h * shape.d_v + ways[self.decay]
        state = _directions(causal) * 2 * of_heads * shape.d_v
        return n * (_matrices(shape) + gates + state)

    def check(self, d_model: int) -> None:
        """Raises ValueError for an unknown decay."""
        check_name("decay", self.decay, DECAYS)


@dataclasses.dataclass(frozen=True)
class DeltaNet(LinearAttention):
    """Mixes by the delta rule: see `DeltaHeads`.

    With beta_max=2 a token may turn the sign of what its key gives; it writes `householders`
    times.
    """

    name: ClassVar[str] = "deltanet"
    heads: ClassVar[type] = DeltaHeads
    beta_max: float = 1.0
    householders: int = 1

    def build(self, shape, design, causal: bool, P_attention=0.0) -> DeltaHeads:
        """Makes the heads."""
        return self.heads(
            shape.d_model,
            shape.h,
            shape.d_k,
            shape.d_v,
            causal,
            norm_epsilon=design.norm_epsilon,
            beta_max=self.beta_max,
            householders=self.householders,
        )

    def products(self, n, causal: bool, shape, design):
        """Counts those of the matrices, of β, and of the state.

        A write has a key, a value and a β of its own, and reads what its key gives, which it
        replaces.
        """
        writes = self.householders
        of_write = _matrices(shape) // 2
        beta = shape.d_model * shape.h
        matrices = _matrices(shape) + (writes - 1) * of_write + writes * beta
        numbers = shape.h * shape.d_k * shape.d_v
        return n * (matrices + _directions(causal) * (2 * writes + 1) * numbers)

    def check(self, d_model: int) -> None:
        """Raises ValueError for a β of 0 or beyond 2, or no write."""
        # Beyond 2 what a key gives would grow with every write.
        if not 0 < self.beta_max <= 2:
            raise ValueError(f"beta_max={self.beta_max} must be above 0 and at most 2")
        if self.householders < 1:
            raise ValueError(f"householders={self.householders} must be at least 1")


@dataclasses.dataclass(frozen=True)
class GatedDeltaNet(DeltaNet):
    """Mixes by the delta rule with decays and gates: see `GatedDeltaHeads`."""

    name: ClassVar[str] = "gated_deltanet"
    heads: ClassVar[type] = GatedDeltaHeads

    def products(self, n, causal: bool, shape, design):
        """Counts those of DeltaNet, of the output gate and of the decays."""
        gates = shape.d_model * shape.h * (shape.d_v + 1)
        return super().products(n, causal, shape, design) + n * gates


MIXERS = {
    "attention": SelfAttention,
    "restricted": Restricted,
    "recurrence": Recurrent,
    "convolution": Convolutional,
    "separable": SeparableConvolutional,
    "linear_attention": LinearAttention,
    "gated_linear_attention": GatedLinearAttention,
    "deltanet": DeltaNet,
    "gated_deltanet": GatedDeltaNet,
}
"""The classes of this file by name."""


def _matrices(shape):
    """Counts the numbers of W_Q, W_K, W_V and W_O of linear attention."""
    return 2 * shape.d_model * shape.h * (shape.d_k + shape.d_v)


def _directions(causal: bool) -> int:
    """Counts the directions in which a state is carried along a sentence."""
    return 1 if causal else 2


def attention_module(shape, design, P_attention, **options) -> MultiHeadAttention:
    """Makes the multi-head attention of a shape and a design."""
    rotates = options.get("positions", NoPositions()).rotates
    return MultiHeadAttention(
        shape.d_model,
        shape.h,
        shape.d_k,
        shape.d_v,
        design.score,
        design.combine,
        ACTIVATIONS[design.head_activation],
        biases=design.biases,
        P_drop=P_attention,
        normaliser=design.normaliser,
        heads=design.heads,
        gate=design.gate,
        h_kv=shape.h_kv,
        d_c=shape.d_c,
        d_r=shape.d_r if rotates else None,
        **options,
    )
