"""A head in blocks of queries, each with the whole of the keys that it can see at all.

So no running softmax is needed, and O(N + M) memory; a window or a causal mask leaves out the keys that nobody in the
block sees. n queries in a block.
"""

import functools

import jax
import jax.numpy as jnp

from attn.kernels.tile import Tile

BLOCK = 256
"""Queries in a block at most."""
RUNS = 8
"""A causal mask cuts the blocks into so many runs, each with the keys that its last query sees."""
SAVED = "results of a block"
"""The name, for jax.checkpoint, of what derivatives keep of a block."""


def over_blocks(function, q, k, v, *, score, mask, taint, bias=None, drop=None):
    """`function(tile)`, arrays with a row for each query of the tile, for all queries (N, …) of a head."""
    score, q, k = score.prepare(q, k)
    k, v = k.T, v.T
    queries, m = q.shape[0], k.shape[1]
    count = -(-queries // BLOCK)
    n = -(-queries // count)
    dense = bias is not None and not hasattr(bias, "tile")

    def blocks(x):
        return jnp.pad(x, ((0, count * n - queries), (0, 0))).reshape(count, n, -1)

    # Else the keys that each block sees would be kept for its derivative, a copy for every block.
    @functools.partial(
        jax.checkpoint,
        policy=jax.checkpoint_policies.save_only_these_names(SAVED),
        prevent_cse=False,
        static_argnums=0,
    )
    def one(width, start, t, q, rows):
        """Block t, with so many keys from start on: all arrays but q are cut to them here."""
        cut = functools.partial(
            jax.lax.dynamic_slice_in_dim, start_index=start, slice_size=width, axis=-1
        )
        i, j = t * n + jnp.arange(n), start + jnp.arange(width)
        own = cut(rows) if dense else bias
        return function(
            Tile(
                score,
                q,
                cut(k),
                cut(v),
                None if taint is None else cut(taint),
                own,
                mask,
                drop,
                i,
                j,
                m,
            )
        )

    rows = jnp.arange(count), blocks(q), blocks(bias) if dense else None
    left, right = mask.reach()
    if left is not None and right is not None and n + left + right < m:
        width = max(1, n + left + right)
        found = _map(
            lambda t, *x: one(width, jnp.clip(t * n - left, 0, m - width), t, *x), rows
        )
    else:
        runs = []
        for run, (start, width) in _runs(count, n, m, left, right):
            own = jax.tree.map(lambda x, run=run: x[run], rows)
            if runs:
                own, runs[-1] = _in_turn(own, runs[-1])
            runs.append(_map(functools.partial(one, width, start), own))
        found = jax.tree.map(lambda *parts: jnp.concatenate(parts), *runs)
    return jax.tree.map(lambda x: x.reshape(count * n, *x.shape[2:])[:queries], found)


@jax.custom_jvp
def _in_turn(following, done):
    """Both, the first not before the second: runs one after another can use the same memory."""
    return jax.lax.optimization_barrier((following, done))


# JAX 0.12 cannot transpose a barrier of which a part only is differentiated.
_in_turn.defjvp(lambda primals, tangents: (_in_turn(*primals), tangents))


def _map(function, rows):
    """lax.map over the blocks; a single block is called as it is, for the compiler to fuse with what surrounds it."""
    if rows[0].shape[0] == 1:
        return jax.tree.map(
            lambda x: x[None], function(*jax.tree.map(lambda x: x[0], rows))
        )
    return jax.lax.map(lambda x: function(*x), rows)


def _runs(count, n, m, left, right):
    """Cuts the blocks into runs, each with the static (start, width) of the keys that its queries reach."""
    size = count if left is None and right is None else -(-count // RUNS)
    for first in range(0, count, size):
        last = min(first + size, count)
        stop = m if right is None else min(m, max(1, last * n + right))
        start = 0 if left is None else min(stop - 1, max(0, first * n - left))
        yield slice(first, last), (start, stop - start)
