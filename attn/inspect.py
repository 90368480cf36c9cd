"""Looking inside attention without N·M memory: what its weights w = softmax(score(q, k) + bias) are like.

The arguments are those of `attn.attention`, without values. The log of the softmax's denominator is
`attention(..., return_lse=True)`. Everything here has gradients, and they too take O(N + M) memory.
B batch (any leading axes), N queries, M keys, H heads, K = L = d_k; n queries and m keys in a block.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from attn.attention import attention, check_shapes, make_drop
from attn.heads import near_the_caches, over_heads
from attn.kernels.blocks import SAVED, over_blocks
from attn.kernels.tile import Tile
from attn.masks import Mask
from attn.scores import ScaledDot


def entropy(
    q: Float[ArrayLike, "*B N H K"],
    k: Float[ArrayLike, "*B M H L"],
    *,
    score=ScaledDot(),
    mask: Mask | None = None,
    bias: Any = None,
) -> Float[Array, "*B N H"]:
    """−Σ_j w_ij log w_ij in nats: 0 for a query that attends to one key or sees none, log M for even weights."""
    check_shapes(q, k, k, score)
    return _entropy(q, k, score, mask or Mask(), bias)


@jax.jit
def _entropy(q, k, score, mask, bias):
    return by_heads(
        functools.partial(over_blocks, _entropy_of),
        q,
        k,
        score=score,
        mask=mask,
        bias=bias,
    )


def _entropy_of(tile):
    below, e, total = softmax_parts(tile.scores())
    # Σ w s − LSE would lose small entropies of large scores to rounding; of these terms none is negative.
    far = (e * jnp.where(below == -jnp.inf, 0.0, -below)).sum(-1)
    return (jnp.log(total) + far[:, None] / total)[:, 0]


def top_weights(
    q: Float[ArrayLike, "*B N H K"],
    k: Float[ArrayLike, "*B M H L"],
    *,
    score=ScaledDot(),
    mask: Mask | None = None,
    bias: Any = None,
    top: int = 5,
) -> tuple[Float[Array, "*B N H top"], Int[Array, "*B N H top"]]:
    """The largest weights of each query in descending order, and the keys they are on; of equals the first key first.

    A query that sees fewer keys than `top` has weights 0 and indices −1 after them.
    """
    check_shapes(q, k, k, score)
    return _top_weights(q, k, score, mask or Mask(), bias, top=top)


@functools.partial(jax.jit, static_argnames="top")
def _top_weights(q, k, score, mask, bias, *, top):
    block = functools.partial(_top_of, top=top)
    return by_heads(
        functools.partial(over_blocks, block), q, k, score=score, mask=mask, bias=bias
    )


def _top_of(tile, top):
    below, _, total = softmax_parts(tile.scores())
    best, at = jax.lax.top_k(below, min(top, below.shape[-1]))
    rest = ((0, 0), (0, top - best.shape[-1]))
    index = jnp.where(best == -jnp.inf, -1, tile.j[at]).astype(jnp.int32)
    return jnp.pad(jnp.exp(best) / total, rest), jnp.pad(
        index, rest, constant_values=-1
    )


def received(
    q: Float[ArrayLike, "*B N H K"],
    k: Float[ArrayLike, "*B M H L"],
    *,
    score=ScaledDot(),
    mask: Mask | None = None,
    bias: Any = None,
    dropout_rate: float | Float[Array, ""] = 0.0,
    dropout_key: Array | None = None,
) -> Float[Array, "*B M H"]:
    """Σ_i w_ij: how much attention each key receives. With dropout, of the weights after the same dropout.

    (1 − Σ_i w_ij)² is the penalty on overlooked keys of "Show, attend and tell" (Xu et al. 2015, section 4.2.1).
    """
    # Outputs are linear in the values: for values of width 1 this is the gradient of their sum.
    values = jnp.zeros((*k.shape[:-1], 1), jnp.promote_types(k.dtype, jnp.float32))
    return jax.grad(
        lambda v: attention(
            q,
            k,
            v,
            score=score,
            mask=mask,
            bias=bias,
            dropout_rate=dropout_rate,
            dropout_key=dropout_key,
        ).sum()
    )(values)[..., 0]


def chosen_rows(
    q: Float[ArrayLike, "*B N H K"],
    k: Float[ArrayLike, "*B M H L"],
    queries: Sequence[int] | Int[ArrayLike, "R"],
    *,
    score=ScaledDot(),
    mask: Mask | None = None,
    bias: Any = None,
    dropout_rate: float | Float[Array, ""] = 0.0,
    dropout_key: Array | None = None,
) -> Float[Array, "*B H R M"]:
    """The weights of the queries at some positions only, in R·M memory; of one that sees nothing they are 0.

    Without dropout the weights before it, with a rate and key the weights after the dropout that `attention` does.

    Raises:
      ValueError: shapes that do not fit, a position outside of 0 ≤ i < N, dropout without a key.
    """
    check_shapes(q, k, k, score)
    n, queries = q.shape[-3], np.asarray(queries, int)
    if not ((queries >= 0) & (queries < n)).all():
        raise ValueError(
            f"queries={queries.tolist()} must be positions of the {n} queries, 0 to {n - 1}"
        )
    drop = make_drop(dropout_rate, dropout_key, (*q.shape[:-3], q.shape[-2]))
    return _chosen_rows(q, k, queries, score, mask or Mask(), bias, drop)


@jax.jit
def _chosen_rows(q, k, queries, score, mask, bias, drop):
    dense = bias is not None and not hasattr(bias, "tile")

    def of_one_head(q, k, v, *, score, mask, taint, bias, drop):
        keys = jnp.arange(k.shape[0])

        # Each for itself, at its true position, which mask, bias and dropout go by: they take runs of neighbours only.
        def row(i, q, bias):
            bias = bias[None] if dense else bias
            tile = Tile(
                score,
                q[None],
                k.T,
                v.T,
                taint,
                bias,
                mask,
                drop,
                i[None],
                keys,
                keys.size,
            )
            _, e, total = softmax_parts(tile.scores())
            return tile.dropped(e / total)[0]

        return jax.vmap(row, in_axes=(0, 0, 0 if dense else None))(queries, q, bias)

    if dense and jnp.ndim(bias) > 1 and bias.shape[-2] > 1:
        bias = jnp.take(bias, queries, axis=-2)
    rows = by_heads(
        of_one_head,
        jnp.take(q, queries, axis=-3),
        k,
        score=score,
        mask=mask,
        bias=bias,
        drop=drop,
    )
    return jnp.moveaxis(rows, -3, -2)


def by_heads(function, q, k, *, score, mask, bias, drop=None):
    """`over_heads` of a function that needs no values, its derivatives keeping what is named SAVED."""
    return over_heads(
        function,
        q,
        k,
        k[..., :0],
        score=score,
        mask=mask,
        bias=bias,
        drop=drop,
        at_once=near_the_caches(q.shape[-3], k.shape[-3], score),
        saved=SAVED,
    )


def softmax_parts(
    s: Float[Array, "n m"],
) -> tuple[Float[Array, "n m"], Float[Array, "n m"], Float[Array, "n 1"]]:
    """s − max s, its exponential e, and the total of that, so that the weights are e / total; 0 in rows of −inf."""
    top = jax.lax.stop_gradient(s.max(-1, keepdims=True))
    # A row of −inf: subtracting its maximum would be −inf − (−inf) = NaN, in the value and in every gradient.
    below = s - jnp.where(top == -jnp.inf, 0.0, top)
    e = jnp.exp(below)
    total = e.sum(-1, keepdims=True)
    return below, e, jnp.where(total == 0, 1.0, total)
