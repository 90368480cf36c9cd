"""Attention by `kernels.fused`, and so by cuDNN on a GPU that can.

The kernel takes all heads at once. Where it falls short of attn.attention's contract, that
is put right here where it is cheap, and refused where it is not. B examples, N queries,
M keys, H heads of queries, J heads of keys and values, K = d_k, V = d_v.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attn.kernels.fused import Form, Seen, fused
from attn.masks import Band, Mask, Padding
from attn.platforms import takes_cudnn, takes_mask
from attn.pytrees import AnyArray, at_least_float32, map_leading


def is_fastest(
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    mask: Mask,
    results: list[str],
    **values: Any,
) -> bool:
    """Returns whether `cudnn` serves, and by cuDNN: its other form takes N·M memory."""
    dtype = jnp.result_type(q, k, v)
    width = _width(k, v, 0 if values["bias"] is None else 3)
    if not takes_cudnn(dtype, width):
        return False
    if not (_is_native(mask) or _takes_mask(q, k, mask)):
        return False
    return why_not(q, k, v, mask=mask, results=results, **values) is None


def _takes_mask(q: AnyArray, k: AnyArray, mask: Mask) -> bool:
    """Tells whether cuDNN is to have the mask as an array."""
    n, m = q.shape[-3], k.shape[-3]
    leaves = jax.tree.leaves(mask.flat(q.shape[:-3]))
    examples, heads = (max((x.shape[i] for x in leaves), default=1) for i in (0, 1))
    first, left, right = mask.spans()
    seen = m if left is None or right is None else min(m, first + left + right + 1)
    size = jnp.result_type(q).itemsize * examples * heads * n * m
    return _is_even(n, m) and takes_mask(size, seen / m)


def _is_even(n: int, m: int) -> bool:
    """Tells whether cuDNN has derivatives with a mask that is an array."""
    return n % 2 == 0 and m % 2 == 0


def why_not(
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    *,
    score: Any,
    normaliser: Any,
    mask: Mask,
    bias: Any,
    drop: Any,
    results: list[str],
) -> str | None:
    """Returns the reason why `cudnn` cannot serve, or None where it can."""
    dtype = jnp.result_type(q, k, v)
    kind = type(score).__name__
    other = type(normaliser).__name__
    softmax = "its normaliser is softmax of the scores times a number a query"
    reasons = {
        f"its score is a matrix product, and not {kind}": not score.is_product,
        f"{softmax}, and not {other}": not hasattr(normaliser, "fused"),
        "its bias is a number a query and one a key, under a causal mask, with heads that "
        "share no keys, and no factor of the normaliser's": not (
            bias is None or _takes_bias(bias, normaliser, mask, q, k)
        ),
        "it has no dropout": drop is not None,
        "it does not return weights": results[-1] in ("before", "after"),
        "d_k and d_v must be at least 1": 0 in (k.shape[-1], v.shape[-1]),
        "its softmax is float32, the inputs are float64": dtype == jnp.float64,
    }
    found = next((reason for reason, holds in reasons.items() if holds), None)
    # Last, as it traces the score.
    if found is None and not _shares_keys(score, q, k):
        return f"{kind} makes keys of its own for each of the queries that share them"
    return found


def _takes_bias(
    bias: Any, normaliser: Any, mask: Mask, q: AnyArray, k: AnyArray
) -> bool:
    """Tells whether the bias can be a feature of queries and keys."""
    _, right = mask.reach()
    if not hasattr(bias, "sides") or right is None or right > 0:
        return False
    if q.shape[-2] != k.shape[-2] or not hasattr(normaliser, "fused"):
        return False
    # Rounded to half precision, a factor of large numbers would be off by more than 1.
    factor, _ = normaliser.fused(jnp.ones((1, 1, 1)))
    return factor is None and bias.sides(q.shape[-3], k.shape[-3]) is not None


def in_batches(
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    *,
    score: Any,
    normaliser: Any,
    mask: Mask,
    bias: Any,
    drop: Any,
    with_lse: bool,
    is_finite: bool,
) -> list[Array]:
    """Computes `cudnn` with any number of batch axes before N."""
    # Here, where it is known what of a bias is data.
    sides = None if bias is None else bias.sides(q.shape[-3], k.shape[-3])
    options = dict(with_lse=with_lse, is_finite=is_finite)
    return _in_one_batch(q, k, v, score, normaliser, mask, sides, **options)


@functools.partial(jax.jit, static_argnames=("with_lse", "is_finite"))
def _in_one_batch(
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    score: Any,
    normaliser: Any,
    mask: Mask,
    sides: Any,
    **options: bool,
) -> list[Array]:
    batch = q.shape[:-3]
    q, k, v = (jnp.reshape(x, (-1, *x.shape[-3:])) for x in (q, k, v))
    sight = _sight(mask, mask.flat(batch), q, k)
    if sides is not None:
        sides = tuple(
            jnp.broadcast_to(side, (*batch, x.shape[1], x.shape[2])).reshape(
                x.shape[:3]
            )
            for side, x in zip(sides, (q, k), strict=True)
        )
    results = cudnn(q, k, v, score, normaliser, sight, sides, **options)
    return [x.reshape(*batch, *x.shape[1:]) for x in results]


def _shares_keys(score: Any, q: AnyArray, k: AnyArray) -> bool:
    """Tells whether heads of queries that share keys share those that `prepare` makes."""
    h = q.shape[-2]
    if h == k.shape[-2]:
        return True

    def prepared_keys(score, q, k):
        return score.prepare(q, k)[2]

    rows = (jax.ShapeDtypeStruct((1, x.shape[-1]), x.dtype) for x in (q, k))
    try:
        # vmap has no single result where heads differ.
        mapped = jax.vmap(prepared_keys, (0, None, None), None, axis_size=h)
        jax.eval_shape(mapped, _for_each_head(score, h), *rows)
    except ValueError:
        return False
    return True


class Sight(NamedTuple):
    """What queries see: of their own, or of a range of keys, in the terms of `fused`."""

    seen: Seen
    causal: bool
    left: int | None
    has_empty: bool
    """Whether a query may see nothing."""
    count: Int[Array, "b N h"]
    """The keys that each query sees, b = B or 1, h = H or 1."""
    sees_any: Callable[[Bool[Array, "B M H"]], Bool[Array, "B N H"]]
    """Of some keys of each head: whether a query sees one of them."""


def _is_native(mask: Mask) -> bool:
    """Tells whether cuDNN has the mask by itself, without an array.

    It has causal masks, lengths, both, and windows that end at the query; with lengths too
    a window may be empty, of which cuDNN promises nothing.
    """
    padded = any(isinstance(part, Padding) for part in mask.parts)
    if not all(isinstance(part, (Band, Padding)) for part in mask.parts):
        return False
    left, right = mask.reach()
    is_window = right == 0 and left is not None and left >= 0 and not padded
    return is_window or (left is None and right in (None, 0))


def _sight(mask: Mask, flat: Mask, q: Array, k: Array) -> Sight:
    """Returns what a mask shows; `flat` is the same with axes (b, h) for arrays."""
    b, n = q.shape[:2]
    m = k.shape[1]
    left, right = mask.reach()
    if not _is_native(mask):
        visible = _visible(flat, n, m)

        def sees_any(bad):
            light = visible.astype(jnp.bfloat16), bad.astype(jnp.bfloat16)
            kept = dict(preferred_element_type=jnp.float32)
            if visible.shape[1] == 1:
                shown = jnp.broadcast_to(light[0][:, 0], (len(bad), n, m))
                return jnp.einsum("bnm,bmh->bnh", shown, light[1], **kept) > 0
            shown = jnp.broadcast_to(light[0], (len(bad), *visible.shape[1:]))
            return jnp.einsum("bhnm,bmh->bnh", shown, light[1], **kept) > 0

        count = jnp.moveaxis(visible.sum(-1), 1, 2)
        causal = right is not None and right <= 0
        return Sight(Seen(visible), causal, None, True, count, sees_any)
    lengths = [x.lengths[:, 0] for x in flat.parts if isinstance(x, Padding)]
    # The minimum comes first, as it fits in int32, which is all that kernels take.
    shortest = functools.reduce(jnp.minimum, lengths, jnp.full(1, m)).astype(jnp.int32)
    first, last = _visible_range(n, left, right, shortest)
    count = jnp.maximum(last - first + 1, 0)[..., None]
    seen = Seen()
    if lengths:
        # An example of no keys is put right later; its own gradient must not be NaN.
        seen = Seen(lengths=jnp.broadcast_to(jnp.maximum(shortest, 1), b))
    sees_any = functools.partial(_any_between, first=first, last=last)
    has_empty = bool(lengths) or (left is not None and n - 1 - left >= m)
    return Sight(seen, right == 0, left, has_empty, count, sees_any)


def _visible(flat: Mask, n: int, m: int) -> Bool[Array, "b h N M"]:
    def tile(mask):
        return mask.tile(jnp.arange(n), jnp.arange(m))

    if not jax.tree.leaves(flat):
        return tile(flat)[None, None]
    return map_leading(functools.partial(map_leading, tile), flat)


def cudnn(
    q: Float[Array, "B N H Q"],
    k: Float[Array, "B M J K"],
    v: Float[Array, "B M J V"],
    score: Any,
    normaliser: Any,
    sight: Sight,
    sides: tuple[Float[Array, "B N H"], Float[Array, "B M H"]] | None,
    *,
    with_lse: bool,
    is_finite: bool,
) -> list[Array]:
    """Computes normaliser(score(q, k) + bias) v over the keys that queries see.

    `sides` are what the bias adds to the scores of a query, and of a key; None for 0. With
    `with_lse` the LSE (B, N, H) follows. It takes memory N·M, unless cuDNN serves.
    `is_finite` promises that no query, key or value is NaN or Inf.
    """
    bad = None
    if is_finite:
        q, k = _prepared(q, k, score)
    else:
        q, k, v, sides, bad = _cleaned(q, k, v, score, sides)
    of_query = None
    if sides is not None:
        of_query, of_key = sides
        q, k = _with_bias(q, k, of_key)
    count = jnp.maximum(sight.count, 1).astype(at_least_float32(q.dtype))
    normaliser = jax.tree.map(lambda x: jnp.reshape(x, (1, 1, -1)), normaliser)
    factor, rest = normaliser.fused(count)
    if factor is not None:
        q = (q * factor[..., None]).astype(q.dtype)
    if rest is not None:
        rest = jnp.reshape(rest, (1, 1, -1)).astype(count.dtype)
    out, lse = _of_one_width(q, k, v, _less(rest, of_query, q), sight, with_lse)
    results = [out]
    if lse is not None:
        # In a softmax what all keys of a query have does not count.
        results.append(lse if of_query is None else lse + of_query)
    sees_nothing = sight.count == 0
    if sight.has_empty:
        # A kernel gives the mean of all values to a query that sees nothing.
        results[0] = jnp.where(sees_nothing[..., None], 0, out)
        results[1:] = [
            jnp.where(sees_nothing, -jnp.inf if rest is None else rest, x)
            for x in results[1:]
        ]
    return results if bad is None else _spoiled(results, bad, sight)


def _spoiled(results: list[Array], bad: Any, sight: Sight) -> list[Array]:
    """Returns the results, NaN for a query that is NaN or sees one.

    Only what is hidden is forgiven.
    """
    bad_query, bad_key = bad
    bad_key = bad_key.repeat(bad_query.shape[-1] // bad_key.shape[-1], axis=-1)
    spoiled = sight.sees_any(bad_key) | (bad_query & (sight.count > 0))
    out = jnp.where(spoiled[..., None], jnp.nan, results[0])
    return [out, *(jnp.where(spoiled, jnp.nan, x) for x in results[1:])]


def _cleaned(q: Array, k: Array, v: Array, score: Any, sides: Any) -> Any:
    """Returns what has 0 for NaN and Inf, with q and k of the score, and where these were.

    A masked NaN would reach the output, because its weight of 0 times NaN is NaN; and a
    query of NaN that sees nothing every key's gradient.
    """
    bad_query = bad_key = False
    if jax.tree.leaves(score):
        # Before a parameter of the score sees it, whose gradient would be 0 times infinity.
        q, bad_query = _finite(q)
        k, bad_key = _finite(k)
    q, k = _prepared(q, k, score)
    q, overflown_query = _finite(q)
    k, overflown_key = _finite(k)
    v, bad_value = _finite(v)
    bad_query |= overflown_query
    bad_key = bad_key | overflown_key | bad_value
    if sides is not None:
        (of_query, bad_side), (of_key, bad_other) = (
            _finite(x[..., None]) for x in sides
        )
        sides = of_query[..., 0], of_key[..., 0]
        bad_query |= bad_side
        bad_key |= bad_other
    return q, k, v, sides, (bad_query, bad_key)


def _less(rest: Array | None, of_query: Array | None, q: Array) -> Array | None:
    """Returns the rest for each query (B, H, N), less what its keys' scores lack."""
    if rest is None:
        return None
    whole = rest if of_query is None else rest - of_query
    return jnp.moveaxis(jnp.broadcast_to(whole, q.shape[:3]), 1, 2)


