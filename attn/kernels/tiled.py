"""Attention in O(N + M) memory, forward and backward, for every score and mask; for one head.

Queries go in blocks, each of which sees the whole of the keys that it can see at all, so that no running softmax is
needed. A block keeps its output and its LSE; its derivative makes the weights again from those. The derivative is
written once, as a forward-mode rule that is linear in its tangents: reverse mode, second order and vmap follow from it.
N queries, M keys, K = d_k, V = d_v; n queries and m keys in a block.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn.kernels.masked import finite, masked_scores

BLOCK = 256
"""Queries in a block at most."""
RUNS = 8
"""A causal mask cuts the blocks into so many runs, each with the keys that its last query sees."""


def tiled(q: Float[Array, "N K"], k: Float[Array, "M L"], v: Float[Array, "M V"], *, score, mask, bias=None, drop=None):
    """softmax(score(q, k) + bias) v over the keys that `mask` shows. Returns the output (N, V) and the LSE (N,).

    Memory beside the arguments: one block of scores, n·M, or n·(n + left + right) within a window. Under a causal mask
    at most 1/RUNS of the work goes to hidden keys. Equal to `reference`, to rounding, and with the same dropout.
    """
    score, q, k = score.prepare(q, k)
    queries, m = q.shape[0], k.shape[0]
    count = -(-queries // BLOCK)
    n = -(-queries // count)

    def blocks(x):
        return None if x is None else jnp.pad(x, ((0, count * n - queries), (0, 0))).reshape(count, n, -1)

    def one(keys, t, q, bias):
        """Block t, with the keys from keys.start on: all arrays but q are cut to them here."""
        start, width = keys
        cut = functools.partial(jax.lax.dynamic_slice_in_dim, start_index=start, slice_size=width)
        bias = None if bias is None else cut(bias, axis=1)
        i, j = t * n + jnp.arange(n), start + jnp.arange(width)
        return _block(m, score, q, cut(k), cut(v), bias, mask, drop, i, j)

    numbers, q, bias = jnp.arange(count), blocks(q), blocks(bias)
    left, right = mask.reach()
    if left is not None and right is not None and n + left + right < m:
        width = max(1, n + left + right)
        out, lse = _map(lambda t, *x: one((jnp.clip(t * n - left, 0, m - width), width), t, *x), numbers, q, bias)
    else:
        runs = _runs(count, n, m, left, right)
        found = [_map(functools.partial(one, keys), *jax.tree.map(lambda x, run=run: x[run], (numbers, q, bias)))
                 for run, keys in runs]
        out, lse = (jnp.concatenate(parts) for parts in zip(*found, strict=True))
    return out.reshape(count * n, -1)[:queries].astype(v.dtype), lse.reshape(-1)[:queries], None


def _map(function, *arrays):
    """lax.map over the blocks; a single block is called as it is, for the compiler to fuse with what surrounds it."""
    if arrays[0].shape[0] == 1:
        return jax.tree.map(lambda x: x[None], function(*jax.tree.map(lambda x: x[0], arrays)))
    return jax.lax.map(lambda x: function(*x), arrays)


def _runs(count, n, m, left, right):
    """Cuts the blocks into runs, each with the static (start, width) of the keys that its queries reach."""
    size = count if left is None and right is None else -(-count // RUNS)
    for first in range(0, count, size):
        last = min(first + size, count)
        stop = m if right is None else min(m, max(1, last * n + right))
        start = 0 if left is None else min(stop - 1, max(0, first * n - left))
        yield slice(first, last), (start, stop - start)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _block(m, score, q, k, v, bias, mask, drop, i, j):
    """Output (n, V) and LSE (n,) of queries i over keys j of all m, in float32 at least."""
    s = masked_scores(score, q, k, v, bias, mask, i, j)
    top = jax.lax.stop_gradient(s.max(-1, keepdims=True))
    top = jnp.where(top == -jnp.inf, 0.0, top)
    e = jnp.exp(s - top)
    total = e.sum(-1, keepdims=True)
    dropped = e if drop is None else drop.tile(e, i, j, m)
    out = _times(dropped, finite(v)) / jnp.where(total == 0, 1.0, total)
    return out, (jnp.log(total) + top)[:, 0]


@_block.defjvp
def _block_jvp(m, primals, tangents):
    out, lse = _block(m, *primals)
    return (out, lse), _tangent(m, primals, tangents[:5], out, lse)


# The weights are made again, and not kept, when the tangents are transposed into gradients.
@functools.partial(jax.checkpoint, prevent_cse=False, static_argnums=(0,))
def _tangent(m, primals, tangents, out, lse):
    """With w = exp(s − LSE): dLSE = Σ w ds, dout = Σ w ds v − out dLSE + Σ w dv; linear in the tangents."""
    score, q, k, v, bias, mask, drop, i, j = primals
    d_score, d_q, d_k, d_v, d_bias = tangents

    def scores(score, q, k, bias):
        return masked_scores(score, q, k, v, bias, mask, i, j)

    s, d_s = jax.jvp(scores, (score, q, k, bias), (d_score, d_q, d_k, d_bias))
    # A row that sees nothing has LSE −inf, and weights 0 like every hidden key.
    w = jnp.exp(s - jnp.where(lse == -jnp.inf, 0.0, lse)[:, None])
    w_ds = w * d_s
    d_lse = w_ds.sum(-1)
    if drop is not None:
        w_ds, w = drop.tile(w_ds, i, j, m), drop.tile(w, i, j, m)
    d_v = jnp.where(jnp.isfinite(v), d_v, 0)
    d_out = _times(w_ds, finite(v)) - out * d_lse[:, None] + _times(w, d_v)
    return d_out, d_lse


def _times(w, v):
    """w v in w's precision, v in its own."""
    return jnp.einsum("nm,mv->nv", w.astype(v.dtype), v, preferred_element_type=w.dtype)
