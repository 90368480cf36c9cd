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
    DeltaHeads,
    GatedDeltaHeads,
    GatedLinearHeads,
    LinearHeads,
)
from attn.models.multihead import MultiHeadAttention, check_name
from attn.models.recurrence import CELLS, Recurrence
from attn.positions import NoPositions


@dataclasses.dataclass(frozen=True)
class Mixer:
    """Says how a layer mixes positions; the base of all such values.

    The module that `build` makes has a method `empty_cache(batch_shape, entries, dtype)`,
    and what `mix` and `decode_step` call of it.
    """

    name: ClassVar[str] = "mixer"
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


@dataclasses.dataclass(frozen=True)
class LinearAttention(Mixer):
    """Mixes by linear attention: see `LinearHeads`, with the shape's h, d_k and d_v."""

    name: ClassVar[str] = "linear_attention"
    has_state: ClassVar[bool] = True

    def build(self, shape, design, causal: bool, P_attention=0.0) -> LinearHeads:
        """Makes the heads."""
        return LinearHeads(shape.d_model, shape.h, shape.d_k, shape.d_v, causal)


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
