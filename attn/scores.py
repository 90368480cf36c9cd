"""What is compared: scores are values, pytrees of their own parameters, called on the queries and keys of one head.

N queries, M keys, K = d_k, Q = d_q (the width of a query, where it may differ), A = the hidden width of a score. A
score returns at least float32 whatever it is given. A new score is one small class:

    @attn.score
    class Distance:
        '''score(q, k) = −temperature · ‖q − k‖²'''
        temperature: Any
        def __call__(self, q, k):
            return -self.temperature * ((q[:, None] - k[None]) ** 2).sum(-1)

What makes a score for h heads is a function (key, h, d_q, d_k) -> score: `Bilinear.init` and `Additive.init` are, and
`SCORES` has one by name. Initial values are Glorot-uniform, each head for itself.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn.tanh_sum import tanh_sum


def score(cls):
    """Makes a class of parameters a score: a frozen dataclass whose fields are pytree leaves.

    `prepare(q, k)` gives (score', q', k') with score'(q', k') = score(q, k): what a kernel can do once for all keys
    and queries and not again for every tile of them. By default there is nothing to do.
    """
    cls = jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(cls))
    if not hasattr(cls, "prepare"):
        cls.prepare = lambda self, q, k: (self, q, k)
    return cls


@score
class Dot:
    """score(q, k) = q · k (Luong et al. 2015, section 3.1, "dot")."""

    def __call__(
        self, q: Float[Array, "N K"], k: Float[Array, "M K"]
    ) -> Float[Array, "N M"]:
        return jnp.matmul(q, k.T, preferred_element_type=_at_least_float32(q))


@score
class ScaledDot:
    """score(q, k) = scale · (q · k), with scale = 1/√d_k unless given ("Attention Is All You Need", section 3.2.1)."""

    scale: Any = None  # a number, or one for each head

    def __call__(
        self, q: Float[Array, "N K"], k: Float[Array, "M K"]
    ) -> Float[Array, "N M"]:
        dot, q, k = self.prepare(q, k)
        return dot(q, k)

    def prepare(self, q, k):
        scale = q.shape[-1] ** -0.5 if self.scale is None else self.scale
        # Scaling q costs N·K multiplications, scaling the scores N·M.
        return Dot(), q * jnp.asarray(scale, q.dtype), k


@score
class Bilinear:
    """score(q, k) = qᵀ W k (Luong et al. 2015, "general"); W = w, or the product of two factors w (Q, R), w_2 (R, K).

    Costs one projection more than a dot product: W is folded into the queries.
    """

    w: Any  # Float[Array, "Q K"], or (Q, R) with
    w_2: Any = None  # Float[Array, "R K"]

    @classmethod
    def init(cls, key: Array, h: int, d_q: int, d_k: int, *, rank: int | None = None):
        """W of h heads, (H, Q, K); of a given rank R as two factors, (H, Q, R) and (H, R, K)."""
        if rank is None:
            return cls(_glorot(key, (h, d_q, d_k)))
        left, right = jax.random.split(key)
        return cls(_glorot(left, (h, d_q, rank)), _glorot(right, (h, rank, d_k)))

    def __call__(
        self, q: Float[Array, "N Q"], k: Float[Array, "M K"]
    ) -> Float[Array, "N M"]:
        dot, q, k = self.prepare(q, k)
        return dot(q, k)

    def prepare(self, q, k):
        q = q @ self.w.astype(q.dtype)
        return Dot(), q if self.w_2 is None else q @ self.w_2.astype(q.dtype), k


@score
class Additive:
    """score(q, k) = vᵀ tanh(W_q q + W_k k + b) (Bahdanau et al. 2015, appendix A.1.2)."""

    w_q: Any  # Float[Array, "Q A"]
    w_k: Any  # Float[Array, "K A"]
    v: Any  # Float[Array, "A"]
    b: Any = None  # Float[Array, "A"]

    @classmethod
    def init(
        cls,
        key: Array,
        h: int,
        d_q: int,
        d_k: int,
        *,
        d_a: int | None = None,
        bias: bool = False,
    ):
        """Of h heads with hidden width A = d_a, d_k unless given; with a bias it starts at 0."""
        d_a = d_k if d_a is None else d_a
        for_q, for_k, for_v = jax.random.split(key, 3)
        return cls(
            _glorot(for_q, (h, d_q, d_a)),
            _glorot(for_k, (h, d_k, d_a)),
            _glorot(for_v, (h, d_a, 1))[..., 0],
            jnp.zeros((h, d_a)) if bias else None,
        )

    def __call__(
        self, q: Float[Array, "N Q"], k: Float[Array, "M K"]
    ) -> Float[Array, "N M"]:
        hidden, a, b = self.prepare(q, k)
        return jnp.einsum("nma,a->nm", jnp.tanh(a[:, None] + b[None]), hidden.v)

    def prepare(self, q, k):
        dtype = _at_least_float32(q)
        a = jnp.matmul(q, self.w_q, preferred_element_type=dtype)
        b = jnp.matmul(k, self.w_k, preferred_element_type=dtype)
        return (
            TanhSum(self.v.astype(dtype)),
            a if self.b is None else a + self.b.astype(dtype)[None],
            b,
        )


@score
class TanhSum:
    """score(q, k) = vᵀ tanh(q + k): additive attention behind its projections, without an N·M·A tensor."""

    v: Any  # Float[Array, "A"]

    def __call__(
        self, q: Float[Array, "N A"], k: Float[Array, "M A"]
    ) -> Float[Array, "N M"]:
        return tanh_sum(q.T, k.T, self.v)


PRODUCTS = Dot, ScaledDot, Bilinear
"""Scores that are one matrix product."""

SCORES = {
    "dot": lambda key, h, d_q, d_k: Dot(),
    "scaled_dot": lambda key, h, d_q, d_k: ScaledDot(),
    "bilinear": Bilinear.init,
    "additive": Additive.init,
}


_glorot = jax.nn.initializers.glorot_uniform(in_axis=-2, out_axis=-1, batch_axis=0)


def _at_least_float32(x):
    return jnp.promote_types(x.dtype, jnp.float32)