def _with_bias(q: Array, k: Array, of_key: Array) -> tuple[Array, Array]:
    """Returns queries and keys with features whose products are numbers of the keys.

    Three pieces of half precision hold all digits of a float32, and queries have ones.
    """
    info = jnp.finfo(k.dtype)
    pieces = []
    left = of_key
    for _ in range(3):
        # Casts there and back the compiler may leave out.
        piece = jax.lax.reduce_precision(left, info.nexp, info.nmant)
        pieces.append(piece.astype(k.dtype))
        # The first alone has the gradient, which is that of their sum.
        left = jax.lax.stop_gradient(left - piece)
    ones = jnp.ones((*q.shape[:-1], len(pieces)), q.dtype)
    k = jnp.concatenate([k, jnp.stack(pieces, -1)], -1)
    return jnp.concatenate([q, ones], -1), k


def _of_one_width(
    q: Array, k: Array, v: Array, rest: Any, sight: Sight, with_lse: bool
) -> tuple[Array, Any]:
    """Returns what `fused` does, of features that zeros make as many as it takes.

    The LSE is (B, N, H) here.
    """
    width = _width(k, v)
    fits = sight.seen.visible is None or _is_even(q.shape[1], k.shape[1])
    on_cudnn = fits and takes_cudnn(q.dtype, width)
    form = Form(on_cudnn, sight.causal, sight.left, with_lse)
    qkv = (_padded(x, width) for x in (q, k, v))
    results: Any = fused(form, *qkv, sight.seen, rest)
    out, lse = results
    lse = None if lse is None else jnp.moveaxis(lse, 1, 2)
    return out[..., : v.shape[-1]], lse


