"""Computes attention from its formulas alone, in the precision of its arguments.

In float64 (`attn.jax_versions.enable_x64`) every kernel, the libraries that
`launch.bench conformance` tries, and random cases are held to it. It writes all scores
down, reads every number, and is differentiated by JAX, forward and backward, to any order.
Inputs must be finite: whoever hides NaN behind a mask puts 0 there first.

B batch, N queries, M keys, H heads, K = d_k, V = d_v, A = the hidden width of an additive
score. Heads come before positions, unlike in `attn.attention`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from attn.pytrees import AnyArray

Scores = Float[Array, "B H N M"]


def dot(q: AnyArray, k: AnyArray) -> Scores:
    """Computes qᵀ k."""
    return jnp.einsum("bhnk,bhmk->bhnm", q, k)


def scaled_dot(q: AnyArray, k: AnyArray, scale: Any = None) -> Scores:
    """Computes qᵀ k · scale, of each head or all; by default 1/√K (Vaswani et al. 2017)."""
    if scale is None:
        scale = max(1, q.shape[-1]) ** -0.5
    return dot(q, k) * jnp.reshape(scale, (1, -1, 1, 1))


def bilinear(
    q: AnyArray, k: AnyArray, w: AnyArray, w_2: AnyArray | None = None
) -> Scores:
    """Computes qᵀ W k, or qᵀ W W₂ k, with W (H, K, K) (Luong et al. 2015)."""
    q = jnp.einsum("bhnk,hkl->bhnl", q, _all_heads(w, q))
    if w_2 is not None:
        q = jnp.einsum("bhnk,hkl->bhnl", q, _all_heads(w_2, q))
    return dot(q, k)


def additive(
    q: AnyArray,
    k: AnyArray,
    w_q: AnyArray,
    w_k: AnyArray,
    v: AnyArray,
    b: AnyArray | None = None,
) -> Scores:
    """Computes vᵀ tanh(W_q q + W_k k + b), with v (H, A) (Bahdanau et al. 2015)."""
    of_q = jnp.einsum("bhnk,hka->bhna", q, _all_heads(w_q, q))
    of_k = jnp.einsum("bhmk,hka->bhma", k, _all_heads(w_k, q))
    if b is not None:
        of_q = of_q + b[None, :, None]
    hidden = jnp.tanh(of_q[:, :, :, None] + of_k[:, :, None])
    return jnp.einsum("bhnma,ha->bhnm", hidden, _all_heads(v, q))


def _all_heads(parameter: AnyArray, q: AnyArray) -> Array:
    return jnp.broadcast_to(parameter, (q.shape[1], *parameter.shape[1:]))


SCORES: Mapping[str, Callable] = {
    "dot": dot,
    "scaled_dot": scaled_dot,
    "bilinear": bilinear,
    "additive": additive,
}


def softmax(
    s: Float[Array, "*B N M"],
) -> tuple[Float[Array, "*B N M"], Float[Array, "*B N"]]:
    """Returns the weights and the LSE of scores that are −inf where a key is hidden.

    A query that sees no key has weights 0 and LSE −inf.
    """
    seen = s != -jnp.inf
    top = jnp.max(s, -1, keepdims=True, initial=-jnp.inf)
    # Any shift gives the same; −inf less −inf would be NaN.
    top = jax.lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0))
    # The inner `where` is for the derivative, in which NaN times 0 is NaN.
    e = jnp.where(seen, jnp.exp(jnp.where(seen, s - top, 0)), 0)
    total = e.sum(-1, keepdims=True)
    empty = total == 0
    total = jnp.where(empty, 1, total)
    lse = jnp.where(empty, -jnp.inf, jnp.log(total) + top)
    return e / total, lse[..., 0]


def attention(
    s: Scores,
    v: Float[ArrayLike, "B H M V"],
    visible: Bool[ArrayLike, "B H N M"],
    bias: Float[ArrayLike, "..."] | float = 0.0,
    normaliser: Callable = softmax,
) -> tuple[Float[Array, "B H N V"], Float[Array, "B H N"], Scores]:
    """Returns (output, LSE, weights) of attention with scores `s`.

    Args:
      s: of the functions of SCORES, or another's.
      v: values.
      visible: True where a query may attend to a key.
      bias: added to the scores, broadcast to their shape; −inf hides a key.
      normaliser: returns (weights, LSE) of scores that are −inf where a key is hidden.
    """
    s = jnp.where(visible, s + bias, -jnp.inf)
    weights, lse = normaliser(s)
    return jnp.einsum("bhnm,bhmv->bhnv", weights, v), lse, weights


def error(actual: Any, expected: Any) -> float:
    """Returns the largest difference, in parts of the largest finite expected value.

    Where all expected values are 0, it is the difference itself; it is inf for NaN, and 0
    where both are −inf. Takes two arrays, or two dictionaries of arrays with the same
    names; raises ValueError where the names differ.
    """
    if isinstance(expected, Mapping):
        if actual.keys() != expected.keys():
            names = f"{', '.join(actual)} given, {', '.join(expected)} expected"
            raise ValueError(names)
        return max(error(actual[name], value) for name, value in expected.items())
    actual, expected = np.asarray(actual), np.asarray(expected)
    largest = np.abs(expected[np.isfinite(expected)]).max(initial=0) or 1.0
    with np.errstate(invalid="ignore"):
        differences = np.where(actual == expected, 0, np.abs(actual - expected))
    # NaN goes through max, and is caught in the next line.
    worst = differences.max(initial=0) / largest
    return float(worst) if np.isfinite(worst) else float("inf")
