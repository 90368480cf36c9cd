"""Kimi Delta Attention: the delta rule with a decay for each feature of a key.

Kimi Team 2025, "Kimi Linear" (arXiv 2510.26692). B examples, N positions, D = d_model,
H heads, K = d_k, V = d_v, R = the rank of decays and gates, F features.
"""

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn.mixers.linear import (
    DeltaHeads,
    DeltaNet,
    inverse_softplus_of_times,
    log_rates,
    plus,
    to_heads,
)

if TYPE_CHECKING:
    from attn.config import Block


class KimiDeltaHeads(DeltaHeads):
    """Kimi Delta Attention (section 4).

    S_t = (I − β_t k_t k_tᵀ) diag(a_t) S_t−1 + β_t k_t v_tᵀ, head_t = RMSNorm(S_tᵀ q_t) ∘
    σ(x W_1 W_2 + b), with queries, keys and β of `DeltaHeads`, values swish(x W) and decays
    a = exp(−e^A softplus(x W_3 W_4 + b)), A one number a head. W_1 and W_3 have d_v columns.
    Theirs has short convolutions in the projections; `short(inner=kda)` has one before.

    Parameters beside those of `DeltaHeads`: d_v·(d_model + h·d_k) + h·(d_k + 1) of decays,
    d_v·(d_model + h·d_v) + h·d_v of gates.
    """

    def setup(self) -> None:
        """Draws projections, β's, decays and gates."""
        super().setup()
        glorot = nn.initializers.glorot_uniform
        into_heads = glorot(0, (1, 2))
        rank, h = self.d_v, self.h
        self.w_a_1 = self.param("w_a_1", glorot(), (self.d_model, rank))
        self.w_a_2 = self.param("w_a_2", into_heads, (rank, h, self.d_k))
        self.log_rate = self.param("log_rate", log_rates, (h, 1))
        self.b_a = self.param("b_a", inverse_softplus_of_times, (h, self.d_k))
        self.w_r_1 = self.param("w_r_1", glorot(), (self.d_model, rank))
        self.w_r_2 = self.param("w_r_2", into_heads, (rank, h, self.d_v))
        self.b_r = self.param("b_r", nn.initializers.zeros, (h, self.d_v))

    def arrays(self, x: Float[Array, "B N D"]) -> tuple[Array, ...]:
        """Returns queries, keys, values, β and log a (B, N, H, K)."""
        q, k, v, beta = super().arrays(x)
        time = nn.softplus(plus(to_heads(x @ self.w_a_1, self.w_a_2), self.b_a))
        rate = jnp.exp(self.log_rate)
        log_decay = -time * rate.reshape((1,) * (time.ndim - 2) + rate.shape)
        return q, k, nn.swish(v), beta, log_decay

    def finish(
        self,
        x: Float[Array, "B N D"],
        out: Float[Array, "B N H V"],
    ) -> Float[Array, "B N H V"]:
        """Returns RMSNorm(out) ∘ σ(x W_1 W_2 + b)."""
        gate = nn.sigmoid(plus(to_heads(x @ self.w_r_1, self.w_r_2), self.b_r))
        return self.norm(out) * gate


@dataclasses.dataclass(frozen=True)
class KimiDelta(DeltaNet):
    """Mixes by Kimi Delta Attention: see `KimiDeltaHeads`, options as of DeltaNet."""

    name: ClassVar[str] = "kda"
    heads: ClassVar[type] = KimiDeltaHeads

    def products(self, n: Any, causal: bool, block: "Block") -> Any:
        """Counts those of DeltaNet, of the decays and of the gate."""
        rank, h = block.d_v, block.h
        more = rank * (2 * block.d_model + h * (block.d_k + block.d_v))
        return super().products(n, causal, block) + n * more
