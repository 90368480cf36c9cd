"""Attention in O(N + M) memory, forward and backward, for every score and mask; for one head.

A block of queries keeps its output and its LSE; its derivative makes the weights again from those. The derivative is
written once, as a forward-mode rule that is linear in its tangents: reverse mode, second order and vmap follow from it.
N queries, M keys, K = d_k, V = d_v; n queries and m keys in a block.
"""

import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from attn.kernels.blocks import SAVED, over_blocks


def tiled(
    q: Float[Array, "N K"],
    k: Float[Array, "M L"],
    v: Float[Array, "M V"],
    *,
    score,
    mask,
    taint,
    bias=None,
    drop=None,
):
    """softmax(score(q, k) + bias) v over the keys that `mask` shows. Returns the output (N, V) and the LSE (N,).

    Memory beside the arguments: one block of scores, n·M, or n·(n + left + right) within a window. Under a causal mask
    at most 1/RUNS of the work goes to hidden keys. Equal to `reference`, to rounding, and with the same dropout.
    """
    out, lse = over_blocks(
        _block, q, k, v, score=score, mask=mask, taint=taint, bias=bias, drop=drop
    )
    return out.astype(v.dtype), lse


@jax.custom_jvp
def _block(tile):
    """Output (n, V) and LSE (n,) of the tile, in float32 at least."""
    s = tile.scores()
    top = jax.lax.stop_gradient(s.max(-1, keepdims=True))
    # A row of −inf: subtracting its maximum would be −inf − (−inf) = NaN.
    top = jnp.where(top == -jnp.inf, 0.0, top)
    e = jnp.exp(s - top)
    total = e.sum(-1, keepdims=True)
    out = _times(tile.dropped(e), tile.v) / jnp.where(total == 0, 1.0, total)
    return out, (jnp.log(total) + top)[:, 0]


@_block.defjvp
def _block_jvp(primals, tangents):
    (tile,), (d_tile,) = primals, tangents
    out, lse = checkpoint_name(_block(tile), SAVED)
    changes = d_tile.score, d_tile.q, d_tile.k, d_tile.bias, d_tile.v
    return (out, lse), _tangent(tile, changes, out, lse)


# The weights are made again, and not kept, when the tangents are transposed into gradients.
@functools.partial(jax.checkpoint, prevent_cse=False)
def _tangent(tile, changes, out, lse):
    """With w = exp(s − LSE): dLSE = Σ w ds, dout = Σ w ds v − out dLSE + Σ w dv; linear in the changes."""
    *changes, d_v = changes

    def scores(score, q, k, bias):
        return tile._replace(score=score, q=q, k=k, bias=bias).scores()

    s, d_s = jax.jvp(scores, (tile.score, tile.q, tile.k, tile.bias), tuple(changes))
    # A row that sees nothing has LSE −inf, and weights 0 like every hidden key.
    w = jnp.exp(s - jnp.where(lse == -jnp.inf, 0.0, lse)[:, None])
    w_ds = w * d_s
    d_lse = w_ds.sum(-1)
    d_out = (
        _times(tile.dropped(w_ds), tile.v)
        - out * d_lse[:, None]
        + _times(tile.dropped(w), d_v)
    )
    return d_out, d_lse


def _times(w, v):
    """w vᵀ in w's precision, v in its own."""
    return jnp.einsum("nm,vm->nv", w.astype(v.dtype), v, preferred_element_type=w.dtype)
