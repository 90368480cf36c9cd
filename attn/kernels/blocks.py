"""Attention in O(N + M) memory, forward and backward, for every score and mask; one head.

A block of queries keeps its LSE; its derivative makes the weights again from that. The
derivative is written once, as a forward-mode rule that is linear in its tangents: reverse
mode, second order and vmap follow from it. Weights that are no exponentials are made again
from their scores. N queries, M keys, K = d_k, V = d_v; n queries
and m keys in a block.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from attn.functions import SAVED
from attn.kernels.query_blocks import over_blocks
from attn.kernels.reference import Taint
from attn.kernels.tile import Tile
from attn.masks import Mask
from attn.normalisers import exponentials
from attn.pytrees import factors


def blocks(
    q: Float[Array, "N K"],
    k: Float[Array, "M L"],
    v: Float[Array, "M V"],
    *,
    score: Any,
    normaliser: Any,
    mask: Mask,
    taint: Taint | None,
    bias: Any = None,
    drop: Any = None,
) -> tuple[Array, Array | None]:
    """Computes normaliser(score(q, k) + bias) v over the keys that `mask` shows.

    Returns the output (N, V) and the LSE (N,), None where the normaliser has none, equal
    to those of `reference` to rounding, with the same dropout. Memory beside the arguments
    is one block of scores, n·M, or n·(n + left + right) within a window. Under a causal
    mask at most 1/RUNS of the work goes to hidden keys.
    """
    rest = dict(mask=mask, taint=taint, bias=bias, drop=drop)
    map_blocks = functools.partial(
        over_blocks, q=q, k=k, v=v, score=score, normaliser=normaliser, **rest
    )
    if hasattr(normaliser, "exponents"):
        out, lse = map_blocks(_block)
    else:
        out = map_blocks(_block_of_weights)
        lse = None
    return out.astype(v.dtype), lse


def _block_of_weights(tile: Tile) -> Array:
    """Computes the output (n, V) of a normaliser that says of its weights no more."""
    return _times(tile.dropped(tile.normaliser(tile.scores())), tile.v)


@jax.custom_jvp
def _block(tile: Tile) -> tuple[Array, Array]:
    """Computes the output (n, V) and LSE (n,) of the tile, in float32 at least."""
    top, e, total = exponentials(*tile.exponents())
    # Dropout is of the weights: the denominator counts those that are dropped too.
    out = _times(tile.dropped(e), tile.v) / jnp.where(total == 0, 1.0, total)
    # Of a row that sees nothing this is log 0 + 0 = −inf, as the contract has it.
    return out, (jnp.log(total) + top)[:, 0]


@_block.defjvp
def _block_jvp(primals: Any, tangents: Any) -> Any:
    (tile,) = primals
    (d_tile,) = tangents
    out, lse = _block(tile)
    lse = checkpoint_name(lse, SAVED)
    # Mask, taint, dropout and places count as constants: no tangent goes through.
    changes = d_tile.normaliser, d_tile.score, d_tile.q, d_tile.k, d_tile.bias, d_tile.v
    return (out, lse), _tangent(tile, changes, lse)


# The weights are made again, and not kept, when the tangents are transposed into gradients.
@functools.partial(jax.checkpoint, prevent_cse=False)
def _tangent(tile: Tile, changes: Any, lse: Array) -> tuple[Array, Array]:
    """Computes dLSE = Σ w dx and dout = Σ w (dx − dLSE) v + Σ w dv, w = exp(x − LSE).

    What else is in the denominator adds to dLSE as a key does. Both are linear in the
    changes. Neither needs the output, which would take as much memory until the backward
    pass as all that it is made of.
    """
    *changes, d_v = changes

    def exponents(normaliser, score, q, k, bias):
        changed = dict(normaliser=normaliser, score=score, q=q, k=k, bias=bias)
        return tile._replace(**changed).exponents()

    parts = tile.normaliser, tile.score, tile.q, tile.k, tile.bias
    (x, rest), (d_x, d_rest) = jax.jvp(exponents, parts, tuple(changes))
    # A row that sees nothing has LSE −inf, and weights 0 like every hidden key.
    w = jnp.exp(x - jnp.where(lse == -jnp.inf, 0.0, lse)[:, None])
    w_dx = w * d_x
    d_lse = w_dx.sum(-1)
    if rest is not None:
        d_lse = d_lse + jnp.exp(rest - lse) * d_rest
    d_w = w_dx - w * d_lse[:, None]
    through_scores = _times(tile.dropped(d_w), tile.v)
    return through_scores + _times(tile.dropped(w), d_v), d_lse


def _times(w: Array, v: Array) -> Array:
    """Computes w vᵀ in w's precision, v in its own."""
    both = factors(w.astype(v.dtype), v)
    return jnp.einsum("nm,vm->nv", *both, preferred_element_type=w.dtype)
