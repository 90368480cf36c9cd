"""Positions that are counted by the scores themselves (CoPE).

B batch (any leading axes), N queries, M keys, H heads, J = H heads of keys, K = d_k,
V = d_v, P = the counts that are told apart, T entries of a cache.
"""

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attn.arguments import checked
from attn.arithmetic import Products
from attn.attention import attention
from attn.cache import check_keeps_all
from attn.context import Context
from attn.kernels.cached import from_cached
from attn.kernels.reference import all_heads, scores_of_head
from attn.masks import Mask
from attn.normalisers import Softmax
from attn.positions.base import Positions
from attn.pytrees import AnyArray, at_least_float32, pytree
from attn.scores import Dot, ScaledDot

if TYPE_CHECKING:
    from attn.config import Attention


def contextual_attention(
    q: Float[AnyArray, "*B N H K"],
    k: Float[AnyArray, "*B M J L"],
    v: Float[AnyArray, "*B M J V"],
    table: Float[Array, "P K"],
    *,
    places: Int[Array, "N"] | None = None,
    score: Any = ScaledDot(),
    normaliser: Any = Softmax(),
    mask: Mask | None = None,
    bias: Any = None,
    **arguments: Any,
) -> Any:
    """Computes attention that counts the keys between a query and a key by gates.

    Golovneva et al. 2024, "Contextual position encoding", section 4: with scores s_ij, and
    gates g_it = σ(s_it), 0 for keys that the mask hides,

        p_ij = min(P − 1, Σ g_it over t from j to i),  output_i = Σ_j a_ij v_j,
        a_i = normaliser(s_i + q_i · e(p_i)),

    where e at whole numbers is a row of `table`, which all heads share, and between them
    the line from one to the next. Theirs is causal only; a key after its query is counted
    from the other side, t from i to j. A table of zeros makes it `attention`. All scores
    stand side by side: memory is H·N·M, and there is no `implementation` to choose.

    `places` are the keys at whose places the queries stand, by default 0 to N − 1. The
    other arguments and the results are those of `attention`.

    Raises:
      ValueError: fewer heads of keys than of queries, a table of another width, fewer keys
        than queries without `places`, and what `attention` raises.
    """
    q, k, v, mask = checked(q, k, v, score, mask, bias)
    _check(q, k, table, places)
    if places is None:
        places = jnp.arange(q.shape[-3])
    of_head = functools.partial(_scores, table=table, places=places)
    arrays = dict(score=score, normaliser=normaliser, mask=mask, bias=bias)
    s = jnp.moveaxis(all_heads(of_head, q, k, v, **arrays), -2, -3)
    # Without features all scores are 0, and so the bias is what the softmax is of.
    without = dict(score=Dot(), normaliser=normaliser, mask=mask, bias=s)
    return attention(q[..., :0], k[..., :0], v, **without, **arguments)


def _check(q: AnyArray, k: AnyArray, table: Array, places: Array | None) -> None:
    """Raises ValueError for heads, a table or places that do not fit."""
    if k.shape[-2] != q.shape[-2]:
        raise ValueError(
            f"contextual positions have keys of each head's own: {q.shape[-2]} heads of "
            f"queries, {k.shape[-2]} of keys"
        )
    if jnp.ndim(table) != 2 or not len(table) or table.shape[1] != q.shape[-1]:
        raise ValueError(
            f"a table of shape {jnp.shape(table)} must be (P, d_k), P ≥ 1 and d_k = "
            f"{q.shape[-1]}"
        )
    n, m = q.shape[-3], k.shape[-3]
    if places is None and n > m:
        raise ValueError(
            f"{n} queries stand at the places of as many keys, and there are {m}: give "
            "places"
        )


def _scores(
    q: Array,
    k: Array,
    v: Array,
    *,
    table: Array,
    places: Array,
    mask: Any,
    **arguments: Any,
) -> Array:
    """Computes the scores of one head with what its positions add to them."""
    s = scores_of_head(q, k, v, mask=mask, **arguments)
    wide = at_least_float32(q.dtype)
    of_counts = q.astype(wide) @ table.astype(wide).T
    visible = mask.tile(jnp.arange(q.shape[0]), jnp.arange(k.shape[0]))
    gates = jnp.where(visible, jax.nn.sigmoid(s.astype(wide)), 0)
    counts = jnp.minimum(_counts(gates, places), len(table) - 1)
    return s + _between(of_counts, counts).astype(s.dtype)


