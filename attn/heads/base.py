"""The base of values that say how heads interact, and heads that do not."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from jaxtyping import Array, Float

from attn.arithmetic import Products
from attn.attention import attention
from attn.context import Context
from attn.kernels.cached import over_cache

if TYPE_CHECKING:
    from attn.config import Attention


@dataclasses.dataclass(frozen=True)
class Heads:
    """Says how the heads of an attention interact; the base of such values."""

    name: ClassVar[str] = "together"
    """The name of its parameters in an attention."""
    maps: ClassVar[int] = 1
    """P, the weight maps of a head, so that its queries and keys are P·K wide."""
    interact: ClassVar[bool] = True
    """Whether a head's result depends on more than its own queries, keys and values."""
    floats_of_pair: ClassVar[float] = 2.5
    """The numbers that a gradient keeps of a pair and map, fitted to XLA on a CPU."""
    is_quadratic: ClassVar[bool] = False
    """Whether memory is of n² however long a text is."""
    acts: ClassVar[bool] = False
    """Whether a class has an `attend` of its own, in `attention`'s place."""
    has_loss: ClassVar[bool] = False
    """Whether a class has a `loss` of its own."""
    keeps: ClassVar[bool] = False
    """States that decoding keeps something beside keys and values: there is an `empty_cache`,
    and `over_cache` takes what is kept as `own`, and returns it after the outputs."""

    def __init_subclass__(cls):
        cls.acts = cls.attend is not Heads.attend
        cls.has_loss = cls.loss is not Heads.loss

    def parameters(self, key: Array, a: "Attention") -> dict[str, Array]:
        """Draws the arrays that an attention trains for it."""
        return {}

    def attend(
        self,
        params: Mapping[str, Array],
        q: Float[Array, "*B N H K"],
        k: Float[Array, "*B M J K"],
        v: Float[Array, "*B M J V"],
        ctx: Context,
        **arguments: Any,
    ) -> Any:
        """Computes what `attention` returns for the same arguments."""
        return attention(q, k, v, **arguments)

    def loss(
        self,
        params: Mapping[str, Array],
        q: Float[Array, "*B N H K"],
        k: Float[Array, "*B M J K"],
        v: Float[Array, "*B M J V"],
        ctx: Context,
        **arguments: Any,
    ) -> Float[Array, "*B N"]:
        """Computes what training adds to the loss of each token, for the same arguments."""
        raise NotImplementedError

    def over_cache(
        self,
        params: Mapping[str, Array],
        q: Float[Array, "*B N H K"],
        k: Float[Array, "*B J K T"],
        v: Float[Array, "*B J T V"],
        ctx: Context,
        **arguments: Any,
    ) -> Float[Array, "*B N H V"]:
        """Computes the same over cached keys and values, as `kernels.cached.over_cache`."""
        return over_cache(q, k, v, **arguments)

    def empty_cache(self, a: "Attention", shape: tuple[int, int], dtype: Any) -> Any:
        """Returns what it keeps of (B, T) entries of a cache while decoding."""
        return None

    def of_memory(self) -> "Heads":
        """Returns what heads of attention to another text do."""
        return self

    def products(self, a: "Attention") -> Products | None:
        """Counts the products of all heads beside the maps' scores and the h values.

        None for unknown, which a subclass is unless it has a method of its own.
        """
        return None

    def check(self, a: "Attention") -> None:
        """Raises ValueError where heads that interact would share keys and values."""
        if self.interact and (a.heads_of_keys != a.h or a.d_c):
            raise ValueError(
                f"they need separate keys and values for every head: not h_kv={a.h_kv}, "
                f"d_c={a.d_c}; Separate() may share them"
            )

    def check_selection(self, selection: str) -> None:
        """Raises ValueError where attention cannot take the values of single keys."""
        if self.interact:
            raise ValueError(
                f"selection={selection} takes the best key of one head's scores: "
                f"heads={self} must be separate"
            )


@dataclasses.dataclass(frozen=True)
class Separate(Heads):
    """Each head attends by itself, as in "Attention Is All You Need"."""

    interact: ClassVar[bool] = False

    def products(self, a: "Attention") -> Products:
        """Counts none."""
        return Products()
