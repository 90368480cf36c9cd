"""Convolution in place of self-attention (the paper's section 4).

It obeys the mask that self-attention would have: its taps reach only the positions that a
position may see. For decoding it keeps a cache of one entry for each position and
hypothesis, as self-attention does. B batch (any leading axes), N positions, D = d_model,
K hypotheses of one sentence, T entries of a cache, O taps.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn.cache import ancestors, sees, write_entries
from attn.context import Context
from attn.masks.near import neighbours
from attn.mixers.base import Mixer
from attn.nn.products import seen

if TYPE_CHECKING:
    from attn.config import Block


class Convolution(nn.Module):
    """y_i = Σ_o x_i+o W_o + b over 2·radius + 1 taps o, those that position i may see.

    A causal one has all of them at o ≤ 0, the others as many on both sides. With
    `separable`, y_i = (Σ_o x_i+o ∘ w_o) W + b (Chollet 2017): the taps of each feature by
    itself, then one matrix. Parameters: (2·radius + 1)·D² + D, or
    (2·radius + 1)·D + D² + D.
    """

    d_model: int
    radius: int
    causal: bool = False
    separable: bool = False

    def setup(self) -> None:
        """Draws the parameters."""
        first = -2 * self.radius if self.causal else -self.radius
        self.offsets = tuple(range(first, first + 2 * self.radius + 1))
        taps = len(self.offsets)
        d_model = self.d_model
        glorot = nn.initializers.glorot_uniform
        if self.separable:
            # The sum over the taps then keeps the variance of x.
            normal = nn.initializers.normal(taps**-0.5)
            self.taps = self.param("taps", normal, (taps, d_model))
            self.kernel = self.param("kernel", glorot(), (d_model, d_model))
        else:
            shape = (taps, d_model, d_model)
            # An output sums over taps and features, so both count as inputs.
            self.kernel = self.param("kernel", glorot((0, 1), 2), shape)
        self.bias = self.param("bias", nn.initializers.zeros, (d_model,))

    def __call__(
        self, x: Float[Array, "B N D"], ctx: Context
    ) -> tuple[Float[Array, "B N D"], Context]:
        """Returns the outputs of all positions, or those of a step."""
        if ctx.decoding is not None:
            # Written before it is read, because the last tap is at position t itself.
            t, visible = ctx.decoding.t, ctx.decoding.visible
            cache = write_entries(ctx.cache, x, t)
            taps = []
            for offset in self.offsets:
                tap = ancestors(cache, visible, t + offset)
                taps.append(jnp.where(sees(visible, t + offset)[..., None], tap, 0))
            return self._sum(taps), ctx.replace(cache=cache)
        visible = neighbours(ctx.mask, x.shape[:-2], x.shape[-2], self.offsets)
        taps = []
        for i, offset in enumerate(self.offsets):
            # A roll brings the other end in, but `neighbours` never shows it.
            shifted = jnp.roll(x, -offset, axis=-2)
            # where and not a product, which would let a hidden NaN through.
            taps.append(jnp.where(visible[..., i, None], shifted, 0))
        return self._sum(taps), ctx

    def empty_cache(self, batch: int, entries: int, dtype: Any) -> Array:
        """Returns room for the convolution's input in each entry."""
        return jnp.zeros((batch, entries, self.d_model), dtype)

    def _sum(self, taps: Sequence[Array]) -> Array:
        """Returns the outputs from the inputs of each tap."""
        bias = self.bias.reshape((1,) * (taps[0].ndim - 1) + (-1,))
        if not self.separable:
            return jnp.einsum("o...d,ode->...e", jnp.stack(taps), self.kernel) + bias
        weights = self.taps.reshape(len(taps), *(1,) * (taps[0].ndim - 1), -1)
        weighted = sum(x * w for x, w in zip(taps, weights, strict=True))
        return weighted @ self.kernel + bias


@dataclasses.dataclass(frozen=True)
class Convolutional(Mixer):
    """Mixes by a convolution of 2·radius + 1 taps."""

    name: ClassVar[str] = "convolution"
    radius: int = 4

    def build(self, block: "Block", causal: bool) -> Convolution:
        """Makes the convolution."""
        return Convolution(block.d_model, self.radius, causal)

    def taps(self, n: Any, causal: bool) -> Any:
        """Counts the taps of n positions that are not beyond the sentence's ends."""
        r = self.radius
        return seen(n, 2 * r, 0) if causal else seen(n, r, r)

    def products(self, n: Any, causal: bool, block: "Block") -> Any:
        """Counts those of a matrix a tap."""
        return self.taps(n, causal) * block.d_model**2

    def check(self, block: "Block") -> None:
        """Raises ValueError for a radius below 0."""
        if self.radius < 0:
            raise ValueError(f"radius={self.radius} must be at least 0")


@dataclasses.dataclass(frozen=True)
class SeparableConvolutional(Convolutional):
    """Mixes by a convolution of each feature by itself, and one matrix after it."""

    def build(self, block: "Block", causal: bool) -> Convolution:
        """Makes the convolution."""
        return Convolution(block.d_model, self.radius, causal, separable=True)

    def products(self, n: Any, causal: bool, block: "Block") -> Any:
        """Counts those of a number a feature and tap, and of one matrix."""
        d_model = block.d_model
        return self.taps(n, causal) * d_model + n * d_model**2
