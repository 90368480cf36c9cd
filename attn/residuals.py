"""Residuals: what self-attention takes over from the same attention in layers before.

A value says it; a user's own is a frozen dataclass, a subclass of `Residual`, in any file.
It declares what layers share, reads it from `ctx.shared` and writes it there. B examples,
N queries, M keys, H heads, J heads of keys, K = d_k, V = d_v.
"""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from attn.arithmetic import Products
from attn.context import Context
from attn.pytrees import at_least_float32

if TYPE_CHECKING:
    from attn.config import Attention


@dataclasses.dataclass(frozen=True)
class Residual:
    """Takes over something from the layers before; the base of such values."""

    name: ClassVar[str] = "residual"
    """The name of its parameters in an attention."""
    acts: ClassVar[bool] = False
    """Whether a class has methods of its own, which an attention then calls."""
    takes_scores: ClassVar[bool] = False
    """Whether a class has a method `scores` of its own."""

    def __init_subclass__(cls):
        cls.takes_scores = cls.scores is not Residual.scores
        cls.acts = cls.takes_scores or cls.values is not Residual.values

    def parameters(self, key: Array, a: "Attention") -> dict[str, Array]:
        """Draws the arrays that an attention trains for it."""
        return {}

    def shared(
        self, a: "Attention", batch: int, n: int, m: int, dtype: Any
    ) -> dict[str, Array]:
        """Returns what layers share, by name, as it is before the first layer.

        There are n tokens, and m keys that they may see: as many, or a cache's.
        """
        return {}

    def values(
        self, params: Mapping[str, Array], v: Float[Array, "B N J V"], ctx: Context
    ) -> tuple[Float[Array, "B N J V"], Context]:
        """Returns the values of the layer's tokens, and the context for what follows."""
        return v, ctx

    def scores(
        self, params: Mapping[str, Array], s: Float[Array, "B H N M"], ctx: Context
    ) -> tuple[Float[Array, "B H N M"], Context]:
        """Returns the scores, hidden ones as 0, and the context for what follows.

        A class with this method has all scores side by side: memory is h·n².
        """
        return s, ctx

    def products(self, a: "Attention") -> Products | None:
        """Counts the products that it takes; None for unknown."""
        return None

    def check(self, a: "Attention") -> None:
        """Raises ValueError where the value cannot serve an attention."""


@dataclasses.dataclass(frozen=True)
class NoResidual(Residual):
    """Takes over nothing."""

    def products(self, a: "Attention") -> Products:
        """Counts none."""
        return Products()


@dataclasses.dataclass(frozen=True)
class ValueResidual(Residual):
    """v = (1 − λ) v + λ v_1, v_1 the first layer's values (Zhou et al. 2024, arXiv 2410.17897).

    λ is one trained number a layer, `share` at first. The first layer's values stay as they
    are.
    """

    share: float = 0.5

    def parameters(self, key: Array, a: "Attention") -> dict[str, Array]:
        """Makes λ."""
        return {"share": jnp.asarray(self.share, jnp.float32)}

    def shared(
        self, a: "Attention", batch: int, n: int, m: int, dtype: Any
    ) -> dict[str, Array]:
        """Returns room for the first layer's values."""
        return {"values": jnp.zeros((batch, n, a.heads_of_keys, a.d_v), dtype)}

    def values(
        self, params: Mapping[str, Array], v: Float[Array, "B N J V"], ctx: Context
    ) -> tuple[Float[Array, "B N J V"], Context]:
        """Returns the mixed values; the first layer keeps its own for the others."""
        is_first = ctx.layer == 1
        first = jnp.where(is_first, v, ctx.shared["values"])
        share = params["share"].astype(v.dtype)
        ctx = ctx.replace(shared={**ctx.shared, "values": first})
        return jnp.where(is_first, v, v + share * (first - v)), ctx

    def products(self, a: "Attention") -> Products:
        """Counts none: numbers are mixed one by one."""
        return Products()

    def check(self, a: "Attention") -> None:
        """Raises ValueError for latents, of which values are made when they are read."""
        if a.d_c:
            raise ValueError(f"it mixes values: d_c={a.d_c} must be 0")


@dataclasses.dataclass(frozen=True)
class ScoreResidual(Residual):
    """s = s + s of the layer before (RealFormer: He et al. 2020, arXiv 2012.11747, section 3).

    Scores are summed before the normaliser. Memory is h·n².
    """

    def shared(
        self, a: "Attention", batch: int, n: int, m: int, dtype: Any
    ) -> dict[str, Array]:
        """Returns the scores before the first layer, which are 0."""
        return {"scores": jnp.zeros((batch, a.h, n, m), at_least_float32(dtype))}

    def scores(
        self, params: Mapping[str, Array], s: Float[Array, "B H N M"], ctx: Context
    ) -> tuple[Float[Array, "B H N M"], Context]:
        """Returns the sums of scores, which the next layer adds to its own."""
        s = s + ctx.shared["scores"].astype(s.dtype)
        return s, ctx.replace(shared={**ctx.shared, "scores": s})

    def products(self, a: "Attention") -> Products:
        """Counts none: scores are added one by one."""
        return Products()

    def check(self, a: "Attention") -> None:
        """Raises ValueError for what has not one map of scores a head, or no keys."""
        if a.d_c or a.heads.acts:
            raise ValueError(
                "it sums the scores of separate heads: not with "
                f"heads={a.heads}, d_c={a.d_c}"
            )


RESIDUALS = {"none": NoResidual, "values": ValueResidual, "scores": ScoreResidual}
"""The classes of this file by name."""
