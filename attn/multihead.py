"""The Linen shell around `attention()`: h heads with their own projections.

B batch (any leading axes), N queries, M keys, D = d_model, H = h, K = d_k, V = d_v.
"""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn.attention import attention
from attn.masks import Mask
from attn.scores import ScaledDot


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1, …, head_h) W_O, head_i = Attention(Q W_Q,i, K W_K,i, V W_V,i).

    "Attention Is All You Need", section 3.2.2. d_model, h, d_k and d_v are four independent numbers. The projections
    have no bias, as in the paper, and Glorot-uniform initial values over (d_model, h·d_k).

    With the collection "weights" mutable in `apply`, the attention weights (*B, H, N, M) are kept there.
    """

    d_model: int
    h: int
    d_k: int
    d_v: int

    def setup(self):
        into_heads = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform", in_axis=0, out_axis=(1, 2))
        out_of_heads = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform", in_axis=(0, 1), out_axis=2)
        self.w_q = self.param("w_q", into_heads, (self.d_model, self.h, self.d_k))
        self.w_k = self.param("w_k", into_heads, (self.d_model, self.h, self.d_k))
        self.w_v = self.param("w_v", into_heads, (self.d_model, self.h, self.d_v))
        self.w_o = self.param("w_o", out_of_heads, (self.h, self.d_v, self.d_model))

    def __call__(self, x: Float[Array, "*B N D"], memory: Float[Array, "*B M D"],
                 mask: Mask) -> Float[Array, "*B N D"]:
        """Attention from x to memory; self-attention when they are the same."""
        return self.attend(x, *self.keys_and_values(memory), mask)

    def keys_and_values(self, memory: Float[Array, "*B M D"]):
        """The projected keys (*B, M, H, K) and values (*B, M, H, V): what a decoder keeps from step to step."""
        return _project(memory, self.w_k), _project(memory, self.w_v)

    def attend(self, x: Float[Array, "*B N D"], k: Float[Array, "*B M H K"], v: Float[Array, "*B M H V"],
               mask: Mask) -> Float[Array, "*B N D"]:
        """Attention from x to projected keys and values."""
        watched = self.is_mutable_collection("weights") and not self.is_initializing()
        out = attention(_project(x, self.w_q), k, v, score=ScaledDot(), mask=mask, return_weights=watched)
        if watched:
            out, weights = out
            self.sow("weights", "weights", weights, reduce_fn=lambda _, new: new, init_fn=lambda: None)
        return jnp.einsum("...nhv,hvd->...nd", out, self.w_o)


def _project(x, w):
    return jnp.einsum("...nd,dhk->...nhk", x, w)
