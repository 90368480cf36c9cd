"""The base of values that say how a model knows where a token stands, and no positions.

B batch (any leading axes), N tokens, L the length of a table, D = d_model, H = h heads,
K = d_k.
"""

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn.arithmetic import Products
from attn.context import Context, in_context

if TYPE_CHECKING:
    from attn.config import Attention


@dataclasses.dataclass(frozen=True)
class Positions:
    """Knows nothing of positions; the base of all values that do."""

    name: ClassVar[str] = "relative"
    """The name of its parameters in an attention."""
    trained: ClassVar[bool] = False
    """States that the table is a parameter."""
    attend: ClassVar[Any] = None
    """A method (value, q, k, v, ctx, **arguments) that takes the place of `attention`, in
    a class that has one."""
    over_cache: ClassVar[Any] = None
    """The method that goes with `attend`, as that of `attn.heads.base.Heads`."""
    floats_of_pair: ClassVar[float | None] = None
    """The numbers that a gradient keeps of a pair and head, where there is an `attend`."""

    rotates: ClassVar[bool] = False
    """Whether a class turns queries and keys."""
    reads_tokens: ClassVar[bool] = False
    """Whether a class takes products of tokens, which a table or a bias does not."""
    in_layers: ClassVar[bool] = False
    """Whether a class acts in the layers, and not in the table alone."""
    is_data: ClassVar[bool] = True
    """Whether a class fills a table and does no more.

    Models that differ in such values only are one program: a table is data.
    """

    def __init_subclass__(cls):
        def has(hook):
            # A hook that a class leaves alone is the base's own function.
            return getattr(cls, hook) is not getattr(Positions, hook)

        cls.rotates = has("rotate")
        cls.reads_tokens = has("in_attention")
        cls.in_layers = any(map(has, ("rotate", "bias", "bias_of", "in_attention")))
        cls.is_data = not (cls.in_layers or has("places"))

    def table(self, key: Array, length: int, d_model: int) -> Float[Array, "L D"]:
        """Returns the table of `length` positions that is added to the embeddings.

        It has more rows where `places` tells of more.
        """
        return jnp.zeros((length, d_model))

    def places(
        self,
        positions: Int[Array, "*B N"],
        length: int,
        key: Array | None = None,
    ) -> Int[Array, "*B N"]:
        """Returns the rows of the table for tokens that are counted from 0.

        Args:
          positions: which of its text each token is, from 0.
          length: the most positions of the model.
          key: in training a random key of the row (N,); else None.
        """
        return positions

    def rotate(
        self,
        x: Float[Array, "*B N H K"],
        positions: Int[Array, "*b N"],
    ) -> Float[Array, "*B N H K"]:
        """Returns queries or keys of self-attention, turned by their positions."""
        return x

    def bias(self, key: Array, h: int, causal: bool) -> Any:
        """Makes the value that is added to the scores of self-attention, or None.

        Args:
          key: a random key for its initial values.
          h: the number of heads.
          causal: whether a query sees no key behind it.

        Returns:
          A value with a `tile`, see `attn.positions.biases`. Its arrays are parameters of
          the layer, unless its `trained` is False.
        """
        return None

    def in_attention(self, key: Array, a: "Attention", causal: bool) -> Any:
        """Makes the value that each self-attention has, by default its `bias`.

        One of another kind needs `bias_of` or `attend`. Its arrays are parameters of the
        layer, unless its `trained` is False.
        """
        return self.bias(key, a.h, causal)

    def bias_of(
        self, value: Any, x: Float[Array, "B N D"], ctx: Context
    ) -> tuple[Any, Context]:
        """Returns what is added to the scores of the tokens x, and the context.

        It is a bias with a `tile`, an array (B, H, N, M) or None; `value` is that of
        `in_attention`. While decoding, `ctx.cache[1]` is what `empty_cache` made.
        """
        return in_context(value, ctx), ctx

    def empty_cache(self, a: "Attention", shape: tuple[int, int], dtype: Any) -> Any:
        """Returns what it keeps of (B, T) entries of a cache while decoding, or None."""
        return None

    def products(self, a: "Attention") -> Products | None:
        """Counts the products that it takes in an attention; None for unknown.

        A subclass with an `in_attention` has one of its own, or its FLOPs are unknown.
        """
        return None

    def check(self, a: "Attention") -> None:
        """Raises ValueError where the value cannot serve an attention and its model."""


@dataclasses.dataclass(frozen=True)
class NoPositions(Positions):
    """Knows nothing of positions: an encoder sees a bag of tokens."""
