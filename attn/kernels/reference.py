"""The definition of attention: of one head, and of all heads of all examples at once.

Every other kernel is held to this one. B batch (any leading axes), N queries, M keys,
H heads of queries, J heads of keys and values, K = d_k, L = the width of a key, V = d_v;
b = all examples, in one axis.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn.masks import Mask, spread
from attn.normalisers import softmax
from attn.pytrees import (
    AnyArray,
    at_least_float32,
    factors,
    map_leading,
    shared_by_examples,
)


class Taint(NamedTuple):
    """NaN for each token that held NaN or Inf, else 0.

    Such tokens come to the kernels as 0: in a product a weight of 0 would not keep NaN
    from the others, nor in a gradient a cotangent of 0.
    """

    q: Any  # Float[Array, "N"], of the queries
    k: Any  # Float[Array, "M"], of keys and values

    def tile(self) -> Float[Array, "N M"]:
        """Returns NaN for each pair of which one token held NaN or Inf."""
        return self.q[:, None] + self.k[None]


def reference(
    q: Float[Array, "N K"],
    k: Float[Array, "M L"],
    v: Float[Array, "M V"],
    *,
    score: Any,
    normaliser: Any,
    mask: Mask,
    taint: Taint | None = None,
    bias: Any = None,
    drop: Any = None,
) -> tuple[Array, Array | None, Array, Array]:
    """Computes normaliser(score(q, k) + bias) v over the keys that `mask` shows.

    Args:
      q, k, v: queries, keys and values; finite, or NaN spreads from a hidden key too.
      score: a function of q and k that gives (N, M) scores.
      normaliser: a value of `attn.normalisers`, which makes weights of them.
      mask: a `Mask`, True where a query may attend to a key.
      taint: makes NaN of the scores that see a token of NaN or Inf.
      bias: added to the scores: an array (N, M), or a value with a `tile`.
      drop: dropout of the weights.

    Returns:
      The output (N, V) in v's dtype, the log of the denominator (N,), None where the
      normaliser has none, and the weights (N, M) before and after dropout, the last three
      in the scores' dtype, or float32 if it holds less. A query that sees no key has
      output 0, weights 0 and gradient 0, and with softmax LSE −inf.
    """
    s = _scores(q, k, score, taint, bias)
    if mask.parts:
        s = jnp.where(mask.tile(*_places(s)), s, -jnp.inf)
    if hasattr(normaliser, "exponents"):
        weights, lse = softmax(*normaliser.exponents(s))
    else:
        weights = normaliser(s)
        lse = None

    dropped = weights if drop is None else drop(weights)
    # Factors are in v's dtype, fast in bfloat16, and sums in the scores' dtype.
    light = dropped.astype(v.dtype)
    out = jnp.einsum("nm,mv->nv", *factors(light, v), preferred_element_type=s.dtype)
    return out.astype(v.dtype), lse, weights, dropped


def scores_of_head(
    q: Float[Array, "N K"],
    k: Float[Array, "M L"],
    v: Float[Array, "M V"],
    *,
    score: Any,
    mask: Mask,
    taint: Taint | None,
    bias: Any,
    **others: Any,
) -> Float[Array, "N M"]:
    """Computes score(q, k) + bias of one head (N, M), 0 where the mask hides.

    It is for what needs all scores side by side, and takes the arguments of a kernel.
    """
    s = _scores(q, k, score, taint, bias)
    return jnp.where(mask.tile(*_places(s)), s, 0)


def _scores(q: Array, k: Array, score: Any, taint: Taint | None, bias: Any) -> Array:
    s = score(q, k)
    s = s.astype(at_least_float32(s.dtype))
    if bias is not None:
        bias = bias.tile(*_places(s)) if hasattr(bias, "tile") else bias
        s = s + bias.astype(s.dtype)
    return s if taint is None else s + taint.tile().astype(s.dtype)


def _places(s: Array) -> tuple[Array, Array]:
    return jnp.arange(s.shape[0]), jnp.arange(s.shape[1])


def all_heads(
    function: Callable,
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    *,
    is_finite: bool = False,
    **values: Any,
) -> Any:
    """Computes `function` of every head of every example, all at once.

    Args:
      function: takes q, k, v, score, normaliser, mask, taint, bias and drop of one head, as
        `reference` does, and gives arrays with a row for each query, (N, …).
      q, k, v: queries (*B, N, H, K), keys (*B, M, J, K) and values (*B, M, J, V). H/J heads
        of queries share a head of keys, which is read where it stands: nothing is repeated,
        and its gradient is the sum of theirs.
      is_finite: promises that q, k and v are finite; the function then gets no taint.
      **values: score, normaliser, mask, bias and drop as in `attn.attention`, `drop` one for
        each example and head.

    Returns:
      The function's results as (*B, N, H, …).
    """
    batch = q.shape[:-3]
    qkv, values = by_head(q, k, v, **values)
    results = map_by_head(function, qkv, values, is_finite)
    return jax.tree.map(lambda x: x.reshape(*batch, *x.shape[1:]), results)


def by_head(
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    *,
    score: Any,
    normaliser: Any,
    mask: Mask,
    bias: Any = None,
    drop: Any = None,
) -> tuple[list[AnyArray], dict[str, Any]]:
    """Returns q, k, v as (b, N, H, …), and the rest by name, with leaves of (b, H, …).

    An axis of b or H has length 1 where all share one.
    """
    batch = q.shape[:-3]
    count = math.prod(batch)
    h = q.shape[-2]
    if hasattr(bias, "tile"):
        bias = bias.flat(batch) if hasattr(bias, "flat") else shared_by_examples(bias)
    elif bias is not None:
        bias = spread(jnp.asarray(bias), batch, core=3)
    values = dict(
        score=shared_by_examples(score),
        normaliser=shared_by_examples(normaliser),
        mask=mask.flat(batch) if jax.tree.leaves(mask) else mask,
        bias=bias,
        drop=jax.tree.map(lambda x: x.reshape(count, h), drop),
    )
    for name, value in values.items():
        for leaf in jax.tree.leaves(value):
            if leaf.shape[0] not in (1, count) or leaf.shape[1] not in (1, h):
                raise ValueError(
                    f"{name} has an array for {leaf.shape[0]} examples and "
                    f"{leaf.shape[1]} heads; there are {count} examples and {h} heads, "
                    "and 1 stands for all of them"
                )
    return [x.reshape(count, *x.shape[-3:]) for x in (q, k, v)], values


def map_by_head(
    function: Callable, qkv: Any, values: dict[str, Any], is_finite: bool = False
) -> Any:
    """Maps the function of one head over arrays and values as `by_head` gives them."""
    groups = qkv[1].shape[2]

    def in_groups(x):
        """Returns x (b, heads, …) as (b, groups, heads of each, …)."""
        if x.shape[1] in (1, groups):
            return jnp.expand_dims(x, 2)
        return x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])

    rows = (*(jnp.moveaxis(x, 2, 1) for x in qkv), values)
    # Over examples, then over heads of keys, then over the queries of each.
    mapped = functools.partial(_one_finite_head if is_finite else _one_head, function)
    for _ in range(3):
        mapped = functools.partial(map_leading, mapped)
    results = mapped(*jax.tree.map(in_groups, rows))
    return jax.tree.map(
        lambda x: jnp.moveaxis(jax.lax.collapse(x, 1, 3), 1, 2), results
    )


def _one_finite_head(
    function: Callable, q: Array, k: Array, v: Array, values: dict[str, Any]
) -> Any:
    return function(q, k, v, taint=None, **_with_whole_bias(values, q, k))


def _with_whole_bias(values: dict[str, Any], q: Array, k: Array) -> dict[str, Any]:
    """Returns the values with a bias that is an array as (N, M)."""
    bias = values["bias"]
    if bias is None or hasattr(bias, "tile"):
        return values
    return values | dict(bias=jnp.broadcast_to(bias, (q.shape[0], k.shape[0])))


def _one_head(
    function: Callable, q: Array, k: Array, v: Array, values: dict[str, Any]
) -> Any:
    """Calls the function with what NaN and Inf in q, k and v may reach kept apart."""
    values = _with_whole_bias(values, q, k)
    q_finite = _is_finite(q)
    kv_finite = _is_finite(k) & _is_finite(v)
    if values["mask"].parts:
        dtype = at_least_float32(v.dtype)
        taint = (jnp.where(x, 0, jnp.nan).astype(dtype) for x in (q_finite, kv_finite))
        # 0 times a number that is left as it is would still be NaN in a gradient.
        q, k, v = (jnp.where(jnp.isfinite(x), x, 0) for x in (q, k, v))
        return function(q, k, v, taint=Taint(*taint), **values)
    results = function(q, k, v, taint=None, **values)
    # Without a mask each query sees all keys, and gets NaN as it does under a mask that
    # hides nothing. To change k and v instead would change the rounding of their products.
    rows = q_finite & kv_finite.all()

    def spoiled(x):
        if not (len(k) and jnp.issubdtype(x.dtype, jnp.floating)):
            return x
        return jnp.where(rows.reshape(-1, *[1] * (x.ndim - 1)), x, jnp.nan)

    return jax.tree.map(spoiled, results)


def _is_finite(x: Array) -> Array:
    """Tells of each token whether all its numbers are finite."""
    return jnp.isfinite(x).all(-1)
