"""A short convolution before a mixer (the Canon layers of Allen-Zhu 2025, arXiv 2512.17351).

B batch (any leading axes), N positions, D = d_model, K hypotheses of one sentence, E states
of a cache, T entries that self-attention's cache would have, O taps.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn.cache import parents, sees
from attn.context import Context
from attn.masks.near import neighbours
from attn.mixers.base import Mixer, SelfAttention
from attn.nn.layers import ACTIVATIONS

if TYPE_CHECKING:
    from attn.config import Block

ATTENTION = SelfAttention()


class ShortConvolved(nn.Module):
    """Mixes y_i = x_i + f(Σ_o x_i+o ∘ w_o), of the taps o that position i may see.

    A causal one has all of them at o ≤ 0, the others half behind, half before. Without
    `residual` it is f(…) alone. Parameters beside the inner module's: O·D, which at first are
    uniform from −1/√O to 1/√O, as PyTorch's convolutions are.
    """

    inner: nn.Module
    d_model: int
    taps: int
    causal: bool
    residual: bool
    activation: str

    def setup(self) -> None:
        """Draws the taps."""
        first = 1 - self.taps if self.causal else -(self.taps // 2)
        self.offsets = tuple(range(first, first + self.taps))
        shape = self.taps, self.d_model
        self.of_taps = self.param("taps", _uniform, shape)

    def __call__(
        self, x: Float[Array, "B N D"], ctx: Context
    ) -> tuple[Float[Array, "B N D"], Context]:
        """Returns what the inner module does of all positions, or of a step."""
        if ctx.decoding is None:
            visible = neighbours(ctx.mask, x.shape[:-2], x.shape[-2], self.offsets)
            taps = []
            for i, offset in enumerate(self.offsets):
                # A roll brings the other end in, but `neighbours` never shows it.
                shifted = jnp.roll(x, -offset, axis=-2)
                # where and not a product, which would let a hidden NaN through.
                taps.append(jnp.where(visible[..., i, None], shifted, 0))
            return self.inner(self._mixed(x, taps), ctx)
        inner, kept = ctx.cache
        t, visible = ctx.decoding.t, ctx.decoding.visible
        before = parents(kept, visible, t)
        own = jnp.concatenate([before, x[..., None, :]], -2)
        taps = [
            jnp.where(sees(visible, t + offset)[..., None], own[..., i, :], 0)
            for i, offset in enumerate(self.offsets)
        ]
        out, after = self.inner(self._mixed(x, taps), ctx.replace(cache=inner))
        write = jax.lax.dynamic_update_slice_in_dim
        kept = write(kept, own[..., 1:, :].astype(kept.dtype), 0, axis=x.ndim - 2)
        return out, after.replace(cache=(after.cache, kept))

    def _mixed(self, x: Array, taps: Sequence[Array]) -> Array:
        weights = self.of_taps.astype(x.dtype)
        weights = weights.reshape(self.taps, *(1,) * (x.ndim - 1), -1)
        total = jnp.zeros_like(x)
        for tap, weight in zip(taps, weights, strict=True):
            total = total + tap * weight
        activation = ACTIVATIONS[self.activation]
        total = total if activation is None else activation(total)
        return x + total if self.residual else total

    def empty_cache(self, batch: int, entries: int, dtype: Any) -> tuple[Any, Array]:
        """Returns room for the inner module's, and for the last inputs (B, E, O − 1, D)."""
        kept = jnp.zeros((batch, entries, self.taps - 1, self.d_model), dtype)
        return self.inner.empty_cache(batch, entries, dtype), kept


def _uniform(key: Array, shape: tuple[int, int], dtype: Any = jnp.float32) -> Array:
    most = shape[0] ** -0.5
    return jax.random.uniform(key, shape, dtype, -most, most)


@dataclasses.dataclass(frozen=True)
class Short(Mixer):
    """Mixes as `inner` does after a short convolution of each feature: see `ShortConvolved`.

    With the residual and no activation it is Canon-A of Allen-Zhu 2025; the layers of
    DeltaNet, Mamba-2 and others have residual=False and activation=silu, in the projections.
    """

    name: ClassVar[str] = "short_convolution"
    inner: Mixer = ATTENTION
    taps: int = 4
    residual: bool = True
    activation: str = "none"

    @property
    def attends(self) -> bool:
        """Whether the inner mixer does."""
        return self.inner.attends

    def build(self, block: "Block", causal: bool) -> ShortConvolved:
        """Makes the convolution and the inner module."""
        inner = self.inner.build(block, causal)
        options = self.residual, self.activation
        return ShortConvolved(inner, block.d_model, self.taps, causal, *options)

    def entries(self, entries: int, hypotheses: int, last: int | None) -> int:
        """Returns those of the inner mixer."""
        return self.inner.entries(entries, hypotheses, last)

    def products(self, n: Any, causal: bool, block: "Block") -> Any:
        """Counts those of the inner mixer, and of a number a feature and tap."""
        products = self.inner.products(n, causal, block)
        return None if products is None else products + n * self.taps * block.d_model

    def check(self, block: "Block") -> None:
        """Raises ValueError for fewer than two taps, or what the inner mixer refuses."""
        if self.taps < 2:
            raise ValueError(f"taps={self.taps} must be at least 2")
        if self.activation not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise ValueError(f"unknown activation {self.activation!r}; known: {known}")
        self.inner.check(block)

    def check_direction(self, block: "Block", causal: bool) -> None:
        """Raises ValueError as the inner mixer does."""
        self.inner.check_direction(block, causal)
