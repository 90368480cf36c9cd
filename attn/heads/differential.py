"""Differential attention: a head's weights are the difference of two maps.

Ye et al. 2024, "Differential Transformer" (arXiv 2410.05258). B batch (any leading axes),
N queries, M keys, H heads, K = d_k, V = d_v; E = 2·K, of both maps of a head.
"""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn.arithmetic import Products
from attn.attention import attention
from attn.context import Context
from attn.heads.base import Heads
from attn.kernels.cached import over_cache
from attn.pytrees import at_least_float32
from attn.random_bits import split_each, typed_key

if TYPE_CHECKING:
    from attn.config import Attention

EPSILON = 1e-5
"""That of the norm."""
VECTORS = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
"""The vectors (K,) of λ."""


@dataclasses.dataclass(frozen=True)
class Differential(Heads):
    """A head's weights are the difference of two maps: Ye et al. 2024, section 2.1.

    head = (1 − lambda_init) · RMSNorm((A_1 − λ A_2) V), with
    λ = exp(λ_q1 · λ_k1) − exp(λ_q2 · λ_k2) + lambda_init, one number a layer. The maps
    share the score's parameters and the normaliser's. The paper halves h in return for
    the second map, and has d_v = 2·d_k. Unless given, lambda_init is the paper's, which
    grows with the number l of the layer: 0.8 − 0.6·exp(−0.3·(l − 1)).

    Parameters: 4·d_k of λ's vectors, normal random numbers of deviation 0.1 at first, and
    the gains (d_v,) of the norm, which all heads share, at first 1.
    """

    maps: ClassVar[int] = 2
    lambda_init: float | None = None

    def parameters(self, key: Array, a: "Attention") -> dict[str, Array]:
        """Draws λ's vectors and the norm's gains."""
        keys = jax.random.split(key, len(VECTORS))
        vectors = {
            name: 0.1 * jax.random.normal(key, (a.d_k,))
            for name, key in zip(VECTORS, keys, strict=True)
        }
        return {**vectors, "scale": jnp.ones(a.d_v)}

    def attend(
        self,
        params: Mapping[str, Array],
        q: Float[Array, "*B N H E"],
        k: Float[Array, "*B M H E"],
        v: Float[Array, "*B M H V"],
        ctx: Context,
        **arguments: Any,
    ) -> Any:
        """Computes the outputs (*B, N, H, V) and, asked for, the weights A_1 − λ A_2."""
        result = differential(q, k, v, self._factor(params, ctx), **arguments)
        if not arguments.get("return_weights"):
            return self._normed(params, result, ctx)
        return self._normed(params, result[0], ctx), result[1]

    def over_cache(
        self,
        params: Mapping[str, Array],
        q: Float[Array, "*B N H E"],
        k: Float[Array, "*B H E T"],
        v: Float[Array, "*B H T V"],
        ctx: Context,
        **arguments: Any,
    ) -> Float[Array, "*B N H V"]:
        """Computes the same over cached keys and values."""
        first, second = (
            over_cache(q, k, v, **arguments)
            for q, k in zip(halves(q), jnp.split(k, 2, axis=-2), strict=True)
        )
        out = minus(first, self._factor(params, ctx), second)
        return self._normed(params, out, ctx)

    def initial_lambda(self, ctx: Context) -> float | Float[Array, ""]:
        """Returns lambda_init, where that is None the paper's for the layer."""
        if self.lambda_init is not None:
            return self.lambda_init
        return 0.8 - 0.6 * jnp.exp(-0.3 * (ctx.layer - 1))

    def _factor(self, params: Mapping[str, Array], ctx: Context) -> Array:
        """Returns λ, in float32 at least."""
        wide = at_least_float32(params["scale"].dtype)
        q_1, k_1, q_2, k_2 = (params[name].astype(wide) for name in VECTORS)
        return jnp.exp(q_1 @ k_1) - jnp.exp(q_2 @ k_2) + self.initial_lambda(ctx)

    def _normed(self, params: Mapping[str, Array], out: Array, ctx: Context) -> Array:
        """Returns (1 − lambda_init) · RMSNorm(out), of each head by itself."""
        wide = out.astype(at_least_float32(out.dtype))
        square = (wide**2).mean(-1, keepdims=True)
        scale = (1 - self.initial_lambda(ctx)) * params["scale"].astype(wide.dtype)
        scale = scale.reshape((1,) * (out.ndim - 1) + (-1,))
        return (wide * jax.lax.rsqrt(square + EPSILON) * scale).astype(out.dtype)

    def products(self, a: "Attention") -> Products:
        """Counts none: the maps are subtracted before the value."""
        return Products()

    def check(self, a: "Attention") -> None:
        """Raises ValueError for a lambda_init that is not in [0, 1), and as `Heads`."""
        # At 1 the factor of the norm, and so every output, would be 0.
        if self.lambda_init is not None and not 0 <= self.lambda_init < 1:
            raise ValueError(
                f"lambda_init={self.lambda_init} must be at least 0 and below 1"
            )
        super().check(a)


def differential(
    q: Float[Array, "*B N H E"],
    k: Float[Array, "*B M H E"],
    v: Float[Array, "*B M H V"],
    factor: float | Float[Array, ""],
    *,
    dropout_key: Array | None = None,
    return_weights: bool = False,
    **arguments: Any,
) -> Any:
    """Computes (A_1 − λ A_2) v, λ = factor: Ye et al. 2024, section 2.1, before its norm.

    A_1 is of the first K numbers of queries and keys, A_2 of the other K. Each is one call
    of `attention` with `arguments`, which they share, and with dropout of its own: so it
    has the memory and the contract of that. With λ = 0 it is `attention`.

    Returns:
      The output (*B, N, H, V); asked for, a tuple of it and the weights A_1 − λ A_2,
      (*B, H, N, M), before dropout.
    """
    keys = [None, None]
    if dropout_key is not None:
        pairs = split_each(typed_key(dropout_key), 2)
        keys = [pairs[..., 0], pairs[..., 1]]
    results = [
        attention(q, k, v, dropout_key=key, return_weights=return_weights, **arguments)
        for q, k, key in zip(halves(q), halves(k), keys, strict=True)
    ]
    return jax.tree.map(lambda one, other: minus(one, factor, other), *results)


def halves(x: Float[Array, "*B E"]) -> list[Float[Array, "*B K"]]:
    """Returns the first K numbers of each vector, and the others."""
    return jnp.split(x, 2, axis=-1)


def minus(a: Array, factor: Any, b: Array) -> Array:
    """Returns a − factor · b in a's dtype, subtracted in float32 at least."""
    wide = at_least_float32(a.dtype)
    factor = jnp.asarray(factor, wide)
    return (a.astype(wide) - factor * b.astype(wide)).astype(a.dtype)
