"""What is compared: scores are values, pytrees of their own parameters, called on the queries and keys of one head.

N queries, M keys, K = d_k. A score returns at least float32 whatever it is given.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def _pytree(cls):
    """A frozen dataclass whose fields are pytree leaves; None is the empty pytree."""
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(cls))


@_pytree
class Dot:
    """score(q, k) = q · k (Luong et al. 2015, section 3.1, "dot")."""

    def __call__(self, q: Float[Array, "N K"], k: Float[Array, "M K"]) -> Float[Array, "N M"]:
        return _dot(q, k)


@_pytree
class ScaledDot:
    """score(q, k) = scale · (q · k), with scale = 1/√d_k unless given ("Attention Is All You Need", section 3.2.1)."""

    scale: Any = None  # a number, or one for each head

    def __call__(self, q: Float[Array, "N K"], k: Float[Array, "M K"]) -> Float[Array, "N M"]:
        scale = q.shape[-1] ** -0.5 if self.scale is None else self.scale
        # Scaling q costs N·K multiplications, scaling the scores N·M.
        return _dot(q * jnp.asarray(scale, q.dtype), k)


def _dot(q, k):
    return jnp.einsum("nk,mk->nm", q, k, preferred_element_type=jnp.promote_types(q.dtype, jnp.float32))
