"""Convolution in place of self-attention (the paper's section 4).

It obeys the mask that self-attention would have: its taps reach only the positions that a
position may see. For decoding it keeps a cache of one entry for each position and
hypothesis, as self-attention does. B batch (any leading axes), N positions, D = d_model,
K hypotheses of one sentence, T entries of a cache, O taps.
"""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attn.masks import Mask
from attn.models.visibility import ancestors, neighbours, write_entries


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

    def setup(self):
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

    def __call__(self, x: Float[Array, "*B N D"], mask: Mask) -> Float[Array, "*B N D"]:
        """Returns the outputs of all positions."""
        visible = neighbours(mask, x.shape[:-2], x.shape[-2], self.offsets)
        taps = []
        for i, offset in enumerate(self.offsets):
            # A roll brings the other end in, but `neighbours` never shows it.
            shifted = jnp.roll(x, -offset, axis=-2)
            # where and not a product, which would let a hidden NaN through.
            taps.append(jnp.where(visible[..., i, None], shifted, 0))
        return self._sum(taps)

    def empty_cache(self, batch_shape: tuple[int, ...], entries: int, dtype):
        """Returns room for the convolution's input in each entry."""
        return jnp.zeros((*batch_shape, entries, self.d_model), dtype)

    def decode_step(
        self,
        x: Float[Array, "*B K D"],
        t: Int[Array, "*b"],
        cache,
        visible: Bool[Array, "*B K T"],
    ):
        """Computes the outputs at position t, as `MultiHeadAttention.decode_step` does.

        The convolution must be causal.
        """
        # Written before it is read, because the last tap is at position t itself.
        cache = write_entries(cache, x, t)
        taps = [ancestors(cache, visible, t + offset) for offset in self.offsets]
        return self._sum(taps), cache

    def _sum(self, taps):
        """Returns the outputs from the inputs of each tap."""
        bias = self.bias.reshape((1,) * (taps[0].ndim - 1) + (-1,))
        if not self.separable:
            return jnp.einsum("o...d,ode->...e", jnp.stack(taps), self.kernel) + bias
        weights = self.taps.reshape(len(taps), *(1,) * (taps[0].ndim - 1), -1)
        weighted = sum(x * w for x, w in zip(taps, weights, strict=True))
        return weighted @ self.kernel + bias
