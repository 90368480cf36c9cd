"""Plain products by `jax.nn.dot_product_attention`, which uses cuDNN on a GPU that can.

The kernel takes all heads at once. Where jax.nn falls short of attn.attention's contract,
that is put right here where it is cheap, and refused where it is not. B examples,
N queries, M keys, H heads of queries, J heads of keys and values, K = d_k = d_v.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn.jax_versions import jax_nn_takes_window
from attn.masks import Band, Mask, Padding
from attn.platforms import takes_cudnn
from attn.pytrees import AnyArray


def is_fastest(
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    mask: Mask,
    results: list[str],
    **values: Any,
) -> bool:
    """Returns whether `cudnn` serves, and by cuDNN: jax.nn's own form takes N·M memory."""
    dtype = jnp.result_type(q, k, v)
    if not takes_cudnn(dtype, v.shape[-1], *mask.reach(), is_padded(mask)):
        return False
    return why_not(q, k, v, mask=mask, results=results, **values) is None


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
    simple = all(isinstance(part, (Band, Padding)) for part in mask.parts)
    # The width of the queries may be another, as a bilinear score brings them to d_k.
    widths = f"{v.shape[-1]} and {k.shape[-1]}"
    dtype = jnp.result_type(q, k, v)
    kind = type(score).__name__
    other = type(normaliser).__name__
    reasons = {
        f"its score is a matrix product, and not {kind}": not score.is_product,
        f"its normaliser is softmax, and not {other}": not normaliser.is_softmax,
        "its masks are causal with a constant offset, window and padding": not simple,
        "a row of −inf in the bias would give NaN": bias is not None,
        "it has no dropout": drop is not None,
        "its LSE has no gradient": "lse" in results,
        "it does not return weights": results[-1] in ("before", "after"),
        f"d_v must equal d_k, not {widths}": k.shape[-1] != v.shape[-1],
        "d_k must be at least 1": k.shape[-1] == 0,
        "its softmax is float32, the inputs are float64": dtype == jnp.float64,
    }
    found = next((reason for reason, holds in reasons.items() if holds), None)
    # Last, as it traces the score.
    if found is None and not _shares_keys(score, q, k):
        return f"{kind} makes keys of its own for each of the queries that share them"
    return found


@jax.jit
def by_examples(q: AnyArray, k: AnyArray, v: AnyArray, score: Any, mask: Mask) -> Array:
    """Computes `cudnn` with any number of batch axes before N."""
    batch = q.shape[:-3]

    def flat(leaf):
        # Of the parts that are served only padding has an array, one number an example.
        return jnp.broadcast_to(leaf, batch).reshape(-1)

    mask = Mask(tuple(jax.tree.map(flat, part) for part in mask.parts))
    # jax.nn takes one batch axis, attention() any number.
    qkv = (jnp.reshape(x, (-1, *x.shape[-3:])) for x in (q, k, v))
    out = cudnn(*qkv, score=score, mask=mask)
    return out.reshape(*batch, *out.shape[1:])


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


def cudnn(
    q: Float[Array, "B N H Q"],
    k: Float[Array, "B M J K"],
    v: Float[Array, "B M J K"],
    *,
    score: Any,
    mask: Mask,
) -> Float[Array, "B N H K"]:
    """Computes softmax(score(q, k)) v over the keys that `mask` shows.

    It takes memory N·M, unless cuDNN serves.
    """
    # What is not finite is taken out before a parameter of the score sees it, whose gradient
    # would be 0 times infinity. What overflows there is taken out afterwards.
    bad_query = bad_key = False
    if jax.tree.leaves(score):
        q, bad_query = _finite(q)
        k, bad_key = _finite(k)
    q, k = _prepared(q, k, score)
    left, right = mask.reach()
    lengths = jnp.full(q.shape[0], k.shape[1], jnp.int32)
    for part in mask.parts:
        if isinstance(part, Padding):
            # jax.nn takes int32 alone; the minimum comes first, as it fits in that.
            lengths = jnp.minimum(lengths, part.lengths).astype(jnp.int32)
    first, last = _visible_range(q.shape[1], left, right, lengths)

    # A masked NaN would reach the output, because its weight of 0 times NaN is NaN; and a
    # query of NaN that sees nothing every key's gradient.
    q, overflown_query = _finite(q)
    k, overflown_key = _finite(k)
    v, bad_value = _finite(v)
    bad_query |= overflown_query
    bad = bad_key | overflown_key | bad_value
    out = _call_jax_nn(q, k, v, mask, lengths)
    # jax.nn gives the mean of all values to a query that sees nothing.
    sees_nothing = (last < first)[..., None]
    out = jnp.where(sees_nothing[..., None], 0, out)
    # A query that is NaN or sees one gets it back: only what is hidden is forgiven.
    spoiled = _any_between(bad, first, last)
    spoiled = spoiled.repeat(q.shape[-2] // k.shape[-2], axis=-1)
    spoiled |= bad_query & ~sees_nothing
    return jnp.where(spoiled[..., None], jnp.nan, out)


def _call_jax_nn(q: Array, k: Array, v: Array, mask: Mask, lengths: Array) -> Array:
    """Returns jax.nn's output for what the mask shows of `lengths` keys (B,)."""
    left, right = mask.reach()
    padded = is_padded(mask)
    # A window alone has no effect in earlier versions of JAX, with lengths it has.
    needs_lengths = padded or not jax_nn_takes_window()
    on_cudnn = takes_cudnn(q.dtype, q.shape[-1], left, right, padded)
    # cuDNN serves the causal flag, and a window with it alone.
    causal = right == 0
    window = None
    if left is not None or not causal:
        window = _local_window(left, right, k.shape[1] + q.shape[1])
    return jax.nn.dot_product_attention(
        q,
        k,
        v,
        # The scale is in q already, by `_prepared`.
        scale=1.0,
        is_causal=causal,
        local_window_size=window,
        # An example of no keys is put right later; its own gradient must not be NaN.
        key_value_seq_lengths=jnp.maximum(lengths, 1) if needs_lengths else None,
        implementation="cudnn" if on_cudnn else "xla",
    )


def is_padded(mask: Mask) -> bool:
    """Tells whether a part of the mask hides padding."""
    return any(isinstance(part, Padding) for part in mask.parts)


def _local_window(
    left: int | None, right: int | None, farthest: int
) -> tuple[int, int] | None:
    """Returns the window that jax.nn takes, which has no open side; None for no bound."""
    if left is None and right is None:
        return None
    return farthest if left is None else left, farthest if right is None else right


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
