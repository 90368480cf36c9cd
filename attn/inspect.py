"""Statistics of attention's weights w = normaliser(score(q, k) + bias), without N·M memory.

The arguments are those of `attn.attention`, without values. The log of the softmax's
denominator is `attention(..., return_lse=True)`. Everything here has gradients, and they
too take O(N + M) memory. B batch (any leading axes), N queries, M keys, H heads of
queries, J heads of keys, K = L = d_k; n queries and m keys in a block.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Real

from attn.arguments import check_normaliser, checked, has_no_pairs, make_drop
from attn.attention import attention
from attn.kernels.query_blocks import over_blocks
from attn.kernels.reference import Taint
from attn.kernels.tile import Tile
from attn.map_heads import map_heads_of_keys
from attn.masks import Mask
from attn.normalisers import Softmax, softmax_parts
from attn.pytrees import AnyArray, at_least_float32
from attn.scores import ScaledDot


def entropy(
    q: Real[AnyArray, "*B N H K"],
    k: Real[AnyArray, "*B M J L"],
    *,
    score: Any = ScaledDot(),
    normaliser: Any = Softmax(),
    mask: Mask | None = None,
    bias: Any = None,
) -> Float[Array, "*B N H"]:
    """Computes −Σ_j p_ij log p_ij in nats, p_ij = w_ij / Σ_j w_ij.

    It is 0 for a query that attends to one key or sees none, log M for even weights.
    """
    q, k, _, mask = checked(q, k, k, score, mask, bias)
    check_normaliser(normaliser)
    if has_no_pairs(q, k):
        return jnp.zeros(q.shape[:-1], _wide(q))
    return _entropy(q, k, score, normaliser, mask, bias)


@jax.jit
def _entropy(
    q: AnyArray, k: AnyArray, score: Any, normaliser: Any, mask: Mask, bias: Any
) -> Array:
    blocks = functools.partial(over_blocks, _entropy_of_tile)
    rest = dict(score=score, normaliser=normaliser, mask=mask, bias=bias)
    return map_heads_of_keys(blocks, q, k, **rest)


def _entropy_of_tile(tile: Tile) -> Array:
    if not hasattr(tile.normaliser, "exponents"):
        weights = tile.normaliser(tile.scores())
        total = weights.sum(-1, keepdims=True)
        shares = weights / jnp.where(total == 0, 1.0, total)
        # 1 in place of 0, of which the logarithm has no derivative.
        logs = jnp.log(jnp.where(shares == 0, 1.0, shares))
        return -(shares * logs).sum(-1)
    # What else is in the denominator is no share of a key.
    x, _ = tile.exponents()
    below, e, total = softmax_parts(x)
    # Σ w s − LSE would lose small entropies of large scores to rounding; of these terms
    # none is negative.
    far = (e * jnp.where(below == -jnp.inf, 0.0, -below)).sum(-1)
    return (jnp.log(total) + far[:, None] / total)[:, 0]


def max_score(
    q: Real[AnyArray, "*B N H K"],
    k: Real[AnyArray, "*B M J L"],
    *,
    score: Any = ScaledDot(),
    mask: Mask | None = None,
    bias: Any = None,
) -> Float[Array, "*B N H"]:
    """Returns max_j score(q_i, k_j) + bias_ij of the keys that a query sees, −∞ for none."""
    q, k, _, mask = checked(q, k, k, score, mask, bias)
    if has_no_pairs(q, k):
        return jnp.full(q.shape[:-1], -jnp.inf, _wide(q))
    return _max_score(q, k, score, mask, bias)


@jax.jit
def _max_score(q: AnyArray, k: AnyArray, score: Any, mask: Mask, bias: Any) -> Array:
    blocks = functools.partial(over_blocks, lambda tile: tile.scores().max(-1))
    rest = dict(score=score, normaliser=Softmax(), mask=mask, bias=bias)
    return map_heads_of_keys(blocks, q, k, **rest)


def top_weights(
    q: Real[AnyArray, "*B N H K"],
    k: Real[AnyArray, "*B M J L"],
    *,
    score: Any = ScaledDot(),
    normaliser: Any = Softmax(),
    mask: Mask | None = None,
    bias: Any = None,
    top: int = 5,
) -> tuple[Float[Array, "*B N H top"], Int[Array, "*B N H top"]]:
    """Returns the largest weights of each query in descending order, and their keys.

    Of equal weights the first key comes first. A query that sees fewer keys than `top`
    has weights 0 and indices −1 after them.
    """
    q, k, _, mask = checked(q, k, k, score, mask, bias)
    check_normaliser(normaliser)
    if has_no_pairs(q, k):
        shape = (*q.shape[:-1], top)
        return jnp.zeros(shape, _wide(q)), jnp.full(shape, -1, jnp.int32)
    return _top_weights(q, k, score, normaliser, mask, bias, top=top)


@functools.partial(jax.jit, static_argnames="top")
def _top_weights(
    q: AnyArray,
    k: AnyArray,
    score: Any,
    normaliser: Any,
    mask: Mask,
    bias: Any,
    *,
    top: int,
) -> tuple[Array, Array]:
    of_tile = functools.partial(_top_of_tile, top=top)
    blocks = functools.partial(over_blocks, of_tile)
    rest = dict(score=score, normaliser=normaliser, mask=mask, bias=bias)
    return map_heads_of_keys(blocks, q, k, **rest)


def _top_of_tile(tile: Tile, top: int) -> tuple[Array, Array]:
    s = tile.scores()
    weights = tile.normaliser(s)
    if hasattr(tile.normaliser, "exponents"):
        # Exponents have an order still where weights are rounded to 0.
        order, _ = tile.normaliser.exponents(s)
    else:
        order = jnp.where(s == -jnp.inf, -jnp.inf, weights)
    # Within a window a tile may have fewer keys than `top`.
    best, at = jax.lax.top_k(order, min(top, s.shape[-1]))
    rest = ((0, 0), (0, top - best.shape[-1]))
    index = jnp.where(best == -jnp.inf, -1, tile.j[at]).astype(jnp.int32)
    weights = jnp.take_along_axis(weights, at, axis=-1)
    return jnp.pad(weights, rest), jnp.pad(index, rest, constant_values=-1)


def received(
    q: Real[AnyArray, "*B N H K"],
    k: Real[AnyArray, "*B M J L"],
    *,
    score: Any = ScaledDot(),
    normaliser: Any = Softmax(),
    mask: Mask | None = None,
    bias: Any = None,
    dropout_rate: float | Float[Array, ""] = 0.0,
    dropout_key: Array | None = None,
) -> Float[Array, "*B M H"]:
    """Computes Σ_i w_ij, the attention that each key receives from a head of queries.

    With dropout, it is that of the weights after the same dropout. (1 − Σ_i w_ij)² is the
    penalty on overlooked keys of "Show, attend and tell" (Xu et al. 2015, section 4.2.1).
    """
    # Outputs are linear in the values: for values of width 1 this is the gradient of
    # their sum. Heads that share keys have a feature each.
    group = q.shape[-2] // max(1, k.shape[-2])
    dtype = at_least_float32(k.dtype)
    values = jnp.zeros((*k.shape[:-1], group), dtype)

    def total(v):
        out = attention(
            q,
            k,
            v,
            score=score,
            normaliser=normaliser,
            mask=mask,
            bias=bias,
            dropout_rate=dropout_rate,
            dropout_key=dropout_key,
        )
        own = out.reshape(*out.shape[:-2], k.shape[-2], group, group)
        return jnp.diagonal(own, axis1=-2, axis2=-1).sum()

    received = jax.grad(total)(values)
    return received.reshape(*k.shape[:-2], q.shape[-2])


def weight_rows(
    q: Real[AnyArray, "*B N H K"],
    k: Real[AnyArray, "*B M J L"],
    queries: Sequence[int] | Int[ArrayLike, "R"],
    *,
    score: Any = ScaledDot(),
    normaliser: Any = Softmax(),
    mask: Mask | None = None,
    bias: Any = None,
    dropout_rate: float | Float[Array, ""] = 0.0,
    dropout_key: Array | None = None,
) -> Float[Array, "*B H R M"]:
    """Returns the weights of the queries at some positions only, in R·M memory.

    A query that sees nothing has weights 0. Without dropout these are the weights before
    it, with a rate and key the weights after the dropout that `attention` does.

    Raises:
      ValueError: shapes that do not fit, a position outside of 0 ≤ i < N, dropout without
        a key.
    """
    q, k, _, mask = checked(q, k, k, score, mask, bias)
    check_normaliser(normaliser)
    n = q.shape[-3]
    # numpy's, because the check needs numbers and not tracers.
    queries = np.asarray(queries, int)
    if not ((queries >= 0) & (queries < n)).all():
        raise ValueError(
            f"queries={queries.tolist()} must be positions of the {n} queries, "
            f"0 to {n - 1}"
        )
    drop = make_drop(dropout_rate, dropout_key, (*q.shape[:-3], q.shape[-2]))
    if has_no_pairs(q, k):
        shape = (*q.shape[:-3], q.shape[-2], queries.size, k.shape[-3])
        return jnp.zeros(shape, _wide(q))
    return _weight_rows(q, k, queries, score, normaliser, mask, bias, drop)


@jax.jit
def _weight_rows(
    q: AnyArray,
    k: AnyArray,
    queries: AnyArray,
    score: Any,
    normaliser: Any,
    mask: Mask,
    bias: Any,
    drop: Any,
) -> Array:
    dense = isinstance(bias, jax.Array)

    def one_head(q, k, v, *, score, normaliser, mask, taint, bias, drop):
        keys = jnp.arange(k.shape[0])

        # One query at a time, at its true position, which mask, bias and dropout go by:
        # they take runs of neighbours only.
        def row(i, q, q_taint, bias):
            tile = Tile(
                score=score,
                normaliser=normaliser,
                q=q[None],
                k=k.T,
                v=v.T,
                taint=None if taint is None else Taint(q_taint[None], taint.k),
                bias=bias[None] if dense else bias,
                mask=mask,
                drop=drop,
                i=i[None],
                runs=(keys,),
                columns=keys.size,
            )
            return tile.dropped(normaliser(tile.scores()))[0]

        q_taint = None if taint is None else taint.q
        in_axes = (0, 0, 0, 0 if dense else None)
        return jax.vmap(row, in_axes=in_axes)(queries, q, q_taint, bias)

    # A bias with one row is shared by all queries and serves as it is.
    if isinstance(bias, jax.Array) and bias.ndim > 1 and bias.shape[-2] > 1:
        bias = jnp.take(bias, queries, axis=-2)
    q = jnp.take(q, queries, axis=-3)
    rest = dict(score=score, normaliser=normaliser, mask=mask, bias=bias)
    rows = map_heads_of_keys(one_head, q, k, drop=drop, **rest)
    return jnp.moveaxis(rows, -3, -2)


def _wide(x: AnyArray) -> np.dtype:
    """Returns the dtype of the statistics of x, float32 at least."""
    return jnp.promote_types(jnp.result_type(x), jnp.float32)
