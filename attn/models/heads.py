"""Heads: what the heads of an attention have to do with each other, and their gates.

A value says it and makes the Linen module that does it; one's own is a frozen dataclass, a
subclass of `Heads`, in any file, which `attn.contract.check_heads` holds to the contract.
B batch (any leading axes), N queries, M keys, H heads, K = d_k, V = d_v, P = the weight
maps of a head, E = 2·K where these are two, D = d_model, T entries of a cache.
"""

import copy
import dataclasses
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attn import heads
from attn.arithmetic import Products
from attn.kernels.cached import from_cached, over_cache
from attn.masks import Mask
from attn.positions import Positions
from attn.precision import at_least_float32

GATES = ("none", "head", "element")
"""The gates on the output of attention: none, a number a head, a number a feature."""


@dataclasses.dataclass(frozen=True)
class Heads:
    """Says what the heads of an attention have to do with each other; the base of such."""

    maps: ClassVar[int] = 1
    """P, so that queries and keys of a head are P·K wide."""

    def build(self, h: int, d_k: int, d_v: int) -> nn.Module | None:
        """Makes the module of one attention, None where `attention` itself serves.

        It is called as `attention`: module(q, k, v, score=, normaliser=, mask=, bias=,
        return_weights=), and with dropout_rate= and dropout_key=; and has a method
        `over_cache` with the arguments of `kernels.cached.over_cache`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no build")

    def in_layer(self, number: int | Int[Array, ""]) -> "Heads":
        """Returns the value of a layer's attentions, by its place in the stack, from 1.

        With scan and remat the number is traced, and `build` gets what it makes of it.
        """
        return self

    def products(self, h: int, d_k: int, d_v: int) -> Products | None:
        """Counts the products of all heads beside the maps' scores and the h values.

        None for unknown, which a subclass is unless it has a method of its own.
        """
        return None

    def check(self) -> None:
        """Raises ValueError where the value makes no sense."""


@dataclasses.dataclass(frozen=True)
class Separate(Heads):
    """Each head attends by itself, as in "Attention Is All You Need"."""

    def build(self, h: int, d_k: int, d_v: int) -> None:
        """Returns None: `attention` serves."""

    def products(self, h: int, d_k: int, d_v: int) -> Products:
        """Counts none."""
        return Products()


@dataclasses.dataclass(frozen=True)
class Differential(Heads):
    """A head's weights are the difference of two maps: Ye et al. 2024, section 2.1.

    head = (1 − lambda_init) · RMSNorm((A_1 − λ A_2) V), with
    λ = exp(λ_q1 · λ_k1) − exp(λ_q2 · λ_k2) + lambda_init, one number a layer. The maps
    share the score's parameters and the normaliser's. The paper halves h in return for
    the second map, and has d_v = 2·d_k. Unless given, lambda_init is the paper's, which
    grows with the number l of the layer: 0.8 − 0.6·exp(−0.3·(l − 1)). A stack sets l; an
    attention outside one is as in the first layer.
    """

    maps: ClassVar[int] = 2
    lambda_init: float | None = None
    # Not an option: in_layer sets it.
    layer: int | Int[Array, ""] = dataclasses.field(default=1, init=False, repr=False)

    def build(self, h: int, d_k: int, d_v: int) -> nn.Module:
        """Makes the module with λ's vectors and the norm's gains."""
        return Difference(d_k, d_v, self.initial_lambda())

    def in_layer(self, number: int | Int[Array, ""]) -> "Differential":
        """Returns the value of a layer's attentions, by its place in the stack, from 1."""
        layered = copy.copy(self)
        object.__setattr__(layered, "layer", number)
        return layered

    def initial_lambda(self) -> float | Float[Array, ""]:
        """Returns lambda_init, where that is None the paper's for the layer."""
        if self.lambda_init is not None:
            return self.lambda_init
        return 0.8 - 0.6 * jnp.exp(-0.3 * (self.layer - 1))

    def products(self, h: int, d_k: int, d_v: int) -> Products:
        """Counts none: the maps are subtracted before the value."""
        return Products()

    def check(self) -> None:
        """Raises ValueError for a lambda_init that is not in [0, 1)."""
        # At 1 the factor of the norm, and so every output, would be 0.
        if self.lambda_init is not None and not 0 <= self.lambda_init < 1:
            raise ValueError(
                f"lambda_init={self.lambda_init} must be at least 0 and below 1"
            )


@dataclasses.dataclass(frozen=True)
class TalkingHeads(Heads):
    """Heads mix their scores before softmax and their weights after it.

    Shazeer et al. 2020, with as many heads everywhere. Memory is H·N·M.
    """

    def build(self, h: int, d_k: int, d_v: int) -> nn.Module:
        """Makes the module with the two matrices."""
        return Mixture(h)

    def products(self, h: int, d_k: int, d_v: int) -> Products:
        """Counts those of a pair with both matrices."""
        return Products(pair=2 * h**2)


HEADS = {
    "separate": Separate,
    "differential": Differential,
    "talking": TalkingHeads,
}
"""The classes of this file by name."""


def check_own_keys(heads: Heads, h: int, h_kv: int | None, d_c: int | None) -> None:
    """Raises ValueError where heads that are not separate would share keys and values."""
    if not isinstance(heads, Separate) and (h_kv not in (None, h) or d_c is not None):
        raise ValueError(
            f"heads={heads} have keys and values of their own: not h_kv={h_kv}, d_c={d_c}; "
            "Separate() may share them"
        )


