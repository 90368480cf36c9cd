"""Exclusive self-attention: what a token's own value says is taken out of its output.

Zhai 2026, "Exclusive self attention" (XSA, arXiv 2603.09078). B batch (any leading axes),
N tokens, H heads, J heads of keys and values, K = d_k, V = d_v, T entries of a cache.
"""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn.arithmetic import Products
from attn.attention import attention
from attn.cache import ancestors
from attn.context import Context
from attn.heads.base import Heads, Separate
from attn.kernels.cached import over_cache
from attn.pytrees import at_least_float32

if TYPE_CHECKING:
    from attn.config import Attention


@dataclasses.dataclass(frozen=True)
class Exclusive(Heads):
    """head_i = y_i − (y_i · v_i / |v_i|²) v_i, y_i = Σ_j a_ij v_j: orthogonal to v_i.

    Attention to another text, which has no own values, is plain.
    """

    interact: ClassVar[bool] = False

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
        result = attention(q, k, v, **arguments)
        if not arguments.get("return_weights"):
            return without_own(result, v)
        return without_own(result[0], v), result[1]

    def over_cache(
        self,
        params: Mapping[str, Array],
        q: Float[Array, "*B N H K"],
        k: Float[Array, "*B J K T"],
        v: Float[Array, "*B J T V"],
        ctx: Context,
        **arguments: Any,
    ) -> Float[Array, "*B N H V"]:
        """Computes the same over cached keys and values."""
        t, visible = ctx.decoding.t, ctx.decoding.visible
        own = jax.vmap(lambda v: ancestors(v, visible, t), -3, -2)(v)
        return without_own(over_cache(q, k, v, **arguments), own)

    def of_memory(self) -> Heads:
        """Returns separate heads."""
        return Separate()

    def products(self, a: "Attention") -> Products:
        """Counts none: a token's own value is taken out number by number."""
        return Products()

    def check(self, a: "Attention") -> None:
        """Raises ValueError for latents, of which values are not kept."""
        if a.d_c:
            raise ValueError(f"they read values: d_c={a.d_c} must be 0")

    def check_selection(self, selection: str) -> None:
        """Raises ValueError: of a single key's value nothing is to be taken out."""
        raise ValueError(
            f"selection={selection} takes the value of one key: heads={self} must be separate"
        )


def without_own(
    out: Float[Array, "*B N H V"], v: Float[Array, "*B N J V"]
) -> Float[Array, "*B N H V"]:
    """Returns outputs without their part along each token's own value; all of it where v = 0.

    H/J heads share a value.
    """
    v = jnp.repeat(v, out.shape[-2] // v.shape[-2], axis=-2)
    wide = at_least_float32(out.dtype)
    y, v = out.astype(wide), v.astype(wide)
    # A value with NaN made NaN of its own output already.
    v = jnp.where(jnp.isfinite(v), v, 0)
    share = (y * v).sum(-1, keepdims=True)
    length = (v**2).sum(-1, keepdims=True)
    share = share / jnp.where(length == 0, 1, length)
    return (y - share * v).astype(out.dtype)
