"""Attention in three branches: blocks as a whole, the blocks picked, and what is near (NSA).

Yuan et al. 2025, "Native sparse attention" (arXiv 2502.11089), section 3. B batch (any leading
axes), N queries, M keys, H heads, J heads of keys, K = d_k, V = d_v, C blocks.
"""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Int

from attn.arithmetic import Products
from attn.attention import attention
from attn.functions.top_k import is_in_top
from attn.heads.blocks import OfBlocks
from attn.kernels.reference import all_heads, scores_of_head
from attn.masks import Mask
from attn.masks.near import dense_mask
from attn.scores import Dot

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
    count: int = 4
    window: int = 32

    def parameters(self, key: Array, a: "Attention") -> dict[str, Array]:
        """Draws w (H, K, 3), Glorot-uniform over K, and c (H, 3), which is 0."""
        draw = nn.initializers.glorot_uniform(1, 2, batch_axis=0)
        return dict(w=draw(key, (a.h, a.width + a.d_r, 3)), c=jnp.zeros((a.h, 3)))

    def _attend(
        self,
        params: Mapping[str, Array],
        q: Array,
        k: Array,
        v: Array,
        of_queries: Int[Array, "*B N"],
        of_keys: Int[Array, "*B M"],
        length: int,
        *,
        score: Any,
        normaliser: Any,
        mask: Mask,
        bias: Any = None,
        return_weights: bool = False,
        **arguments: Any,
    ) -> Any:
        values = dict(score=score, normaliser=normaliser, mask=mask, bias=bias)
        s = jnp.moveaxis(all_heads(scores_of_head, q, k, v, **values), -2, -3)
        visible = dense_mask(mask, q.shape[:-3], q.shape[-3], k.shape[-3])
        back = of_queries[..., :, None] - of_keys[..., None, :]
        near = visible & (back >= 0) & (back < self.window)
        visible, near = (x[..., None, :, :] for x in (visible, near))
        # Which block each key, and each query, is of.
        blocks, own = (
            self._of_block(x, length, s.dtype)[..., None, :, :]
            for x in (of_keys, of_queries)
        )

        def of_tokens(x):
            """Gives what is said of blocks (…, N, C) to their tokens (…, N, M)."""
            return jnp.einsum("...nc,...mc->...nm", x.astype(s.dtype), blocks)

        seen = jnp.einsum("...nm,...mc->...nc", visible.astype(s.dtype), blocks)
        means = jnp.einsum("...nm,...mc->...nc", s, blocks) / jnp.maximum(seen, 1)
        is_whole = seen == self.size
        picked = self._picked(means, is_whole, seen > 0, own > 0, k.shape[-2])
        branches = (
            # Tokens of a block that have its score share its weight, and so have its values.
            (of_tokens(means), visible & (of_tokens(is_whole) > 0)),
            (s, visible & (of_tokens(picked) > 0)),
            (s, near),
        )
        gates = jnp.einsum("...nhk,hkb->...nhb", q, params["w"].astype(q.dtype))
        c = jnp.broadcast_to(params["c"].astype(q.dtype), gates.shape)
        gates = nn.sigmoid(gates + c)
        # Without features all scores are 0, and so the bias is what the softmax is of.
        q, k = (x[..., :0] for x in (q, k))
        arguments |= dict(
            score=Dot(), normaliser=normaliser, return_weights=return_weights
        )
        outputs, weights = [], []
        for b, (scores, shown) in enumerate(branches):
            out = attention(q, k, v, mask=Mask.dense(shown), bias=scores, **arguments)
            gate = gates[..., b, None]
            if return_weights:
                out, of_pairs = out
                weights.append(jnp.swapaxes(gate, -2, -3) * of_pairs)
            outputs.append(gate * out)
        return (sum(outputs), sum(weights)) if return_weights else sum(outputs)

    def _picked(
        self, means: Array, is_whole: Array, is_seen: Array, own: Array, h_kv: int
    ) -> Array:
        """Returns the blocks whose tokens a query sees, (*B, H, N, C)."""
        *batch, h, n, c = means.shape
        p = jax.nn.softmax(jnp.where(is_whole, means, -jnp.inf), where=is_whole)
        p = jnp.where(is_whole, p, 0).reshape(*batch, h_kv, h // h_kv, n, c).sum(-3)
        is_first = jnp.arange(c) == 0
        p = jnp.where(own, 2.0 * h, jnp.where(is_first, h + 1.0, p))
        best = is_in_top(jnp.where(is_seen, p, -jnp.inf), self.count) & is_seen
        return jnp.repeat(best, h // h_kv, -3)

    def products(self, a: "Attention") -> Products:
        """Counts those of gates and of two more branches; scores are those of all pairs."""
        of_gates = 3 * a.h * (a.width + a.d_r)
        return Products(query=of_gates, pair=2 * a.h * a.d_v)
