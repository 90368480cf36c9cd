"""Maps a function of one head over all heads part by part, in O(N + M) memory.

B batch (any leading axes), N queries, M keys, H heads of queries, J heads of keys and
values, K = d_k, V = d_v.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from attn import platforms
from attn.functions import SAVED
from attn.kernels.query_blocks import BLOCK
from attn.kernels.reference import by_head, map_by_head
from attn.pytrees import AnyArray, as_narrow_as, widened


def map_heads(
    function: Callable,
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    *,
    score: Any,
    is_finite: bool = False,
    **values: Any,
) -> Any:
    """Computes what `kernels.reference.all_heads` does, a part of the heads at a time.

    So many heads are computed together as `heads_at_once` says; the others wait their turn,
    except along an axis that is sharded explicitly. Derivatives keep the arrays that are
    named SAVED, and make all else again.
    """
    *batch, n, h, _ = q.shape
    m, h_kv = k.shape[-3:-1]
    qkv, values = by_head(q, k, v, score=score, **values)
    own = qkv, values
    group = h // h_kv

    def one_part(size, first, qkv, values):
        """Computes the heads of `size` = (examples, heads) from `first` on."""
        # Of a part that is less than a group all queries share one head of keys.
        first_keys = first[0], first[1] // group
        keys = size[0], max(1, size[1] // group)
        q, *kv = qkv
        q = _cut_rows(q, first, size)
        kv = [_cut_rows(x, first_keys, keys) for x in kv]
        values = jax.tree.map(lambda x: _cut(x, (0, 1), first, size), values)
        qkv, values = as_narrow_as(own, ([q, *kv], values))
        return map_by_head(function, qkv, values, is_finite)

    # Around the slices too: they are made again, not kept.
    keep = jax.checkpoint_policies.save_only_these_names(SAVED)
    one_part = jax.checkpoint(
        one_part, policy=keep, prevent_cse=False, static_argnums=0
    )
    size = _part_size(heads_at_once(n, m, score), qkv, values)
    results = _in_turn(one_part, size, qkv, values)
    return jax.tree.map(lambda x: x.reshape(*batch, *x.shape[1:]), results)


def map_heads_of_keys(
    function: Callable, q: AnyArray, k: AnyArray, **values: Any
) -> Any:
    """Maps a function of one head that needs no values, as `map_heads` does."""
    return map_heads(function, q, k, k[..., :0], **values)


def heads_at_once(n: int, m: int, score: Any) -> int:
    """Returns the number of heads to compute together, with n queries and m keys each."""
    size = platforms.bytes_of_scores(score.is_product)
    return max(1, size // max(1, 4 * min(n, BLOCK) * m))


def _part_size(at_once: int, qkv: Sequence[AnyArray], values: Any) -> tuple[int, int]:
    """Returns how many examples and heads make a part: divisors of all, so parts are equal.

    They are whole groups of heads that share keys, or a part of one. Devices share an axis
    that is sharded explicitly: JAX has no loop over it.
    """
    q, k, _ = qkv
    count, _, h, _ = q.shape
    # Nothing has no parts.
    if count == 0:
        return count, h
    h_kv = k.shape[2]
    group = h // h_kv
    heads = _divisor(group, at_once)
    if heads == group:
        heads *= _divisor(h_kv, at_once // group)
    examples = _divisor(count, at_once // h)
    leaves = jax.tree.leaves(values)
    if any(_is_sharded(x, 0) for x in (*qkv, *leaves)):
        examples = count
    if any(_is_sharded(x, 2) for x in qkv) or any(_is_sharded(x, 1) for x in leaves):
        heads = h
    return examples, heads


def _divisor(whole: int, most: int) -> int:
    """Returns the largest divisor up to `most`, 1 at least."""
    most = min(whole, max(1, most))
    return next(d for d in range(most, 0, -1) if whole % d == 0)


def _is_sharded(x: AnyArray, axis: int) -> bool:
    return jax.typeof(x).sharding.spec[axis] is not None


def _in_turn(
    one_part: Callable, size: tuple[int, int], qkv: Sequence[AnyArray], values: Any
) -> Any:
    """Computes all parts, one after another; returns the results (B, N, H, …) of all."""
    whole = qkv[0].shape[0], qkv[0].shape[2]
    if whole == size:
        return one_part(size, (0, 0), qkv, values)
    columns = whole[1] // size[1]
    parts = whole[0] // size[0] * columns
    qkv, values = _widened_where_shared(whole, size, qkv, values)

    def of_whole():
        results = one_part(size, (0, 0), qkv, values)
        more = {axis: whole[i] - size[i] for i, axis in enumerate((0, 2))}
        return jax.tree.map(lambda x: _padded(x, more), results)

    def step(done, part):
        row, column = jnp.divmod(part, columns)
        first = row * size[0], column * size[1]
        results = one_part(size, first, qkv, values)
        return jax.tree.map(lambda x, y: _added(x, y, first), done, results), None

    # A scan's results must begin with the type that they end with.
    start = jax.tree.map(jnp.zeros_like, jax.eval_shape(of_whole))
    return jax.lax.scan(step, start, jnp.arange(parts))[0]


def _widened_where_shared(
    whole: tuple[int, int], size: tuple[int, int], qkv: Sequence[AnyArray], values: Any
) -> tuple[Sequence[AnyArray], Any]:
    """Returns both with what several parts share, and add up gradients of, widened."""
    q, k, v = qkv
    if size[1] < whole[1] // k.shape[2]:
        k, v = widened((k, v))

    def wide(x):
        is_shared = any(
            x.shape[axis] == 1 and size[axis] < whole[axis] for axis in (0, 1)
        )
        return widened(x) if is_shared else x

    return (q, k, v), jax.tree.map(wide, values)


def _cut(x: Array, axes: tuple[int, int], first: Any, size: tuple[int, int]) -> Array:
    """Returns a part of x along two axes; all parts share an axis of length 1."""
    for axis, start, length in zip(axes, first, size, strict=True):
        if x.shape[axis] not in (1, length):
            x = jax.lax.dynamic_slice_in_dim(x, start, length, axis)
    return x


def _cut_rows(x: Array, first: Any, size: tuple[int, int]) -> Array:
    """Returns the tokens (b, N, h, K) of a part."""
    part = _cut(x, (0, 2), first, size)
    return x if part is x else platforms.rows_together(part)


def _added(whole: Array, part: Array, first: Any) -> Array:
    """Adds a part (b, N, h, …) to the whole, from the example and head `first` on.

    The compiler makes a write of it, and of the transpose of `_cut` too: so results and
    gradients need no copy with heads first. To replace zeros in place of adding would
    cost the transpose a copy of the cotangent.
    """
    at: list[Any] = [0] * whole.ndim
    at[0], at[2] = first
    zeros = jnp.zeros_like(whole)
    return whole + jax.lax.dynamic_update_slice(zeros, part, at)


def _padded(x: Array, more: dict[int, int]) -> Array:
    """Returns x with so many zeros behind, by axis."""
    widths = [(0, more.get(axis, 0), 0) for axis in range(x.ndim)]
    return jax.lax.pad(x, jnp.zeros((), x.dtype), widths)
