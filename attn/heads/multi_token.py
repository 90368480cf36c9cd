"""Multi-token attention: scores are mixed with those of tokens nearby.

Golovneva et al. 2025, "Multi-token attention" (arXiv 2504.00927), section 3.1. B batch, N
queries, M keys, H heads, J heads of keys, K = d_k, V = d_v, T entries of a cache, P places of a
text, A queries and C keys of a kernel.
"""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attn.arithmetic import Products
from attn.attention import attention
from attn.cache import ancestors, check_keeps_all, sees, write_entries
from attn.context import Context
from attn.heads.base import Heads, Separate
from attn.kernels.cached import from_cached, over_cache
from attn.kernels.reference import all_heads, scores_of_head
from attn.masks import Mask
from attn.masks.near import dense_mask
from attn.scores import Dot

if TYPE_CHECKING:
    from attn.config import Attention


@dataclasses.dataclass(frozen=True)
class MultiToken(Heads):
    """s'_ij = Σ_a Σ_b θ_ab s_(i − a)(j + b), before the normaliser.

    a goes over the last `queries` queries, b over `keys` keys around j; each head learns its θ,
    at first 1 where a = b = 0, so that heads are separate. Scores of pairs that the query does
    not see, of either token, count as 0. Memory is h·n²·queries. The paper's mixture of heads
    and its norm after it are left out. Attention to another text is plain.
    """

    interact: ClassVar[bool] = False
    keeps: ClassVar[bool] = True
    is_quadratic: ClassVar[bool] = True
    # Scores before and after, and those of six queries.
    floats_of_pair: ClassVar[float] = 10.0
    queries: int = 6
    keys: int = 11

    def parameters(self, key: Array, a: "Attention") -> dict[str, Array]:
        """Makes θ (H, A, C); the key is not used."""
        kernel = jnp.zeros((a.h, self.queries, self.keys))
        return {"kernel": kernel.at[:, 0, self.keys // 2].set(1.0)}

    def attend(
        self,
        params: Mapping[str, Array],
        q: Float[Array, "B N H K"],
        k: Float[Array, "B N J K"],
        v: Float[Array, "B N J V"],
        ctx: Context,
        *,
        score: Any,
        normaliser: Any,
        mask: Mask,
        bias: Any = None,
        **arguments: Any,
    ) -> Any:
        """Computes the outputs (B, N, H, V) and, asked for, the weights."""
        values: dict[str, Any] = dict(
            score=score, normaliser=normaliser, mask=mask, bias=bias
        )
        s = jnp.moveaxis(all_heads(scores_of_head, q, k, v, **values), -2, -3)
        visible = dense_mask(mask, q.shape[:1], *s.shape[-2:])
        rows = []
        for back in range(self.queries):
            # A roll brings the last queries in front, which the first ones do not see.
            before = jnp.roll(visible, back, 1)
            sees = jnp.diagonal(jnp.roll(visible, back, 2), axis1=1, axis2=2)
            sees &= jnp.arange(s.shape[2])[None] >= back
            shown = before & visible & sees[..., None]
            rows.append(jnp.where(shown[:, None], jnp.roll(s, back, 2), 0))
        s = self._mixed(params, jnp.stack(rows, 2))
        q, k = (x[..., :0] for x in (q, k))
        # Without features all scores are 0, and so the bias is what the softmax is of.
        values |= dict(score=Dot(), bias=s)
        return attention(q, k, v, **values, **arguments)

    def _mixed(
        self, params: Mapping[str, Array], s: Float[Array, "B H A N M"]
    ) -> Float[Array, "B H N M"]:
        """Returns the sums over a and b."""
        b, h, a, n, m = s.shape
        rows = jnp.moveaxis(s, 3, 1).reshape(b * n, h * a, m)
        before = self.keys // 2
        mixed = jax.lax.conv_general_dilated(
            rows,
            params["kernel"].astype(s.dtype),
            window_strides=(1,),
            padding=[(before, self.keys - 1 - before)],
            feature_group_count=h,
        )
        return jnp.moveaxis(mixed.reshape(b, n, h, m), 1, 2)

    def empty_cache(self, a: "Attention", shape: tuple[int, int], dtype: Any) -> Array:
        """Returns room for the queries (B, T, H·K) of all tokens."""
        return jnp.zeros((*shape, a.h * a.d_k), dtype)

    def over_cache(
        self,
        params: Mapping[str, Array],
        q: Float[Array, "B N H K"],
        k: Float[Array, "B J K T"],
        v: Float[Array, "B J T V"],
        ctx: Context,
        *,
        visible: Bool[Array, "B n T"],
        own: Float[Array, "B T F"],
        score: Any,
        normaliser: Any,
        bias: Any = None,
        best: bool = False,
        first: Any = None,
    ) -> tuple[Float[Array, "B N H V"], Array]:
        """Computes the same over cached keys and values; returns what is kept of queries, too.

        Raises:
          ValueError: a cache that does not keep the whole text.
        """
        t, whole = ctx.decoding.t, ctx.decoding.visible
        why = f"heads={self} mix the scores of all neighbours in a text"
        check_keeps_all(ctx, k.shape[-1], why)
        b, n, h, width = q.shape
        own = write_entries(own, q.reshape(b, n, -1).astype(own.dtype), t)
        visible = jnp.broadcast_to(visible, (b, n, visible.shape[-1]))
        places = jnp.arange(k.shape[-1]) // n
        keys = from_cached(k, v)
        rows = []
        for back in range(self.queries):
            at = jnp.asarray(t) - back
            before = ancestors(own, whole, at).reshape(b, n, h, width)
            # Of one example or of all.
            last = jnp.broadcast_to(at, (b,))[:, None, None]
            shown = visible & (places[None, None] <= last)
            shown &= sees(whole, at)[..., None]
            mask = Mask.dense(shown[:, None])
            values: dict[str, Any] = dict(score=score, normaliser=normaliser, mask=mask)
            s = all_heads(scores_of_head, before, *keys, **values)
            s = jnp.moveaxis(s, -2, -3)
            # Of a place a hypothesis sees one entry of n.
            rows.append(s.reshape(*s.shape[:-1], -1, n).sum(-1))
        mixed = self._mixed(params, jnp.stack(rows, 2)).repeat(n, -1)
        options: dict[str, Any] = dict(
            normaliser=normaliser, visible=visible, best=best
        )
        q, k = q[..., :0], k[..., :0, :]
        return over_cache(q, k, v, score=Dot(), bias=mixed, **options), own

    def of_memory(self) -> Heads:
        """Returns separate heads."""
        return Separate()

    def products(self, a: "Attention") -> Products:
        """Counts those of a pair with the kernels."""
        return Products(pair=a.h * self.queries * self.keys)

    def check(self, a: "Attention") -> None:
        """Raises ValueError for an empty kernel, latents, or what is added to scores."""
        for name, value in (("queries", self.queries), ("keys", self.keys)):
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        if a.d_c:
            raise ValueError(f"they read keys: d_c={a.d_c} must be 0")
        if a.positions.in_layers and not a.positions.rotates:
            raise ValueError(
                f"they mix the scores of queries before, of which a cache keeps no bias: not "
                f"with positions={a.positions}"
            )

    def check_selection(self, selection: str) -> None:
        """Raises ValueError: the best key is that of one query's own scores."""
        raise ValueError(
            f"selection={selection} takes the best key of a query's own scores: "
            f"heads={self} must be separate"
        )