def _counts(gates: Array, places: Array) -> Array:
    """Returns the sums of a row's gates from each key to the row's place, both included."""
    sums = jnp.cumsum(gates, axis=1)
    own_sum = jnp.take_along_axis(sums, places[:, None], axis=1)
    own_gate = jnp.take_along_axis(gates, places[:, None], axis=1)
    before = jnp.arange(gates.shape[1])[None] <= places[:, None]
    return jnp.where(before, own_sum - sums + gates, sums - own_sum + own_gate)


def _between(values: Array, at: Array) -> Array:
    """Returns a row's values at whole numbers, and on the lines between them."""
    below = jnp.clip(jnp.floor(at), 0, values.shape[1] - 1).astype(jnp.int32)
    above = jnp.minimum(below + 1, values.shape[1] - 1)
    share = at - below
    low = jnp.take_along_axis(values, below, axis=1)
    high = jnp.take_along_axis(values, above, axis=1)
    return low + share * (high - low)


@pytree
class Table:
    """The vectors of counts, which the heads of an attention share."""

    table: Any  # Float[Array, "P K"]


@dataclasses.dataclass(frozen=True)
class CoPE(Positions):
    """Counts the keys between query and key by gates, up to p_max (Golovneva et al. 2024).

    See `contextual_attention`; each layer has its own table of p_max + 1 vectors, 0 at
    first, for all heads. The paper's p_max is the length of training, or less. Memory is
    h·n².
    """

    name: ClassVar[str] = "contextual"
    # Gates, their sums, and what lies below and above these, too.
    floats_of_pair: ClassVar[float] = 12.0
    p_max: int = 64

    def in_attention(self, key: Array, a: "Attention", causal: bool) -> Table:
        """Makes the table; the key is not used."""
        return Table(jnp.zeros((self.p_max + 1, a.d_k)))

    def bias_of(
        self, value: Table, x: Float[Array, "B N D"], ctx: Context
    ) -> tuple[None, Context]:
        """Returns no bias: `attend` adds what the scores count."""
        return None, ctx

    def attend(
        self,
        value: Table,
        q: Float[Array, "*B N H K"],
        k: Float[Array, "*B M H L"],
        v: Float[Array, "*B M H V"],
        ctx: Context,
        **arguments: Any,
    ) -> Any:
        """Computes what `attention` returns, of tokens of one text."""
        return contextual_attention(q, k, v, value.table, **arguments)

    def over_cache(
        self,
        value: Table,
        q: Float[Array, "*B N H K"],
        k: Float[Array, "*B H K T"],
        v: Float[Array, "*B H T V"],
        ctx: Context,
        *,
        visible: Bool[Array, "*B n T"],
        best: bool = False,
        **arguments: Any,
    ) -> Float[Array, "*B N H V"]:
        """Computes the same over cached keys and values, in the order of their text.

        No key that is seen stands behind its query.

        Raises:
          ValueError: a cache that does not keep the whole text.
        """
        why = f"positions={self} count the keys of a text in its order"
        check_keeps_all(ctx, k.shape[-1], why)
        # Hidden entries count nothing, so the last one is as good a place as its own.
        last = jnp.full(q.shape[-3], k.shape[-1] - 1)
        mask = Mask.dense(visible[..., None, :, :])
        keys = from_cached(k, v)
        return contextual_attention(
            q, *keys, value.table, places=last, mask=mask, **arguments
        )

    def products(self, a: "Attention") -> Products:
        """Counts those of a head's query with each vector of the table."""
        return Products(query=a.h * a.d_k * (self.p_max + 1))

    def check(self, a: "Attention") -> None:
        """Raises ValueError for a p_max below 1, or heads without keys of their own."""
        if self.p_max < 1:
            raise ValueError(f"p_max={self.p_max} must be at least 1")
        if a.heads.acts or a.heads_of_keys != a.h or a.d_c:
            raise ValueError(
                "they need separate heads, each with its keys: not with "
                f"heads={a.heads}, h_kv={a.h_kv}, d_c={a.d_c}"
            )
        if a.residual.takes_scores:
            raise ValueError(
                f"positions={self} and residual={a.residual} both make scores"
            )
