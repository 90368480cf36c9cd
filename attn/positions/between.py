"""The base of positions that are told by the tokens between a key and its query.

Such positions change a key, token by token on the way to the place of the query, before the
two are multiplied. B batch, N queries, M keys, H heads, D = d_model, K = d_k, V = d_v, T
entries of a cache, F numbers that are read of a token for each head.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attn.attention import attention
from attn.cache import ancestors, check_keeps_all, lineage, write_entries
from attn.context import Context
from attn.kernels.cached import from_cached, over_cache
from attn.positions.base import Positions
from attn.pytrees import at_least_float32, pytree
from attn.scores import Dot

if TYPE_CHECKING:
    from attn.config import Attention


@pytree
class Tokens:
    """What `attend` and `over_cache` need of the tokens of x, in the place of a bias."""

    of_queries: Any  # Float[Array, "B N H F"]
    of_keys: Any  # Float[Array, "B M H F"]
    bad: Any = None  # Bool[Array, "B N"]: which held NaN or Inf


@dataclasses.dataclass(frozen=True)
class Between(Positions):
    """Compares queries and keys by what the tokens between them say; a base.

    A subclass makes a value by `in_attention` with two methods and a field `causal`:

      read(x): returns the numbers (B, N, H, F) of tokens x (B, N, D), in float32 at least.
      scores(q, k, of_tokens): returns the scores (N, N) of one head of one example, of
        queries and keys that come first in order, from those numbers of all tokens (N, F);
        those of keys after their query do not matter.

    and says what a step does by `scores_of_step`. Of a layer that is not causal, a key after
    its query is compared as it is from the other side, read backwards. Memory is h·n².
    """

    is_sum: ClassVar[bool] = False
    """Whether the numbers of a token are added to those of all tokens before it."""

    def bias_of(
        self, value: Any, x: Float[Array, "B N D"], ctx: Context
    ) -> tuple[Tokens, Context]:
        """Returns what `value` reads of x, in a step with what was read before."""
        # As 0: what tokens say is multiplied, and a weight of 0 would not keep NaN from others.
        bad = ~jnp.isfinite(x).all(-1)
        own = value.read(jnp.where(bad[..., None], 0, x))
        if ctx.decoding is None:
            own = jnp.cumsum(own, 1) if self.is_sum else own
            return Tokens(own, own, bad), ctx
        t, visible = ctx.decoding.t, ctx.decoding.visible
        kept, entries = ctx.cache
        flat = own.reshape(*own.shape[:2], -1)
        if self.is_sum:
            flat = flat + ancestors(entries, visible, t - 1)
        entries = write_entries(entries, flat.astype(entries.dtype), t)
        h = own.shape[2]
        own, all_entries = (x.reshape(*x.shape[:2], h, -1) for x in (flat, entries))
        return Tokens(own, all_entries), ctx.replace(cache=(kept, entries))

    def empty_cache(self, a: "Attention", shape: tuple[int, int], dtype: Any) -> Array:
        """Returns room for the numbers (B, T, H·F) of all tokens."""
        return jnp.zeros((*shape, a.h * self.features(a)), at_least_float32(dtype))

    def features(self, a: "Attention") -> int:
        """Returns F."""
        raise NotImplementedError(f"{type(self).__name__} has no features")

    def attend(
        self,
        value: Any,
        q: Float[Array, "*B N H K"],
        k: Float[Array, "*B N H K"],
        v: Float[Array, "*B N H V"],
        ctx: Context,
        *,
        score: Any,
        bias: Tokens,
        **arguments: Any,
    ) -> Any:
        """Computes what `attention` returns, of tokens of one text."""
        hidden = bias.bad[..., None, None]
        q, k = prepared(score, *(jnp.where(hidden, 0, x) for x in (q, k)))
        of_tokens = jnp.moveaxis(bias.of_queries, 2, 1)
        scores: Callable = value.scores
        if not value.causal:
            scores = functools.partial(_of_both_sides, value.scores, self.is_sum)
        s = jax.vmap(jax.vmap(scores))(q, k, of_tokens)
        # A query that sees a bad token is bad; of one that is hidden nothing is known.
        tainted = bias.bad[:, :, None] | bias.bad[:, None]
        s = jnp.where(tainted[:, None], jnp.nan, s)
        # Without features all scores are 0, and so the bias is what the softmax is of.
        none = jnp.zeros((*v.shape[:-1], 0), v.dtype)
        return attention(none, none, v, score=Dot(), bias=s, **arguments)

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
        raise NotImplementedError(f"{type(self).__name__} has no scores_of_step")

    def over_cache(
        self,
        value: Any,
        q: Float[Array, "*B N H K"],
        k: Float[Array, "*B H K T"],
        v: Float[Array, "*B H T V"],
        ctx: Context,
        *,
        score: Any,
        visible: Bool[Array, "*B n T"],
        bias: Tokens,
        **arguments: Any,
    ) -> Float[Array, "*B N H V"]:
        """Computes the same over cached keys and values.

        Raises:
          ValueError: a cache that does not keep the whole text.
        """
        why = f"positions={self} read the tokens of a text in its order"
        check_keeps_all(ctx, k.shape[-1], why)
        keys, _ = from_cached(k, v)
        q, keys = (jnp.moveaxis(x, 1, 2) for x in prepared(score, q, keys))
        s = self.scores_of_step(q, keys, bias, lineage(ctx))
        options: dict[str, Any] = dict(score=Dot(), visible=visible, bias=s)
        options |= arguments
        return over_cache(q[..., :0], k[..., :0, :], v, **options)

    def check(self, a: "Attention") -> None:
        """Raises ValueError for heads without keys of their own, or two makers of scores."""
        if a.heads.acts or a.heads_of_keys != a.h or a.d_c:
            raise ValueError(
                "they need separate heads, each with its keys: not with "
                f"heads={a.heads}, h_kv={a.h_kv}, d_c={a.d_c}"
            )
        if a.residual.takes_scores:
            raise ValueError(
                f"positions={self} and residual={a.residual} both make scores"
            )


def prepared(
    score: Any, q: Float[Array, "B N H K"], k: Float[Array, "B M H K"]
) -> tuple[Float[Array, "B H N K"], Float[Array, "B H M K"]]:
    """Returns vectors, in float32 at least, whose product is the score of each head.

    Raises:
      ValueError: a score that is no product.
    """
    if not score.is_product:
        raise ValueError(
            f"positions between a query and a key change what is multiplied, and "
            f"{type(score).__name__} multiplies nothing: scaled_dot, dot, bilinear and "
            "qk_norm do"
        )
    h = q.shape[2]

    def for_each_head(leaf):
        return jnp.broadcast_to(leaf, (h, *jnp.shape(leaf)[1:]))

    def of_head(score, q, k):
        wide = at_least_float32(q.dtype)
        _, q, k = score.prepare(q, k)
        return q.astype(wide), k.astype(wide)

    of_heads = jax.vmap(of_head, (0, 1, 1))
    of_examples = jax.vmap(of_heads, (None, 0, 0))
    return of_examples(jax.tree.map(for_each_head, score), q, k)


def _of_both_sides(
    scores: Callable, is_sum: bool, q: Array, k: Array, of_tokens: Array
) -> Array:
    # Read backwards a sum falls where it rose.
    backwards = -of_tokens if is_sum else of_tokens
    flipped = (jnp.flip(x, 0) for x in (q, k, backwards))
    behind = jnp.flip(scores(*flipped), (0, 1))
    place = jnp.arange(len(q))
    return jnp.where(place[:, None] >= place[None], scores(q, k, of_tokens), behind)
