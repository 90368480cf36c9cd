"""What is compared: scores are values, pytrees of their own parameters, called on the queries and keys of one head.

N queries, M keys, K = d_k, Q = d_q (the width of a query, where it may differ), A = the hidden width of a score. A
score returns at least float32 whatever it is given. A new score is one small class:

    @attn.score
    class Distance:
        '''score(q, k) = −temperature · ‖q − k‖²'''
        temperature: Any
        def __call__(self, q, k):
            return -self.temperature * ((q[:, None] - k[None]) ** 2).sum(-1)
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


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

    def __call__(self, q: Float[Array, "N K"], k: Float[Array, "M K"]) -> Float[Array, "N M"]:
        return jnp.einsum("nk,mk->nm", q, k, preferred_element_type=_at_least_float32(q))


@score
class ScaledDot:
    """score(q, k) = scale · (q · k), with scale = 1/√d_k unless given ("Attention Is All You Need", section 3.2.1)."""

    scale: Any = None  # a number, or one for each head

    def __call__(self, q: Float[Array, "N K"], k: Float[Array, "M K"]) -> Float[Array, "N M"]:
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

    def __call__(self, q: Float[Array, "N Q"], k: Float[Array, "M K"]) -> Float[Array, "N M"]:
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

    def __call__(self, q: Float[Array, "N Q"], k: Float[Array, "M K"]) -> Float[Array, "N M"]:
        hidden, q, k = self.prepare(q, k)
        return hidden(q, k)

    def prepare(self, q, k):
        dtype = _at_least_float32(q)
        q = jnp.matmul(q, self.w_q, preferred_element_type=dtype)
        k = jnp.matmul(k, self.w_k, preferred_element_type=dtype)
        return TanhSum(self.v.astype(dtype)), q if self.b is None else q + self.b.astype(dtype)[None], k


@score
class TanhSum:
    """score(q, k) = vᵀ tanh(q + k): additive attention behind its projections, textbook form."""

    v: Any  # Float[Array, "A"]

    def __call__(self, q: Float[Array, "N A"], k: Float[Array, "M A"]) -> Float[Array, "N M"]:
        return jnp.einsum("nma,a->nm", jnp.tanh(q[:, None] + k[None]), self.v)


def _at_least_float32(x):
    return jnp.promote_types(x.dtype, jnp.float32)
