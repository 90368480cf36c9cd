"""Mamba-2: a state that decays by one number a head, as a layer of heads.

Dao and Gu 2024, "Transformers are SSMs" (arXiv 2405.21060). In its letters B and C are the
keys and queries, x the values. B examples, N positions, D = d_model, H heads, K = d_k (their
state size), V = d_v (their head size), F features.
"""

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn.mixers.linear import (
    LinearAttention,
    LinearHeads,
    inverse_softplus_of_times,
    log_rates,
    plus,
    to_heads,
)
from attn.recurrent.gated import gated_linear_step

if TYPE_CHECKING:
    from attn.config import Block


class Mamba2Heads(LinearHeads):
    """The heads of Mamba-2 (section 7), whose queries and keys all heads share.

    S_t = exp(−Δ_t e^A) S_t−1 + Δ_t k_t v_tᵀ, y_t = S_tᵀ q_t + d v_t, of swish(x W) as q, k
    and v, with a step Δ = softplus(x w + b), A and d a head; the heads together become
    RMSNorm(y ∘ swish(x W_r)) W_O. Theirs has a short convolution of four taps in q, k and v;
    `short(inner=mamba2)` has one before. In an encoder each position is counted once, decayed
    by what is between.

    Parameters: d_model·(2·d_k + 3·h·d_v + h) + 3·h + h·d_v.
    """

    norm_epsilon: float = 1e-6

    def setup(self) -> None:
        """Draws the projections, decays, gates and gains."""
        glorot = nn.initializers.glorot_uniform
        into_heads = glorot(0, (1, 2))
        d_model, h = self.d_model, self.h
        self.w_q = self.param("w_q", into_heads, (d_model, 1, self.d_k))
        self.w_k = self.param("w_k", into_heads, (d_model, 1, self.d_k))
        self.w_v = self.param("w_v", into_heads, (d_model, h, self.d_v))
        self.w_r = self.param("w_r", into_heads, (d_model, h, self.d_v))
        self.w_o = self.param("w_o", glorot((0, 1), 2), (h, self.d_v, d_model))
        self.w_a = self.param("w_a", into_heads, (d_model, h, 1))
        self.log_rate = self.param("log_rate", log_rates, (h, 1))
        self.b_a = self.param("b_a", inverse_softplus_of_times, (h, 1))
        self.skip = self.param("skip", nn.initializers.ones, (h, 1))
        self.norm = nn.RMSNorm(self.norm_epsilon)

    def arrays(self, x: Float[Array, "B N D"]) -> tuple[Array, ...]:
        """Returns queries, keys, values Δ v and log a, of each head."""
        q, k, v = (nn.swish(y) for y in self.projected(x))
        time = nn.softplus(plus(to_heads(x, self.w_a), self.b_a))
        rate = jnp.exp(self.log_rate)
        log_decay = -time * rate.reshape((1,) * (time.ndim - 2) + rate.shape)
        q, k = (jnp.broadcast_to(y, (*v.shape[:-1], self.d_k)) for y in (q, k))
        return q, k, time * v, log_decay

    step = staticmethod(gated_linear_step)

    def finish(
        self,
        x: Float[Array, "B N D"],
        out: Float[Array, "B N H V"],
    ) -> Float[Array, "B N H V"]:
        """Returns RMSNorm((out + d v) ∘ swish(x W_r)) over all heads."""
        v = nn.swish(to_heads(x, self.w_v))
        skip = self.skip.reshape((1,) * (out.ndim - 2) + self.skip.shape)
        y = (out + skip * v) * nn.swish(to_heads(x, self.w_r))
        return self.norm(y.reshape(*y.shape[:-2], -1)).reshape(y.shape)

    @property
    def state_shape(self) -> tuple[int, int]:
        """The shape of a head's state."""
        return self.d_k, self.d_v


@dataclasses.dataclass(frozen=True)
class Mamba2(LinearAttention):
    """Mixes by Mamba-2: see `Mamba2Heads`, with the shape's h, d_k and d_v."""

    name: ClassVar[str] = "mamba2"

    def build(self, block: "Block", causal: bool) -> Mamba2Heads:
        """Makes the heads."""
        sizes = block.d_model, block.h, block.d_k, block.d_v
        return Mamba2Heads(*sizes, causal, block.norm.epsilon)

    def products(self, n: Any, causal: bool, block: "Block") -> Any:
        """Counts those of the matrices, and of a state that is written and read."""
        h, d_k, d_v = block.h, block.d_k, block.d_v
        matrices = block.d_model * (2 * d_k + 3 * h * d_v + h)
        directions = 1 if causal else 2
        return n * (matrices + directions * 2 * h * d_k * d_v)
