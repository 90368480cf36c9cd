"""Attention in three branches: blocks as a whole, the blocks picked, and what is near (NSA).

Yuan et al. 2025, "Native sparse attention" (arXiv 2502.11089), section 3. B batch (any leading
axes), N queries, M keys, H heads, J heads of keys, K = d_k, V = d_v, C blocks.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from attn.arithmetic import Products
from attn.functions.top_k import is_in_top
from attn.heads.blocks import OfBlocks, Pairs
from attn.normalisers import Softmax

if TYPE_CHECKING:
    from attn.config import Attention


@dataclasses.dataclass(frozen=True)
class NativeSparse(OfBlocks):
    """head_i = Σ_b g_b·(branch b), g_b = σ(q_i · w_b + c_b), over three branches of attention.

    - compressed: attention to whole blocks of `size` tokens, by the mean scores and the mean
      values of those that the query sees all of;
    - selected: to the tokens of `count` blocks: its own, the first of the text, and those of
      the greatest compressed weights, in the sum over the heads that share keys;
    - near: to the last `window` tokens.

    The choice of blocks has no gradient. The paper compresses by a small network, where this
    takes the mean, and gates by the token, where this takes the head's query. A query that
    sees no whole block has 0 of the first branch.
    """

    # Scores, and three times who sees whom and the weights.
    floats_of_pair: ClassVar[float] = 8.0
    branches: ClassVar[int] = 3
    count: int = 4
    window: int = 32

    def parameters(self, key: Array, a: "Attention") -> dict[str, Array]:
        """Draws w (H, K, 3), Glorot-uniform over K, and b (H, 3), which is 0."""
        draw = nn.initializers.glorot_uniform(1, 2, batch_axis=0)
        return dict(w=draw(key, (a.h, a.width + a.d_r, 3)), b=jnp.zeros((a.h, 3)))

    def _of_pairs(
        self,
        params: Mapping[str, Array],
        q: Float[Array, "*B N H K"],
        h_kv: int,
        pairs: Pairs,
        *attends: Callable,
    ) -> Any:
        is_whole = pairs.seen == self.size
        picked = self._picked(pairs, is_whole, h_kv)
        near = (pairs.back >= 0) & (pairs.back < self.window)
        shown = (pairs.of_tokens(is_whole) > 0, pairs.of_tokens(picked) > 0, near)
        # Tokens of a block that have its score share its weight, and so have its values.
        scores = (pairs.of_tokens(pairs.means), pairs.s, pairs.s)
        gates = jnp.einsum("...nhk,hkb->...nhb", q, params["w"].astype(q.dtype))
        bias = jnp.broadcast_to(params["b"].astype(q.dtype), gates.shape)
        gates = nn.sigmoid(gates + bias)

        def branch(b):
            gate = gates[..., b, None]
            result = attends[b](scores[b], pairs.visible & shown[b])
            if not isinstance(result, tuple):
                return gate * result
            out, weights = result
            return gate * out, jnp.swapaxes(gate, -2, -3) * weights

        return jax.tree.map(lambda *parts: sum(parts), *map(branch, range(3)))

    def _picked(
        self, pairs: Pairs, is_whole: Bool[Array, "*B 1 N C"], h_kv: int
    ) -> Bool[Array, "*B H N C"]:
        """Returns the blocks whose tokens a query sees."""
        *batch, h, n, c = pairs.means.shape
        scores = jnp.where(is_whole, pairs.means, -jnp.inf)
        p = jnp.where(is_whole, jax.nn.softmax(scores, where=is_whole), 0)
        p = p.reshape(*batch, h_kv, h // h_kv, n, c).sum(-3)
        # Above any sum of weights.
        p = jnp.where(pairs.own, 2.0 * h, jnp.where(jnp.arange(c) == 0, h + 1.0, p))
        is_seen = pairs.seen > 0
        best = is_in_top(jnp.where(is_seen, p, -jnp.inf), self.count) & is_seen
        return jnp.repeat(best, h // h_kv, -3)

    def products(self, a: "Attention") -> Products:
        """Counts those of gates and of two more branches; scores are those of all pairs."""
        of_gates = 3 * a.h * (a.width + a.d_r)
        return Products(query=of_gates, pair=2 * a.h * a.d_v)

    def check(self, a: "Attention") -> None:
        """Raises ValueError for another normaliser than softmax, too."""
        super().check(a)
        if a.normaliser not in ("softmax", Softmax):
            # Tokens with the mean score of their block are as one key of it by softmax alone.
            raise ValueError(f"blocks as a whole take softmax, not {a.normaliser}")
