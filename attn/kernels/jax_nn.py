"""Plain products handed to `jax.nn.dot_product_attention`, and there to cuDNN on a GPU that can; for all heads at once.

What it leaves out of attn.attention's contract is put right here, where that is cheap, and refused where not.
B examples, N queries, M keys, H heads, K = d_k = d_v.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn.masks import Band, Padding
from attn.scores import PRODUCTS


def why_not(q, v, *, score, mask, bias, drop, return_lse, return_weights) -> str | None:
    """The reason why `jax_nn` cannot serve, if it cannot."""
    reasons = {
        "its score is a matrix product, and not "
        + type(score).__name__: not isinstance(score, PRODUCTS),
        "its masks are causal with a constant offset, window and padding": not all(
            isinstance(part, (Band, Padding)) for part in mask.parts
        ),
        "a row of −inf in the bias would give NaN": bias is not None,
        "it has no dropout": drop is not None,
        "its LSE has no gradient": return_lse,
        "it does not return weights": return_weights,
        f"d_v must equal d_k, not {v.shape[-1]} and {q.shape[-1]}": q.shape[-1]
        != v.shape[-1],
        "its softmax is float32, the inputs are float64": q.dtype == jnp.float64,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def jax_nn(
    q: Float[Array, "B N H Q"],
    k: Float[Array, "B M H K"],
    v: Float[Array, "B M H K"],
    *,
    score,
    mask,
) -> Float[Array, "B N H K"]:
    """softmax(score(q, k)) v over the keys that `mask` shows; memory N·M, unless cuDNN serves."""
    heads = jax.tree.map(
        lambda leaf: (
            jnp.broadcast_to(leaf, q.shape[-2:-1]) if jnp.ndim(leaf) == 0 else leaf
        ),
        score,
    )
    q, k = jax.vmap(lambda score, q, k: score.prepare(q, k)[1:], (0, -2, -2), -2)(
        heads, q, k
    )
    left, right = mask.reach()
    lengths = jnp.full(q.shape[0], k.shape[1], jnp.int32)
    for part in mask.parts:
        if isinstance(part, Padding):
            lengths = jnp.minimum(lengths, part.lengths)
    first, last = _seen(q.shape[1], left, right, lengths)

    bad = ~(jnp.isfinite(k).all(-1) & jnp.isfinite(v).all(-1))
    k, v = (jnp.where(bad[..., None], 0, x) for x in (k, v))
    causal = right == 0 and left is None
    window = (
        None
        if causal or (left is None and right is None)
        else tuple(
            k.shape[1] + q.shape[1] if reach is None else reach
            for reach in (left, right)
        )
    )
    out = jax.nn.dot_product_attention(
        q,
        k,
        v,
        scale=1.0,
        is_causal=causal,
        local_window_size=window,
        key_value_seq_lengths=lengths if len(mask.parts) > 0 else None,
        implementation="cudnn" if _cudnn_can(q, window) else "xla",
    )
    out = jnp.where((last < first)[..., None, None], 0, out)
    return jnp.where(_any_between(bad, first, last)[..., None], jnp.nan, out)


def _seen(n, left, right, lengths):
    """(first, last) key that each query (B, N) sees; none where last < first."""
    i = jnp.arange(n)[None]
    first = jnp.zeros_like(i) if left is None else jnp.maximum(i - left, 0)
    last = (lengths - 1)[:, None]
    return jnp.broadcast_to(first, (len(lengths), n)), jnp.broadcast_to(
        last if right is None else jnp.minimum(last, i + right), (len(lengths), n)
    )


def _any_between(bad, first, last):
    """Whether one of bad[first], …, bad[last] is set: (B, N, H) for bad (B, M, H)."""
    before = jnp.pad(jnp.cumsum(bad, axis=1), ((0, 0), (1, 0), (0, 0)))
    at = lambda j: jnp.take_along_axis(
        before, jnp.clip(j, 0, bad.shape[1])[..., None], axis=1
    )
    return at(last + 1) > at(first)


def _cudnn_can(q, window):
    return (
        jax.default_backend() == "gpu"
        and window is None
        and q.dtype in (jnp.float16, jnp.bfloat16)
        and q.shape[-1] % 8 == 0
        and q.shape[-1] <= 128
    )
