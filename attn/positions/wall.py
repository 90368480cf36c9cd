"""Wall attention: each feature of a key decays on the way to its query.

As flash-linear-attention has it (fla/layers/wall_attn.py, 2026). B batch, N tokens, H heads,
D = d_model, K = d_k, T entries of a cache.
"""

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attn.arithmetic import Products
from attn.positions.between import Between, Tokens
from attn.pytrees import at_least_float32, pytree
from attn.recurrent.gated import decayed_products

if TYPE_CHECKING:
    from attn.config import Attention


@pytree
class Decays:
    """Reads log a = log σ(x w + b) of each head and feature."""

    w: Any  # Float[Array, "D H K"]
    b: Any  # Float[Array, "H K"]
    causal: bool = dataclasses.field(metadata=dict(static=True))

    def read(self, x: Float[Array, "B N D"]) -> Float[Array, "B N H K"]:
        """Returns log a, which are at most 0."""
        logits = jnp.einsum("bnd,dhk->bnhk", x, self.w)
        logits = logits.astype(at_least_float32(logits.dtype))
        return jax.nn.log_sigmoid(logits + self.b[None, None].astype(logits.dtype))

    def scores(
        self, q: Float[Array, "N K"], k: Float[Array, "N K"], total: Float[Array, "N K"]
    ) -> Float[Array, "N N"]:
        """Returns Σ_d q_id k_jd exp(total_id − total_jd), 0 for keys after their query."""
        sees = jnp.tril(jnp.ones((len(q), len(q)), bool))
        return decayed_products(q, k, total, sees)


@dataclasses.dataclass(frozen=True)
class Wall(Between):
    """score_ij = Σ_d q_id k_jd Π_(j < t ≤ i) a_td, a = σ(x w + b) for each head and feature.

    b is `gates` at first, so that a decay of σ(8) hardly changes a product. With decays of 1
    it is one. No exponent is above 0, and nothing is divided by decays.
    """

    name: ClassVar[str] = "wall"
    is_sum: ClassVar[bool] = True
    # Scores before and after the normaliser, and what the products are joined from.
    floats_of_pair: ClassVar[float] = 4.0
    gates: float = 8.0

    def in_attention(self, key: Array, a: "Attention", causal: bool) -> Decays:
        """Draws w, Glorot-uniform; b is `gates`."""
        glorot = jax.nn.initializers.glorot_uniform(0, (1, 2))
        shape = a.h, a.d_k
        b = jnp.full(shape, float(self.gates))
        return Decays(glorot(key, (a.d_model, *shape)), b, causal)

    def features(self, a: "Attention") -> int:
        """Returns a number for each feature of a key."""
        return a.d_k

    def scores_of_step(
        self,
        q: Float[Array, "B N H K"],
        k: Float[Array, "B T H K"],
        tokens: Tokens,
        own: Bool[Array, "B N T"],
    ) -> Float[Array, "B H N T"]:
        """Returns the scores of a step's tokens with all entries of a cache.

        `own` are those that each token's hypothesis grew from.
        """
        change = tokens.of_queries[:, :, None] - tokens.of_keys[:, None]
        # Entries of other hypotheses may be less: they are hidden.
        decay = jnp.exp(jnp.minimum(change, 0))
        return jnp.einsum("bnhk,bthk,bnthk->bhnt", q, k, decay)

    def products(self, a: "Attention") -> Products:
        """Counts those of the projection."""
        return Products(query=a.d_model * a.h * a.d_k)
