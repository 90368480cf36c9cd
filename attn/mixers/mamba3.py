"""Mamba-3: a state that turns while it decays, fed by two tokens at a time.

Lahoti et al. 2026, "Mamba-3" (arXiv 2603.15569), with one input and one output. In its letters
B and C are the keys and queries, x the values. B examples, N positions, D = d_model, H heads,
K = d_k (their state size), V = d_v (their head size), F features, A angles.
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
    plus,
    to_heads,
)
from attn.recurrent.gated import gated_linear

if TYPE_CHECKING:
    from attn.config import Block

LEAST_RATE = 1e-4
"""The least rate of decay."""


class Mamba3Heads(LinearHeads):
    """The heads of Mamba-3, whose queries, keys and angles all heads share.

        S_t = a_t R_t (S_t−1 + (1 − λ_t) Δ_t k_t−1 v_t−1ᵀ) + λ_t Δ_t k_t v_tᵀ
        head_t = (S_tᵀ q_t + d v_t) ∘ swish(x W_r)

    with a_t = exp(−Δ_t A_t), A = softplus(x W_a), Δ = softplus(x w + b), λ = σ(x w_λ), and
    R_t that turns each pair among the first 2·A features by π·Δ_t·tanh(x W_θ) backwards:
    A = ⌊fraction·d_k / 2⌋. Queries and keys are RMSNorm(x W), and a bias a head, 1 at first.
    In an encoder each position is counted once, both directions with their own turns.

    Parameters: d_model·(2·d_k + A + h·(3·d_v + 3)) + 2·d_k·(h + 1) + 2·h.
    """

    norm_epsilon: float = 1e-5
    fraction: float = 0.5

    def setup(self) -> None:
        """Draws the projections, angles, decays and biases."""
        glorot = nn.initializers.glorot_uniform
        into_heads = glorot(0, (1, 2))
        ones = nn.initializers.ones
        d_model, h = self.d_model, self.h
        self.w_q = self.param("w_q", into_heads, (d_model, 1, self.d_k))
        self.w_k = self.param("w_k", into_heads, (d_model, 1, self.d_k))
        self.w_v = self.param("w_v", into_heads, (d_model, h, self.d_v))
        self.w_r = self.param("w_r", into_heads, (d_model, h, self.d_v))
        self.w_o = self.param("w_o", glorot((0, 1), 2), (h, self.d_v, d_model))
        self.b_q = self.param("b_q", ones, (h, self.d_k))
        self.b_k = self.param("b_k", ones, (h, self.d_k))
        angles = angles_of(self.fraction, self.d_k)
        self.w_angle = self.param("w_angle", into_heads, (d_model, 1, angles))
        self.w_rate = self.param("w_rate", into_heads, (d_model, h, 1))
        self.w_share = self.param("w_share", into_heads, (d_model, h, 1))
        self.w_a = self.param("w_a", into_heads, (d_model, h, 1))
        self.b_a = self.param("b_a", inverse_softplus_of_times, (h, 1))
        self.skip = self.param("skip", ones, (h, 1))
        self.norm_q = nn.RMSNorm(self.norm_epsilon)
        self.norm_k = nn.RMSNorm(self.norm_epsilon)

    def arrays(self, x: Float[Array, "B N D"]) -> tuple[Array, ...]:
        """Returns queries, keys, values, log a, λ Δ, (1 − λ) Δ and angles, of each head."""
        q, k, v = self.projected(x)
        h = v.shape[-2]
        q, k = (
            plus(jnp.repeat(norm(y), h, axis=-2), bias)
            for y, norm, bias in (
                (q, self.norm_q, self.b_q),
                (k, self.norm_k, self.b_k),
            )
        )
        time = nn.softplus(plus(to_heads(x, self.w_a), self.b_a))
        rate = jnp.maximum(nn.softplus(to_heads(x, self.w_rate)), LEAST_RATE)
        share = nn.sigmoid(to_heads(x, self.w_share))
        angles = jnp.pi * time * jnp.tanh(to_heads(x, self.w_angle))
        return q, k, v, -time * rate, share * time, (1 - share) * time, angles

    @staticmethod
    def rule(*arrays: Array, begins: Array, is_backwards: bool) -> Array:
        """Computes the outputs (N, V) of one head from all positions."""
        q, k, v, log_decay, own, last, angles = arrays
        # What turns between two tokens is the difference of their sums.
        total = jnp.cumsum(angles, axis=0)
        turned_q, turned_k = (turned(y, total) for y in (q, k))
        # A token enters the state at its own step and at the next one, whose share it has.
        fed = own + jnp.concatenate([last[1:], jnp.zeros_like(last[:1])])
        before = gated_linear(
            turned_q, turned_k, fed * v, log_decay, begins=begins, own=False
        )
        if is_backwards:
            return before
        return before + own * (q * k).sum(-1, keepdims=True) * v

    @staticmethod
    def step(
        state: Float[Array, "W V"],
        q: Float[Array, "K"],
        k: Float[Array, "K"],
        v: Float[Array, "V"],
        log_decay: Float[Array, "1"],
        own: Float[Array, "1"],
        last: Float[Array, "1"],
        angles: Float[Array, "A"],
    ) -> tuple[Float[Array, "W V"], Float[Array, "V"]]:
        """Returns the state and the last token's k vᵀ, W = 2·K, after one more, and its output."""
        width = q.shape[0]
        sums, before = state[:width], state[width:]
        sums = jnp.exp(log_decay)[:, None] * (sums + last[:, None] * before)
        # As features of each value, which all turn alike.
        sums = turned(
            sums.T, -jnp.broadcast_to(angles, (sums.shape[1], *angles.shape))
        ).T
        fed = k[:, None] * v[None]
        sums = sums + own[:, None] * fed
        return jnp.concatenate([sums, fed]), q @ sums

    def finish(
        self,
        x: Float[Array, "B N D"],
        out: Float[Array, "B N H V"],
    ) -> Float[Array, "B N H V"]:
        """Returns (out + d v) ∘ swish(x W_r)."""
        skip = self.skip.reshape((1,) * (out.ndim - 2) + self.skip.shape)
        out = out + skip * to_heads(x, self.w_v)
        return out * nn.swish(to_heads(x, self.w_r))

    @property
    def state_shape(self) -> tuple[int, int]:
        """The shape of a head's state, and of the last token's k vᵀ below it."""
        return 2 * self.d_k, self.d_v


