"""The base of values that say what mixes the positions of a text, and self-attention.

B examples, N tokens, D = d_model, T entries of a cache.
"""

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

import flax.linen as nn

from attn.nn.attention import MultiHeadAttention
from attn.nn.products import of_self_attention, seen

if TYPE_CHECKING:
    from attn.config import Block


@dataclasses.dataclass(frozen=True)
class Mixer:
    """Says how a layer mixes positions; the base of all such values."""

    name: ClassVar[str] = "own_mixer"
    """The name of the module in a layer's parameters."""
    attends: ClassVar[bool] = False
    """States that it is self-attention, and so uses score, heads and positions."""

    def build(self, block: "Block", causal: bool) -> nn.Module:
        """Makes the module of one layer.

        It is called as module(x, ctx) -> (x, ctx), x (B, N, D): of a full pass, with the
        mask ctx.mask, or, where there is a ctx.decoding, of a step, which reads ctx.cache
        and returns a new one. Its `empty_cache(batch, entries, dtype)` makes the first.

        Args:
          block: the options of the layer.
          causal: whether a position sees none behind it, as in a decoder.
        """
        raise NotImplementedError(f"{type(self).__name__} has no build")

    def entries(self, entries: int, hypotheses: int, last: int | None) -> int:
        """Returns how many entries its cache has, of as many as a whole text has.

        Args:
          entries: one for each position and hypothesis.
          hypotheses: those of a text.
          last: the most last positions that the mask shows, None for all.
        """
        return entries

    def products(self, n: Any, causal: bool, block: "Block") -> Any:
        """Counts the products of one layer's pass over n positions; None for unknown.

        A subclass has one of its own, or its FLOPs are unknown.

        Args:
          n: an array of numbers of positions, of which the counts are one too.
          causal, block: as `build` gets them.
        """
        return None

    def check(self, block: "Block") -> None:
        """Raises ValueError where the value cannot serve a layer."""

    def check_direction(self, block: "Block", causal: bool) -> None:
        """Raises ValueError where it cannot serve a decoder, or an encoder."""


@dataclasses.dataclass(frozen=True)
class SelfAttention(Mixer):
    """Mixes by self-attention with the block's score, heads and positions."""

    name: ClassVar[str] = "self_attention"
    attends: ClassVar[bool] = True

    def build(self, block: "Block", causal: bool) -> MultiHeadAttention:
        """Makes the multi-head attention."""
        return MultiHeadAttention(block, causal)

    def entries(self, entries: int, hypotheses: int, last: int | None) -> int:
        """Returns the entries of the positions that the mask shows."""
        return entries if last is None else min(entries, last * hypotheses)

    def products(self, n: Any, causal: bool, block: "Block") -> Any:
        """Counts those of all pairs that see each other, and of the matrices."""
        pairs = n * (n + 1) // 2 if causal else n**2
        return of_self_attention(n, pairs, block)


@dataclasses.dataclass(frozen=True)
class Restricted(SelfAttention):
    """Mixes by self-attention restricted to `radius` positions on each side."""

    radius: int = 4

    def build(self, block: "Block", causal: bool) -> MultiHeadAttention:
        """Makes the multi-head attention."""
        return MultiHeadAttention(block, causal, self.radius)

    def entries(self, entries: int, hypotheses: int, last: int | None) -> int:
        """Returns the entries of a ring of radius + 1 positions, or of fewer."""
        within = self.radius + 1
        return super().entries(entries, hypotheses, min(within, last or within))

    def products(self, n: Any, causal: bool, block: "Block") -> Any:
        """Counts those of pairs that are near each other, and of the matrices."""
        pairs = seen(n, self.radius, 0 if causal else self.radius)
        return of_self_attention(n, pairs, block)

    def check(self, block: "Block") -> None:
        """Raises ValueError for a radius below 0."""
        if self.radius < 0:
            raise ValueError(f"radius={self.radius} must be at least 0")
