"""Attention to the keys of a few blocks, which each query picks (MoBA).

Lu et al. 2025, "MoBA: mixture of block attention for long-context LLMs" (arXiv 2502.13189).
B batch (any leading axes), N queries, M keys, H heads, J heads of keys, K = d_k, V = d_v,
T entries of a cache, C blocks.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from attn.arithmetic import Products
from attn.attention import attention
from attn.cache import check_keeps_all
from attn.context import Context
from attn.functions.top_k import is_in_top
from attn.heads.base import Heads, Separate
from attn.kernels.cached import from_cached
from attn.kernels.reference import all_heads, scores_of_head
from attn.masks import Mask
from attn.masks.near import dense_mask
from attn.random_bits import split_each, typed_key
from attn.scores import Dot

if TYPE_CHECKING:
    from attn.config import Attention


class Pairs(NamedTuple):
    """Holds the pairs of queries and keys, and of queries and blocks."""

    s: Float[Array, "*B H N M"]
    """The scores, 0 where the mask hides."""
    visible: Bool[Array, "*B 1 N M"]
    back: Int[Array, "*B 1 N M"]
    """The tokens from a key on to a query."""
    blocks: Float[Array, "*B 1 M C"]
    """1 where a key is of a block, else 0."""
    own: Bool[Array, "*B 1 N C"]
    """Whether a query is of a block."""
    seen: Float[Array, "*B 1 N C"]
    """The keys of a block that a query sees."""
    means: Float[Array, "*B H N C"]
    """The mean scores of these, 0 of none."""

    def of_tokens(self, x: Shaped[Array, "*B H N C"]) -> Float[Array, "*B H N M"]:
        """Returns for each key what is said of its block."""
        return jnp.einsum("...nc,...mc->...nm", x.astype(self.s.dtype), self.blocks)


def _keys_of(dropout_key: Array | None, branches: int) -> list[Array | None]:
    """Returns a key of each branch's own, of one branch the key itself."""
    if dropout_key is None or branches == 1:
        return [dropout_key] * branches
    keys = split_each(typed_key(dropout_key), branches)
    return [keys[..., branch] for branch in range(branches)]


def _attend(
    q: Array, k: Array, v: Array, scores: Array, shown: Array, **arguments: Any
) -> Any:
    """Computes attention by scores (*B, H, N, M) to the keys that are shown."""
    # Without features all scores are 0, and so the bias is what the softmax is of.
    q, k = (x[..., :0] for x in (q, k))
    mask = Mask.dense(shown)
    return attention(q, k, v, score=Dot(), mask=mask, bias=scores, **arguments)