def angles_of(fraction: float, d_k: int) -> int:
    """Returns A, the pairs of features that turn."""
    return int(fraction * d_k) // 2


def turned(x: Float[Array, "N K"], angles: Float[Array, "N A"]) -> Float[Array, "N K"]:
    """Turns pairs of neighbours among the first 2·A features of each token."""
    n, count = angles.shape
    pairs = x[:, : 2 * count].reshape(n, count, 2)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    first = pairs[..., 0] * cos - pairs[..., 1] * sin
    second = pairs[..., 0] * sin + pairs[..., 1] * cos
    rest = x[:, 2 * count :]
    return jnp.concatenate([jnp.stack([first, second], -1).reshape(n, -1), rest], -1)


@dataclasses.dataclass(frozen=True)
class Mamba3(LinearAttention):
    """Mixes by Mamba-3: see `Mamba3Heads`, with the shape's h, d_k and d_v."""

    name: ClassVar[str] = "mamba3"
    fraction: float = 0.5

    def build(self, block: "Block", causal: bool) -> Mamba3Heads:
        """Makes the heads."""
        sizes = block.d_model, block.h, block.d_k, block.d_v
        return Mamba3Heads(*sizes, causal, block.norm.epsilon, self.fraction)

    def products(self, n: Any, causal: bool, block: "Block") -> Any:
        """Counts those of the matrices, and of a state that is written and read."""
        h, d_k, d_v = block.h, block.d_k, block.d_v
        angles = angles_of(self.fraction, d_k)
        matrices = block.d_model * (2 * d_k + angles + h * (3 * d_v + 3))
        directions = 1 if causal else 2
        return n * (matrices + directions * 2 * h * d_k * d_v)

    def check(self, block: "Block") -> None:
        """Raises ValueError for a fraction that turns nothing, or more than there is."""
        if not 0 < self.fraction <= 1 or angles_of(self.fraction, block.d_k) < 1:
            raise ValueError(
                f"fraction={self.fraction} of d_k={block.d_k} must be 2 features or more, and "
                "at most all"
            )
