"""A head in blocks of queries, each with all the keys that it can see.

So no running softmax is needed, and O(N + M) memory; a window or a causal mask leaves out
the keys that nobody in the block sees. n queries in a block.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from attn.functions import SAVED
from attn.kernels.reference import Taint
from attn.kernels.tile import Tile
from attn.masks import Mask, mask_part
from attn.pytrees import as_narrow_as, widened

BLOCK = 256
"""The most queries in a block."""
# More runs would waste less on hidden keys, but each is one more loop to compile.
RUNS = 8
"""The number of runs of blocks under a causal mask: each has the keys of its last query."""


@mask_part()
class _Rows:
    """Hides everything from the rows after the last query, the padding of a block."""

    count: int

    def tile(self, i, j):
        return i < self.count


class _Head(NamedTuple):
    """What all blocks of a head share."""

    score: Any
    normaliser: Any
    bias: Any  # where it is an array, a block gets its rows of it
    mask: Any
    drop: Any
    n: int  # queries of a block
    m: int  # keys of the head

    def tile(self, t, starts, widths, keys, q, q_taint, bias_rows) -> Tile:
        """Returns block t with the keys of runs, so many each from each start on."""
        k, v, k_taint = keys
        runs = zip(starts, widths, strict=True)
        return Tile(
            score=self.score,
            normaliser=self.normaliser,
            q=q,
            k=k,
            v=v,
            taint=None if k_taint is None else Taint(q_taint, k_taint),
            bias=self.bias if bias_rows is None else _cut(bias_rows, starts, widths),
            mask=self.mask,
            drop=self.drop,
            i=t * self.n + jnp.arange(self.n),
            runs=tuple(start + jnp.arange(width) for start, width in runs),
            columns=self.m,
        )


def over_blocks(
    function: Callable,
    q: Array,
    k: Array,
    v: Array,
    *,
    score: Any,
    normaliser: Any,
    mask: Mask,
    taint: Taint | None,
    bias: Any = None,
    drop: Any = None,
) -> Any:
    """Computes `function(tile)` for all queries (N, …) of a head, block by block.

    The function gives arrays with a row for each query of the tile.
    """
    score, q, k = score.prepare(q, k)
    queries = q.shape[0]
    m = k.shape[0]
    count = max(1, -(-queries // BLOCK))
    # Blocks are of equal size, so that fewer than `count` rows are padding.
    n = -(-queries // count)
    if mask.parts and count * n > queries:
        # Rows of padding may reach further than every query, to a NaN that is hidden.
        mask = mask & Mask((_Rows(queries),))
    dense = bias is not None and not hasattr(bias, "tile")

    def blocks(x):
        padded = jnp.pad(x, ((0, count * n - queries), (0, 0)))
        return padded.reshape(count, n, x.shape[1])

    rows = (
        jnp.arange(count),
        blocks(q),
        None if taint is None else blocks(taint.q[:, None])[..., 0],
        blocks(bias) if dense else None,
    )
    values = score, normaliser, None if dense else bias
    keys = (k.T, v.T, None if taint is None else taint.k)
    wide_values, wide_keys = widened((values, keys))

    # XLA must know the size of a slice when it compiles, but not where it starts.
    @functools.partial(_remat, static_argnums=0)
    def one_block(widths, starts, wide_keys, t, *rows):
        score, normaliser, bias = as_narrow_as(values, wide_values)
        seen = as_narrow_as(keys, wide_keys)
        head = _Head(score, normaliser, bias, mask, drop, n, m)
        return function(head.tile(t, starts, widths, seen, *rows))

    first, left, right = mask.spans()
    width = m
    if left is not None and right is not None:
        # A window may be empty, and a tile has one key at least.
        width = max(1, n + left + right)
    # Only a window narrower than all keys is worth a slice that moves with the block.
    if left is not None and first + width < m:
        results = _in_windows(one_block, rows, wide_keys, first, left, width)
    else:
        results = _in_runs(one_block, rows, wide_keys, *mask.reach())

    def joined(x):
        return x.reshape(count * n, *x.shape[2:])[:queries]

    return jax.tree.map(joined, results)


def _in_windows(
    one_block: Callable, rows: Any, keys: Any, first: int, left: int, width: int
) -> Any:
    """Computes all blocks, each with the first keys and so many that move with it."""
    n = rows[1].shape[1]
    m = keys[0].shape[1]

    @_remat
    def in_window(t, *rows):
        # At both ends the slice is moved inwards; the mask hides what is too much.
        start = jnp.clip(t * n - left, first, m - width)
        # The first keys stand apart from the window, for no key may come twice.
        starts, widths = ((0, start), (first, width)) if first else ((start,), (width,))
        seen = jax.tree.map(lambda x: _cut(x, starts, widths), keys)
        return one_block(widths, starts, seen, t, *rows)

    return _map(in_window, rows)


def _in_runs(
    one_block: Callable, rows: Any, keys: Any, left: int | None, right: int | None
) -> Any:
    """Computes all blocks in runs, each with the keys that its blocks reach.

    A query reaches `left` keys before it and `right` after it, None for all.
    """
    count, n, _ = rows[1].shape
    m = keys[0].shape[1]

    # Cut once for a run, whose blocks then add up gradients of these keys alone.
    @functools.partial(_remat, static_argnums=(0, 1))
    def one_run(start, width, keys, rows):
        seen = jax.tree.map(lambda x: _cut(x, (start,), (width,)), keys)
        return _map(functools.partial(one_block, (width,), (start,), seen), rows)

    results = []
    for run, (start, width) in _runs(count, n, m, left, right):
        run_rows = jax.tree.map(lambda x, run=run: x[run], rows)
        if results:
            run_rows, results[-1] = _in_turn(run_rows, results[-1])
        results.append(one_run(start, width, keys, run_rows))
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), *results)


def _remat(function: Callable, static_argnums: Any = ()) -> Callable:
    """Returns the function, whose derivative keeps what is named SAVED and makes the rest again.

    Without this the keys that each block sees would be kept for it, a copy for every block.
    """
    return jax.checkpoint(
        function,
        policy=jax.checkpoint_policies.save_only_these_names(SAVED),
        prevent_cse=False,
        static_argnums=static_argnums,
    )


def _cut(x: Array, starts: Any, widths: Any) -> Array:
    """Returns the keys of runs, so many each from each start on."""
    runs = []
    for start, width in zip(starts, widths, strict=True):
        runs.append(jax.lax.dynamic_slice_in_dim(x, start, width, axis=-1))
    return runs[0] if len(runs) == 1 else jnp.concatenate(runs, axis=-1)


def _in_turn(following: Any, done: Any) -> tuple[Any, Any]:
    """Returns both, the first not before the second is there.

    Runs one after another can use the same memory.
    """
    leaves, tree = jax.tree.flatten((following, done))
    # Integers need not wait, and in shard_map they have no tangent of the right type.
    places = [
        place
        for place, leaf in enumerate(leaves)
        if jnp.issubdtype(leaf.dtype, jnp.floating)
    ]
    behind = _barrier([leaves[place] for place in places])
    for place, leaf in zip(places, behind, strict=True):
        leaves[place] = leaf
    return tree.unflatten(leaves)


@jax.custom_jvp
def _barrier(arrays: Any) -> Any:
    return jax.lax.optimization_barrier(arrays)


# JAX 0.12 cannot transpose a barrier of which a part only is differentiated.
_barrier.defjvp(lambda primals, tangents: (_barrier(*primals), *tangents))


def _map(function: Callable, rows: Any) -> Any:
    """Maps a function over the blocks, one after another.

    A single block is called as it is, for the compiler to fuse with its surroundings.
    """
    if rows[0].shape[0] == 1:
        first = jax.tree.map(lambda x: x[0], rows)
        return jax.tree.map(lambda x: x[None], function(*first))
    return jax.lax.map(lambda x: function(*x), rows)


def _runs(
    count: int, n: int, m: int, left: int | None, right: int | None
) -> Iterator[tuple[slice, tuple[int, int]]]:
    """Cuts the blocks into runs, each with the static (start, width) of its keys."""
    # Without bounds all blocks see the same keys, and one run serves them.
    size = count if left is None and right is None else -(-count // RUNS)
    for first in range(0, count, size):
        last = min(first + size, count)
        # One key at least where there is one, though it be hidden.
        stop = m if right is None else min(m, max(1, last * n + right))
        start = 0 if left is None else max(0, min(stop - 1, first * n - left))
        yield slice(first, last), (start, stop - start)