def check_counted(
    positions: Positions, heads: Heads, h: int, h_kv: int | None, d_c: int | None
) -> None:
    """Raises ValueError where positions that attend have not each head's own keys."""
    if not isinstance(heads, Separate) or h_kv not in (None, h) or d_c is not None:
        raise ValueError(
            f"positions={positions} count each head's own keys: not with heads={heads}, "
            f"h_kv={h_kv}, d_c={d_c}"
        )


class Difference(nn.Module):
    """Computes differential attention, see `Differential`.

    λ's four vectors (K,) start as normal random numbers of deviation 0.1, the gains (V,)
    of the norm, which all heads share, at 1. The norm's ε is 1e-5.
    """

    d_k: int
    d_v: int
    lambda_init: float | Float[Array, ""]

    def setup(self):
        """Draws the parameters."""
        normal = nn.initializers.normal(0.1)
        shape = (self.d_k,)
        self.q_1 = self.param("lambda_q1", normal, shape)
        self.k_1 = self.param("lambda_k1", normal, shape)
        self.q_2 = self.param("lambda_q2", normal, shape)
        self.k_2 = self.param("lambda_k2", normal, shape)
        self.scale = self.param("scale", nn.initializers.ones, (self.d_v,))

    def __call__(
        self,
        q: Float[Array, "*B N H E"],
        k: Float[Array, "*B M H E"],
        v: Float[Array, "*B M H V"],
        *,
        return_weights: bool = False,
        **arguments: Any,
    ):
        """Computes the outputs (*B, N, H, V) and, asked for, the weights A_1 − λ A_2."""
        arguments = dict(return_weights=return_weights, **arguments)
        result = heads.differential(q, k, v, self._factor(), **arguments)
        if not return_weights:
            return self._normed(result)
        return self._normed(result[0]), result[1]

    def over_cache(
        self,
        q: Float[Array, "*B N H E"],
        k: Float[Array, "*B H E T"],
        v: Float[Array, "*B H T V"],
        **arguments: Any,
    ) -> Float[Array, "*B N H V"]:
        """Computes the same over cached keys and values."""
        first, second = (
            over_cache(q, k, v, **arguments)
            for q, k in zip(heads.halves(q), jnp.split(k, 2, axis=-2), strict=True)
        )
        return self._normed(heads.minus(first, self._factor(), second))

    def _factor(self):
        """Returns λ, in float32 at least."""
        wide = at_least_float32(self.q_1.dtype)
        vectors = (self.q_1, self.k_1, self.q_2, self.k_2)
        q_1, k_1, q_2, k_2 = (x.astype(wide) for x in vectors)
        return jnp.exp(q_1 @ k_1) - jnp.exp(q_2 @ k_2) + self.lambda_init

    def _normed(self, out):
        """Returns (1 − lambda_init) · RMSNorm(out), of each head by itself."""
        wide = out.astype(at_least_float32(out.dtype))
        square = (wide**2).mean(-1, keepdims=True)
        scale = (1 - self.lambda_init) * self.scale.astype(wide.dtype)
        scale = scale.reshape((1,) * (out.ndim - 1) + (-1,))
        return (wide * jax.lax.rsqrt(square + 1e-5) * scale).astype(out.dtype)


class Mixture(nn.Module):
    """Computes attention of talking heads, see `attn.heads.talking_heads`.

    Both matrices (H, H) start as identities, so that heads are separate at first.
    """

    h: int

    def setup(self):
        """Makes the parameters."""
        self.w_scores = self.param("w_scores", _identity, (self.h, self.h))
        self.w_weights = self.param("w_weights", _identity, (self.h, self.h))

    def __call__(
        self,
        q: Float[Array, "*B N H K"],
        k: Float[Array, "*B M H K"],
        v: Float[Array, "*B M H V"],
        **arguments: Any,
    ):
        """Computes the outputs (*B, N, H, V) and, asked for, the weights."""
        matrices = self.w_scores, self.w_weights
        return heads.talking_heads(q, k, v, *matrices, **arguments)

    def over_cache(
        self,
        q: Float[Array, "*B N H K"],
        k: Float[Array, "*B H K T"],
        v: Float[Array, "*B H T V"],
        *,
        visible: Bool[Array, "*B n T"],
        best: bool = False,
        **arguments: Any,
    ) -> Float[Array, "*B N H V"]:
        """Computes the same over cached keys and values."""
        mask = Mask.dense(visible[..., None, :, :])
        return self(q, *from_cached(k, v), mask=mask, **arguments)


def _identity(key, shape, dtype=jnp.float32):
    return jnp.eye(*shape, dtype=dtype)


def gated(
    out: Float[Array, "*B N H V"],
    x: Float[Array, "*B N D"],
    w_g: Float[Array, "D H v"],
    b_g: Float[Array, "H v"] | None = None,
) -> Float[Array, "*B N H V"]:
    """Computes σ(x W_g + b_g) ⊙ out, v = V or 1: Qiu et al. 2025, section 2.2."""
    logits = jnp.einsum("...nd,dhv->...nhv", x, w_g)
    if b_g is not None:
        logits = logits + b_g.reshape((1,) * (logits.ndim - 2) + b_g.shape)
    return jax.nn.sigmoid(logits) * out