@dataclasses.dataclass(frozen=True)
class OfBlocks(Heads):
    """The base of heads that read a text block by block, counted from its beginning.

    A subclass has `size`, a block's tokens, and `_of_pairs`. Memory is h·n²: these are
    definitions, whose scores are all computed. Attention to another text is plain.
    """

    interact: ClassVar[bool] = False
    is_quadratic: ClassVar[bool] = True
    branches: ClassVar[int] = 1
    """How many attentions are computed."""
    size: int = 16

    def attend(
        self,
        params: Mapping[str, Array],
        q: Float[Array, "*B N H K"],
        k: Float[Array, "*B N J K"],
        v: Float[Array, "*B N J V"],
        ctx: Context,
        **arguments: Any,
    ) -> Any:
        """Computes the outputs (*B, N, H, V) and, asked for, the weights."""
        n = q.shape[-3]
        places = jnp.arange(n) if ctx.places is None else jnp.asarray(ctx.places)
        places = jnp.broadcast_to(places, (*q.shape[:-3], n))
        return self._attend(params, q, k, v, places, places, n, **arguments)

    def over_cache(
        self,
        params: Mapping[str, Array],
        q: Float[Array, "*B N H K"],
        k: Float[Array, "*B J K T"],
        v: Float[Array, "*B J T V"],
        ctx: Context,
        *,
        visible: Bool[Array, "*B n T"],
        best: bool = False,
        **arguments: Any,
    ) -> Float[Array, "*B N H V"]:
        """Computes the same over cached keys and values.

        Raises:
          ValueError: a cache that does not keep the whole text.
        """
        room = k.shape[-1]
        check_keeps_all(ctx, room, f"heads={self} count the blocks of a text")
        hypotheses = ctx.decoding.visible.shape[-2]
        batch = q.shape[:-3]
        of_keys = jnp.broadcast_to(jnp.arange(room) // hypotheses, (*batch, room))
        t = jnp.asarray(ctx.decoding.t)
        t = t.reshape(*t.shape, *(1,) * (len(batch) + 1 - t.ndim))
        of_queries = jnp.broadcast_to(t, (*batch, q.shape[-3]))
        mask = Mask.dense(visible[..., None, :, :])
        count = room // hypotheses
        places = of_queries, of_keys, count
        kv = from_cached(k, v)
        return self._attend(params, q, *kv, *places, mask=mask, **arguments)

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
        dropout_key: Array | None = None,
        **arguments: Any,
    ) -> Any:
        """Computes what `attend` does, of texts of at most `length` tokens."""
        values = dict(score=score, normaliser=normaliser, mask=mask, bias=bias)
        s = jnp.moveaxis(all_heads(scores_of_head, q, k, v, **values), -2, -3)
        visible = dense_mask(mask, q.shape[:-3], q.shape[-3], k.shape[-3])
        visible = visible[..., None, :, :]
        blocks, own = (
            self._of_block(x, length, s.dtype)[..., None, :, :]
            for x in (of_keys, of_queries)
        )
        seen = jnp.einsum("...nm,...mc->...nc", visible.astype(s.dtype), blocks)
        sums = jnp.einsum("...nm,...mc->...nc", s, blocks)
        back = of_queries[..., None, :, None] - of_keys[..., None, None, :]
        pairs = Pairs(
            s, visible, back, blocks, own > 0, seen, sums / jnp.maximum(seen, 1)
        )
        arguments |= dict(normaliser=normaliser)
        attends = [
            functools.partial(_attend, q, k, v, dropout_key=key, **arguments)
            for key in _keys_of(dropout_key, self.branches)
        ]
        return self._of_pairs(params, q, k.shape[-2], pairs, *attends)

    def _of_pairs(
        self,
        params: Mapping[str, Array],
        q: Float[Array, "*B N H K"],
        h_kv: int,
        pairs: "Pairs",
        *attends: Callable,
    ) -> Any:
        """Computes it from the pairs.

        Each of as many `attends` as there are branches is attention by scores, a function
        (scores, shown), with dropout of its own.
        """
        raise NotImplementedError

    def _of_block(
        self, places: Int[Array, "*B N"], length: int, dtype: Any
    ) -> Float[Array, "*B N C"]:
        """Returns 1 where a token is of a block, else 0."""
        return jax.nn.one_hot(places // self.size, -(-length // self.size), dtype=dtype)

    def of_memory(self) -> Heads:
        """Returns separate heads."""
        return Separate()

    def check(self, a: "Attention") -> None:
        """Raises ValueError for a number below 1, or latents."""
        for field in dataclasses.fields(self):
            if (value := getattr(self, field.name)) < 1:
                raise ValueError(f"{field.name}={value} must be at least 1")
        if a.d_c:
            raise ValueError(f"they read keys: d_c={a.d_c} must be 0")

    def check_selection(self, selection: str) -> None:
        """Raises ValueError: a single key is taken from all."""
        raise ValueError(
            f"selection={selection} takes the best of all keys: heads={self} must be separate"
        )


@dataclasses.dataclass(frozen=True)
class BlockHeads(OfBlocks):
    """A query sees its own block of `size` tokens, and the `count` − 1 others that fit it best.

    How well a block fits is the mean score of its keys that the query may see, which for
    products is the score of their mean key, as in MoBA; the choice has no gradient. With as
    many blocks as there are it is plain attention.
    """

    # Scores, who sees whom, and the weights.
    floats_of_pair: ClassVar[float] = 4.0
    count: int = 3

    def _of_pairs(
        self,
        params: Mapping[str, Array],
        q: Float[Array, "*B N H K"],
        h_kv: int,
        pairs: Pairs,
        *attends: Callable,
    ) -> Any:
        (attend,) = attends
        # The own block is the first to be picked, however it fits.
        fits = jnp.where(pairs.seen > 0, pairs.means, -jnp.inf)
        chosen = is_in_top(jnp.where(pairs.own, jnp.inf, fits), self.count)
        return attend(pairs.s, pairs.visible & (pairs.of_tokens(chosen) > 0))

    def products(self, a: "Attention") -> Products:
        """Counts none: the scores are those of all pairs, as without blocks."""
        return Products()