def _width(k: AnyArray, v: AnyArray, more: int = 0) -> int:
    """Returns the features that cuDNN computes with, of one number for q, k and v.

    Keys have so many more than k has.
    """
    return -(-max(k.shape[-1] + more, v.shape[-1]) // 8) * 8


def _padded(x: Array, width: int) -> Array:
    more = width - x.shape[-1]
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, more)]) if more else x


def _finite(x: Array) -> tuple[Array, Array]:
    """Returns x with 0 for each token and head that is not finite, and which these are."""
    bad = ~jnp.isfinite(x).all(-1)
    return jnp.where(bad[..., None], 0, x), bad


def _prepared(q: Array, k: Array, score: Any) -> tuple[Array, Array]:
    """Returns queries and keys whose plain products are the scores."""
    h = q.shape[-2]
    h_kv = k.shape[-2]

    def in_groups(x, axis=0):
        return x.reshape(*x.shape[:axis], h_kv, h // h_kv, *x.shape[axis + 1 :])

    def one_head(score, q, k):
        return score.prepare(q, k)[1:]

    score = jax.tree.map(in_groups, _for_each_head(score, h))
    one_group = jax.vmap(one_head, (0, -2, None), -2)
    q_in_groups, k = jax.vmap(one_group, (0, -3, -2), -3)(score, in_groups(q, 2), k)
    # The queries of a group have the same keys, by `_shares_keys`.
    return q_in_groups.reshape(*q.shape[:-1], -1), k[..., 0, :]


def _for_each_head(score: Any, h: int) -> Any:
    """Returns a score whose parameters all have a leading axis H."""

    def of_heads(leaf):
        return jnp.broadcast_to(leaf, (h, *jnp.shape(leaf)[1:]))

    return jax.tree.map(of_heads, score)


def _visible_range(
    n: int, left: int | None, right: int | None, lengths: Array
) -> tuple[Array, Array]:
    """Returns the (first, last) key that each query (B, N) sees; none if last < first."""
    shape = (len(lengths), n)
    i = jnp.arange(n)[None]
    first = jnp.zeros_like(i) if left is None else jnp.maximum(i - left, 0)
    last = (lengths - 1)[:, None]
    if right is not None:
        last = jnp.minimum(last, i + right)
    return jnp.broadcast_to(first, shape), jnp.broadcast_to(last, shape)


def _any_between(bad: Array, first: Array, last: Array) -> Array:
    """Tells whether one of bad[first], …, bad[last] is set: (B, N, H) of bad (B, M, H)."""
    # A running count answers for any range by two look-ups, without N·M memory.
    before = jnp.pad(jnp.cumsum(bad, axis=1), ((0, 0), (1, 0), (0, 0)))

    def count_below(j):
        # A window that is all to one side of its query may lie beyond the keys.
        j = jnp.clip(j, 0, bad.shape[1])[..., None]
        return jnp.take_along_axis(before, j, axis=1)

    return count_below(last + 1) > count_below(first)
