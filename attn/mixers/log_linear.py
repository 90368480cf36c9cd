"""Log-linear attention as a layer of heads: a state for each of a few spans of the past.

Guo et al. 2025, "Log-linear attention" (arXiv 2506.04761), on Mamba-2's decays. B examples, N
positions, D = d_model, H heads, V = d_v, F features.
"""

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

import flax.linen as nn
import numpy as np
from jaxtyping import Array, Float

from attn.mixers.linear import to_heads
from attn.mixers.mamba import Mamba2, Mamba2Heads
from attn.recurrent.log_linear import log_linear, log_linear_step

if TYPE_CHECKING:
    from attn.config import Block


class LogLinearHeads(Mamba2Heads):
    """The heads of log-linear attention on Mamba-2 (Guo et al. 2025, section 3.3).

    As `Mamba2Heads`, but y_t = Σ_l λ_t^(l) (S_t^(l))ᵀ q_t + d v_t of `levels` states, see
    `log_linear`, λ = softplus(x W_λ). A decoder's cache has as many states, whatever the
    length. Spans of 2^(levels − 2) tokens and longer share the last. Theirs has a factor to
    x W_λ for each head and level, which W_λ can have; it is left out.

    Parameters beside those of `Mamba2Heads`: d_model·h·levels.
    """

    levels: int = 12

    def setup(self) -> None:
        """Draws what Mamba-2 has, and W_λ; raises ValueError for too few or many levels."""
        check_levels(self.levels)
        super().setup()
        into_heads = nn.initializers.glorot_uniform(0, (1, 2))
        shape = self.d_model, self.h, self.levels
        self.w_levels = self.param("w_levels", into_heads, shape)

    def arrays(self, x: Float[Array, "B N D"]) -> tuple[Array, ...]:
        """Returns queries, keys, values Δ v, log a and λ, of each head."""
        return *super().arrays(x), nn.softplus(to_heads(x, self.w_levels))

    @staticmethod
    def rule(*arrays: Array, begins: Array, is_backwards: bool) -> Array:
        """Computes the outputs (N, V) of one head from all positions."""
        # In an encoder both directions together see each position once.
        return log_linear(*arrays, begins=begins, own=not is_backwards)

    step = staticmethod(log_linear_step)

    @property
    def state_shape(self) -> tuple[int, int]:
        """The shape of a head's states, and of a row for the number of tokens."""
        return self.levels * self.d_k + 1, self.d_v


@dataclasses.dataclass(frozen=True)
class LogLinear(Mamba2):
    """Mixes by log-linear attention: see `LogLinearHeads`, with the shape's h, d_k and d_v.

    `levels` is how many states a head has, from 2 to 25.
    """

    name: ClassVar[str] = "log_linear"
    levels: int = 12

    def build(self, block: "Block", causal: bool) -> LogLinearHeads:
        """Makes the heads."""
        sizes = block.d_model, block.h, block.d_k, block.d_v
        return LogLinearHeads(*sizes, causal, block.norm.epsilon, levels=self.levels)

    def products(self, n: Any, causal: bool, block: "Block") -> Any:
        """Counts those of the matrices, and of the states that are written and read."""
        of_state = block.h * block.d_k * block.d_v
        directions = 1 if causal else 2
        further = _states_read(n, self.levels) * directions * of_state
        weights = n * block.d_model * block.h * self.levels
        return super().products(n, causal, block) + weights + further

    def check(self, block: "Block") -> None:
        """Raises ValueError for too few levels or too many."""
        check_levels(self.levels)


def check_levels(levels: int) -> None:
    """Raises ValueError below 2, and above 25, where the count is not exact in float32."""
    if not 2 <= levels <= 25:
        raise ValueError(f"levels={levels} must be at least 2 and at most 25")


def _states_read(n: Any, levels: int) -> Any:
    """Counts the spans before each of n tokens, beside the token itself."""
    count = np.maximum(n - (1 << (levels - 2)), 0)
    for digit in range(levels - 2):
        # The numbers below n that have a one here.
        half = 1 << digit
        count = count + n // (2 * half) * half + np.maximum(n % (2 * half) - half, 0)
    return count
