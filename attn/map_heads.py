"""Maps a function of one head over every head of every example.

B batch (any leading axes), N queries, M keys, H heads of queries, J heads of keys and
values, K = d_k, V = d_v.
"""

import functools
import math

import jax
import jax.numpy as jnp

from attn import platforms
from attn.functions import SAVED
from attn.kernels.query_blocks import BLOCK
from attn.kernels.tile import Taint
from attn.masks import spread
from attn.precision import as_narrow_as, at_least_float32, widened
from attn.pytrees import shared_by_examples


def map_heads(
    function,
    q,
    k,
    v,
    *,
    score,
    normaliser,
    mask,
    bias=None,
    drop=None,
    at_once=None,
    saved=None,
):
    """Maps `function(q, k, v, score=, normaliser=, mask=, taint=, bias=, drop=)` of one head.

    H/J heads of queries share a head of keys, which is read where it stands: nothing is
    repeated, and its gradient is the sum of theirs.

    Args:
      function: gives arrays with a row for each query, (N, …).
      q, k, v: queries (*B, N, H, K), keys (*B, M, J, K) and values (*B, M, J, V).
      score, normaliser, mask, bias, drop: as in `attn.attention`, `drop` one for each
        example and head.
      at_once: at most so many heads are computed together, all of them by default; the
        others wait their turn, except along an axis that is sharded explicitly.
      saved: derivatives keep the arrays of that name, and make all else again.

    Returns:
      The function's results as (*B, N, H, …).
    """
    *batch, n, h, _ = q.shape
    batch = tuple(batch)
    count = math.prod(batch)
    m, h_kv = k.shape[-3:-1]
    group = h // h_kv
    at_once = at_once or count * h
    if bias is not None and hasattr(bias, "tile"):
        bias = bias.flat(batch) if hasattr(bias, "flat") else shared_by_examples(bias)
    elif bias is not None:
        bias = spread(jnp.asarray(bias), batch, core=3)
    mask = mask.flat(batch)
    score = shared_by_examples(score)
    normaliser = shared_by_examples(normaliser)
    _check_axes(count, h, mask=mask, bias=bias, score=score, normaliser=normaliser)
    qkv = [x.reshape(count, *x.shape[-3:]) for x in (q, k, v)]
    drop = jax.tree.map(lambda x: x.reshape(count, h), drop)
    rest = (score, normaliser, mask, bias, drop)
    own = (*qkv, rest)

    def one_head(q, k, v, score, normaliser, mask, bias, drop):
        if bias is not None and not hasattr(bias, "tile"):
            bias = jnp.broadcast_to(bias, (n, m))
        rest = dict(score=score, normaliser=normaliser, mask=mask, bias=bias, drop=drop)
        if mask.parts:
            q, k, v, taint = _cleaned(q, k, v)
            return function(q, k, v, taint=taint, **rest)
        results = function(q, k, v, taint=None, **rest)
        # Where there is no key, no query sees anything.
        return _spoiled(results, q, k, v) if m else results

    def one_part(size, first, qkv, rest):
        """Computes the heads of `size` = (examples, heads) from `first` on."""
        # Of a part that is less than a group all queries share one head of keys.
        groups = max(1, size[1] // group)
        first_keys = first[0], first[1] // group
        q, *kv = qkv
        q = _cut_rows(q, first, size)
        kv = [_cut_rows(x, first_keys, (size[0], groups)) for x in kv]
        rest = jax.tree.map(lambda x: _cut(x, (0, 1), first, size), rest)
        *qkv, rest = as_narrow_as(own, (q, *kv, rest))
        rows = (*(jnp.moveaxis(x, 2, 1) for x in qkv), *rest)
        rows = jax.tree.map(lambda x: _in_groups(x, groups), rows)
        # Over examples, then over heads of keys, then over the queries of each.
        mapped = one_head
        for _ in range(3):
            mapped = functools.partial(_map_leading, mapped)
        return jax.tree.map(
            lambda x: jnp.moveaxis(jax.lax.collapse(x, 1, 3), 1, 2), mapped(*rows)
        )

    # Around the slices too: they are made again, not kept.
    if saved is not None:
        keep = jax.checkpoint_policies.save_only_these_names(saved)
        one_part = jax.checkpoint(
            one_part, policy=keep, prevent_cse=False, static_argnums=0
        )
    results = _in_turn(one_part, _part_size(count, h, at_once, qkv, rest), qkv, rest)
    return jax.tree.map(lambda x: x.reshape(*batch, *x.shape[1:]), results)


def map_heads_of_keys(function, q, k, *, score, normaliser, mask, bias, drop=None):
    """Maps a function of one head that needs no values, as `map_heads` does.

    Its derivatives keep the arrays named SAVED.
    """
    return map_heads(
        function,
        q,
        k,
        k[..., :0],
        score=score,
        normaliser=normaliser,
        mask=mask,
        bias=bias,
        drop=drop,
        at_once=heads_at_once(q.shape[-3], k.shape[-3], score),
        saved=SAVED,
    )


def heads_at_once(n, m, score):
    """Returns the number of heads to compute together, with n queries and m keys each."""
    size = platforms.bytes_of_scores(score.is_product)
    return max(1, size // max(1, 4 * min(n, BLOCK) * m))


def _part_size(count, h, at_once, qkv, rest):
    """Returns how many examples and heads make a part: divisors of all, so parts are equal.

    They are whole groups of heads that share keys, or a part of one. Devices share an axis
    that is sharded explicitly: JAX has no loop over it.
    """
    h_kv = qkv[1].shape[2]
    group = h // h_kv
    heads = _divisor(group, at_once)
    if heads == group:
        heads *= _divisor(h_kv, at_once // group)
    examples = _divisor(count, at_once // max(1, h))
    if any(_is_sharded(x, 0) for x in (*qkv, *jax.tree.leaves(rest))):
        examples = count
    if any(_is_sharded(x, 2) for x in qkv) or any(
        _is_sharded(x, 1) for x in jax.tree.leaves(rest)
    ):
        heads = h
    return examples, heads


def _divisor(whole, most):
    """Returns the largest divisor up to `most`, 1 at least."""
    most = min(whole, max(1, most))
    # Of nothing there is no divisor to find.
    return next((d for d in range(most, 0, -1) if whole % d == 0), whole)


def _is_sharded(x, axis):
    return jax.typeof(x).sharding.spec[axis] is not None


def _in_turn(one_part, size, qkv, rest):
    """Computes all parts, one after another; returns the results (B, N, H, …) of all."""
    whole = qkv[0].shape[0], qkv[0].shape[2]
    if whole == size:
        return one_part(size, (0, 0), qkv, rest)
    columns = whole[1] // size[1]
    parts = whole[0] // size[0] * columns
    qkv, rest = _widened_where_shared(whole, size, qkv, rest)

    def of_whole():
        results = one_part(size, (0, 0), qkv, rest)
        more = {axis: whole[i] - size[i] for i, axis in enumerate((0, 2))}
        return jax.tree.map(lambda x: _padded(x, more), results)

    def step(done, part):
        row, column = jnp.divmod(part, columns)
        first = row * size[0], column * size[1]
        results = one_part(size, first, qkv, rest)
        return jax.tree.map(lambda x, y: _added(x, y, first), done, results), None

    # A scan's results must begin with the type that they end with.
    start = jax.tree.map(jnp.zeros_like, jax.eval_shape(of_whole))
    return jax.lax.scan(step, start, jnp.arange(parts))[0]


def _widened_where_shared(whole, size, qkv, rest):
    """Returns both with what several parts share, and add up gradients of, widened."""
    q, k, v = qkv
    if size[1] < whole[1] // k.shape[2]:
        k, v = widened((k, v))

    def wide(x):
        is_shared = any(
            x.shape[axis] == 1 and size[axis] < whole[axis] for axis in (0, 1)
        )
        return widened(x) if is_shared else x

    return (q, k, v), jax.tree.map(wide, rest)


def _cut(x, axes, first, size):
    """Returns a part of x along two axes; all parts share an axis of length 1."""
    for axis, start, length in zip(axes, first, size, strict=True):
        if x.shape[axis] not in (1, length):
            x = jax.lax.dynamic_slice_in_dim(x, start, length, axis)
    return x


def _cut_rows(x, first, size):
    """Returns the tokens (b, N, h, K) of a part."""
    part = _cut(x, (0, 2), first, size)
    return x if part is x else platforms.rows_together(part)


def _added(whole, part, first):
    """Adds a part (b, N, h, …) to the whole, from the example and head `first` on.

    The compiler makes a write of it, and of the transpose of `_cut` too: so results and
    gradients need no copy with heads first. To replace zeros in place of adding would
    cost the transpose a copy of the cotangent.
    """
    at = [0] * whole.ndim
    at[0], at[2] = first
    zeros = jnp.zeros_like(whole)
    return whole + jax.lax.dynamic_update_slice(zeros, part, at)


def _padded(x, more):
    """Returns x with so many zeros behind, by axis."""
    widths = [(0, more.get(axis, 0), 0) for axis in range(x.ndim)]
    return jax.lax.pad(x, jnp.zeros((), x.dtype), widths)


def _in_groups(x, groups):
    """Returns x (b, heads, …) as (b, groups, heads of each, …); all share an axis of 1."""
    if x.shape[1] in (1, groups):
        return jnp.expand_dims(x, 2)
    return x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])


def _map_leading(function, *rows):
    """Maps over the leading axis of every leaf of `rows`; all share one of length 1."""
    leaves, tree = jax.tree.flatten(rows)
    is_mapped = [leaf.shape[0] != 1 for leaf in leaves]

    def one(mapped):
        mapped = iter(mapped)
        every = [
            next(mapped) if varies else leaf[0]
            for leaf, varies in zip(leaves, is_mapped, strict=True)
        ]
        return function(*tree.unflatten(every))

    mapped = [x for x, varies in zip(leaves, is_mapped, strict=True) if varies]
    if not mapped:
        return jax.tree.map(lambda x: x[None], one(()))
    return jax.vmap(one)(_leading_alike(mapped))


def _leading_alike(arrays):
    """Returns the arrays with the leading axis of all sharded as it is in the first.

    Over a mesh with explicit axes vmap takes no others.
    """
    specs = [jax.typeof(x).sharding.spec for x in arrays]
    # Without explicit axes every entry is None.
    if len({spec[0] for spec in specs}) == 1:
        return arrays
    lead = specs[0][0]
    alike = []
    for x, spec in zip(arrays, specs, strict=True):
        # A mesh axis can shard one axis of an array only.
        rest = [None if _share_axes(axes, lead) else axes for axes in spec[1:]]
        alike.append(jax.sharding.reshard(x, jax.P(lead, *rest)))
    return alike


def _share_axes(a, b):
    """Tells whether two entries of a PartitionSpec share an axis of the mesh."""
    names = [set(x if isinstance(x, tuple) else (x,)) for x in (a, b)]
    return bool((names[0] & names[1]) - {None})


def _check_axes(count, h, **values):
    for name, value in values.items():
        for leaf in jax.tree.leaves(value):
            if leaf.shape[0] not in (1, count) or leaf.shape[1] not in (1, h):
                raise ValueError(
                    f"{name} has an array for {leaf.shape[0]} examples and "
                    f"{leaf.shape[1]} heads; there are {count} examples and {h} heads, "
                    "and 1 stands for all of them"
                )


def _cleaned(q, k, v):
    """Returns queries, keys and values with 0 for NaN and Inf, and their taint."""
    dtype = at_least_float32(v.dtype)
    taint = Taint(
        jnp.where(_is_finite(q), 0, jnp.nan).astype(dtype),
        jnp.where(_is_finite(k, v), 0, jnp.nan).astype(dtype),
    )
    # 0 times a number that is left as it is would still be NaN in a gradient.
    return *(jnp.where(jnp.isfinite(x), x, 0) for x in (q, k, v)), taint


def _spoiled(results, q, k, v):
    """Returns the results with NaN where NaN or Inf was seen, without a mask.

    There each query sees all keys and values, and gets NaN as it does under a mask that
    hides nothing. To change k and v instead would change the rounding of their products.
    """
    is_finite = _is_finite(q) & _is_finite(k, v).all()

    def spoil(x):
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        rows = is_finite.reshape(-1, *[1] * (x.ndim - 1))
        return jnp.where(rows, x, jnp.nan)

    return jax.tree.map(spoil, results)


def _is_finite(*arrays):
    """Tells of each token whether all its numbers are finite."""
    return functools.reduce(jnp.logical_and, [jnp.isfinite(x).all(-1) for x in arrays])
