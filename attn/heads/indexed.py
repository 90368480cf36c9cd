"""Attention to the keys that a small indexer picks for all heads (DeepSeek sparse attention).

DeepSeek-AI 2025, "DeepSeek-V3.2" (arXiv 2512.02556), section 2.1. B batch (any leading axes),
N queries, M keys, H heads, J heads of keys, K = d_k, V = d_v, T entries of a cache, G heads and
W features of the indexer.
"""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from attn.arithmetic import Products
from attn.attention import attention
from attn.cache import begin_at
from attn.context import Context
from attn.functions.top_k import is_in_top
from attn.heads.base import Heads, Separate
from attn.kernels.cached import over_cache
from attn.masks import Mask
from attn.masks.near import dense_mask
from attn.pytrees import at_least_float32

if TYPE_CHECKING:
    from attn.config import Attention


@dataclasses.dataclass(frozen=True)
class IndexedHeads(Heads):
    """A query sees the `k` keys of its greatest I_ij = Σ_g w_ig ReLU(q_ig · k_j).

    q_i = W_Q (the queries of all heads), k_j = W_K (their keys), w_i = W (the queries): the
    indexer's `indexers` heads of `width` features. All heads see the same keys. The choice has
    no gradient; what trains the indexer is its `loss`, and nothing else, which sends none to
    queries and keys. With as many keys as k it is plain attention. In the paper the indexer
    reads the token itself, of which queries and keys are linear maps.

    Memory is h·n²: this is the definition, whose scores are all computed. Attention to another
    text is plain.
    """

    # The indexer's scores of each of its heads, and the weights.
    floats_of_pair: ClassVar[float] = 6.0
    is_quadratic: ClassVar[bool] = True
    k: int = 16
    indexers: int = 4
    width: int = 16

    def parameters(self, key: Array, a: "Attention") -> dict[str, Array]:
        """Draws W_Q (H·K, G, W), W_K (J·K, W) and W (H·K, G), Glorot-uniform."""
        of_queries, of_keys, of_weights = jax.random.split(key, 3)
        of_head = a.width + a.d_r
        wide = a.h * of_head
        into_heads = nn.initializers.glorot_uniform(0, (1, 2))
        glorot = nn.initializers.glorot_uniform()
        return dict(
            w_q=into_heads(of_queries, (wide, self.indexers, self.width)),
            w_k=glorot(of_keys, (a.heads_of_keys * of_head, self.width)),
            w=glorot(of_weights, (wide, self.indexers)),
        )

    def attend(
        self,
        params: Mapping[str, Array],
        q: Float[Array, "*B N H K"],
        k: Float[Array, "*B M J K"],
        v: Float[Array, "*B M J V"],
        ctx: Context,
        *,
        mask: Mask,
        **arguments: Any,
    ) -> Any:
        """Computes the outputs (*B, N, H, V) and, asked for, the weights."""
        visible = dense_mask(mask, q.shape[:-3], q.shape[-3], k.shape[-3])
        picked = Mask.dense(self._picked(self._index(params, q, k), visible))
        return attention(q, k, v, mask=picked, **arguments)

    def loss(
        self,
        params: Mapping[str, Array],
        q: Float[Array, "*B N H K"],
        k: Float[Array, "*B M J K"],
        v: Float[Array, "*B M J V"],
        ctx: Context,
        *,
        mask: Mask,
        **arguments: Any,
    ) -> Float[Array, "*B N"]:
        """Computes KL(p_i ‖ softmax(I_i)) over the keys that query i sees.

        p_i are the heads' weights, their sum divided by its own; 0 where it sees none.
        """
        visible = dense_mask(mask, q.shape[:-3], q.shape[-3], k.shape[-3])
        index = self._index(params, q, k)
        picked = self._picked(index, visible)
        arguments["mask"] = Mask.dense(picked)
        _, weights = attention(q, k, v, return_weights=True, **arguments)
        p = jax.lax.stop_gradient(weights).astype(index.dtype).sum(-3)
        total = p.sum(-1, keepdims=True)
        p = p / jnp.where(total > 0, total, 1)
        picked = picked[..., 0, :, :]
        # Where nothing is seen all count, as a sum over nothing has no logarithm.
        counted = picked | ~picked.any(-1, keepdims=True)
        total = jax.nn.logsumexp(index, -1, keepdims=True, where=counted)
        # 0 · ln 0 is 0.
        logs = jnp.log(jnp.where(p > 0, p, 1))
        return (p * (logs - index + total)).sum(-1)

    def over_cache(
        self,
        params: Mapping[str, Array],
        q: Float[Array, "*B N H K"],
        k: Float[Array, "*B J K T"],
        v: Float[Array, "*B J T V"],
        ctx: Context,
        *,
        visible: Bool[Array, "*B n T"],
        first: Int[Array, "*t"] | None = None,
        **arguments: Any,
    ) -> Float[Array, "*B N H V"]:
        """Computes the same over cached keys and values."""
        index = self._index(params, q, jnp.moveaxis(k, -1, -3))
        if first is None:
            picked = self._picked(index, visible)[..., 0, :, :]
            return over_cache(q, k, v, visible=picked, **arguments)
        # Of tokens with one index the first in the text are picked, not in the ring.
        index, visible = (begin_at(x, first) for x in (index, visible))
        picked = begin_at(self._picked(index, visible)[..., 0, :, :], -first)
        return over_cache(q, k, v, visible=picked, first=first, **arguments)

    def _index(
        self,
        params: Mapping[str, Array],
        q: Float[Array, "*B N H K"],
        k: Float[Array, "*B M J K"],
    ) -> Float[Array, "*B N M"]:
        """Returns I, at least in float32, which has no gradient but that of the parameters."""
        q, k = (
            jax.lax.stop_gradient(x).reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])
            for x in (q, k)
        )
        w_q, w_k, w = (params[name].astype(q.dtype) for name in ("w_q", "w_k", "w"))
        exact: Any = dict(preferred_element_type=at_least_float32(q.dtype))
        queries = jnp.einsum("...nd,dgw->...ngw", q, w_q)
        fits = jnp.einsum("...ngw,...mw->...ngm", queries, k @ w_k, **exact)
        # In bfloat16 keys that differ by a hundredth would be equal, and the first picked.
        weights = jnp.einsum("...nd,dg->...ng", q, w, **exact)
        return jnp.einsum("...ng,...ngm->...nm", weights, jax.nn.relu(fits), **exact)

    def _picked(
        self, index: Float[Array, "*B N M"], visible: Bool[Array, "*B n M"]
    ) -> Bool[Array, "*B 1 N M"]:
        best = is_in_top(jnp.where(visible, index, -jnp.inf), self.k)
        return (best & visible)[..., None, :, :]

    def of_memory(self) -> Heads:
        """Returns separate heads."""
        return Separate()

    def products(self, a: "Attention") -> Products:
        """Counts those of the indexer; the scores are those of all pairs, as without it."""
        of_head, each = a.width + a.d_r, self.indexers * (self.width + 1)
        of_key = a.heads_of_keys * of_head * self.width
        return Products(query=a.h * of_head * each, key=of_key, pair=each)

    def check(self, a: "Attention") -> None:
        """Raises ValueError for no key, an empty indexer, or latents."""
        for name in ("k", "indexers", "width"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        if a.d_c:
            raise ValueError(f"they read keys: d_c={a.d_c} must be 0")
