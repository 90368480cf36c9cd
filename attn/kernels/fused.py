"""softmax(q kᵀ) v with its gradient, as cuDNN computes both, and the same in plain JAX.

Both forms take all heads of whole batches, and a mask that heads share. Maps (vmap) become
a part of the batch, as cuDNN's calls cannot be mapped with such a mask. B examples,
N queries, M keys, H heads of queries, J heads of keys and values, K = d_k = d_v.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Bool, Float, Int

from attn.jax_versions import cudnn_backward, cudnn_forward
from attn.pytrees import factors

HIDDEN = -(2.0**41)
"""Is added to the score of a hidden key; cuDNN fails where two of −inf are subtracted."""
LSE_FEATURES = 8
"""Features that the gradient of an LSE adds; cuDNN takes multiples of 8."""
OTHERS = (
    "the kernels cudnn and pallas have first derivatives alone, in reverse mode: "
    "implementation='blocks' has all others"
)


class Form(NamedTuple):
    """What is compiled in."""

    on_cudnn: bool
    causal: bool
    """Whether query i sees no key after i."""
    left: int | None
    """Under `causal`: how many keys before its own a query sees."""
    with_lse: bool
    """Whether the LSE is asked for, and so may have a gradient."""


class Seen(NamedTuple):
    """What hides keys beside the form."""

    visible: Bool[Array, "b h N M"] | None = None
    """b = B or 1, h = H or 1. A query whose keys are all hidden has an output that is
    finite and says nothing."""
    lengths: Int[Array, "B"] | None = None
    """The keys of each example, 1 at least."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def fused(
    form: Form,
    q: Float[Array, "B N H K"],
    k: Float[Array, "B M J K"],
    v: Float[Array, "B M J K"],
    seen: Seen,
    rest: Float[Array, "B H N"] | None,
) -> tuple[Float[Array, "B N H K"], Float[Array, "B H N"] | None]:
    """Computes Σ_j w_j v_j with w = e^s / (e^rest + Σ e^s), s = q kᵀ, and the log of that sum.

    `rest` None stands for −∞. The LSE is None where the form does not ask for it. There
    are no derivatives but the first, in reverse mode.
    """
    return _forward(form, q, k, v, seen, rest)[0]


def _forward(form, q, k, v, seen, rest):
    out, lse = over_batch(functools.partial(_values, form))(q, k, v, seen)
    if rest is not None:
        lse, own = jnp.logaddexp(lse, rest), lse
        share = jnp.moveaxis(jnp.exp(own - lse), 1, 2)
        out = (out * share[..., None]).astype(out.dtype)
    kept = (q, k, v, seen, rest, out, lse)
    return (out, lse if form.with_lse else None), kept


def _backward(form, kept, cotangents):
    q, k, v, seen, rest, out, lse = kept
    g, d_lse = cotangents
    d_rest = None
    if rest is not None:
        # Of another denominator cuDNN's kernel gives the right gradients, as it takes
        # weights from the LSE and Σ w dw from the output.
        through = jnp.einsum("bnhk,bnhk->bhn", *factors(g, out))
        through = through if d_lse is None else through - d_lse
        d_rest = -jnp.exp(rest - lse) * through
    width = q.shape[-1]
    if d_lse is not None:
        q, k, v = map(_with_features, (q, k, v))
        out, g = _with_lse_gradient(out, g, d_lse)
    gradients = over_batch(functools.partial(_gradients, form))(
        q, k, v, seen, out, lse, g
    )
    d_q, d_k, d_v = (x[..., :width] for x in gradients)
    return d_q, d_k, d_v, None, d_rest


fused.defvjp(_forward, _backward)


def _with_lse_gradient(out, g, d_lse):
    """Returns outputs and cotangents with a feature by which a kernel adds d_lse.

    It subtracts Σ out · g from the cotangents of weights, to which an LSE's is to be added:
    a feature of 1 in g and −d_lse in out, whose values are 0.
    """
    own = -jnp.moveaxis(d_lse, 1, 2)
    return _with_features(out, own), _with_features(g, jnp.ones_like(own))


def _with_features(x, feature=None):
    """Returns x (…, K) with a feature (…) behind, and zeros up to LSE_FEATURES more."""
    more = [(0, 0)] * (x.ndim - 1)
    if feature is not None:
        x = jnp.concatenate([x, feature[..., None].astype(x.dtype)], -1)
    missing = LSE_FEATURES - (feature is not None)
    return jnp.pad(x, [*more, (0, missing)])


def over_batch(function: Callable) -> Callable:
    """Returns the function of arrays (B, …) with maps folded into B.

    An axis of B with length 1 stands for all examples.
    """
    mapped = custom_vmap(function)

    @mapped.def_vmap
    def _(size, is_mapped, *arrays):
        count = arrays[0].shape[1 if is_mapped[0] else 0]

        def fold(x, has_axis):
            if not has_axis and x.shape[0] == 1:
                return x
            x = x if has_axis else jnp.broadcast_to(x, (size, *x.shape))
            x = jnp.broadcast_to(x, (size, count, *x.shape[2:]))
            return x.reshape(size * count, *x.shape[2:])

        results = mapped(*jax.tree.map(fold, arrays, tuple(is_mapped)))
        unfolded = jax.tree.map(lambda x: x.reshape(size, count, *x.shape[1:]), results)
        return unfolded, jax.tree.map(lambda _: True, results)

    return mapped


def _values(form: Form, q: Any, k: Any, v: Any, seen: Seen) -> tuple[Array, Array]:
    """Returns the output (B, N, H, K) and the LSE (B, H, N)."""
    q, k, v = (only_first_derivatives(x) for x in (q, k, v))
    if form.on_cudnn:
        return cudnn_forward(q, k, v, _bias(seen, q), **_mask(form, seen))
    s = _scores(form, q, k, seen)
    lse = jax.nn.logsumexp(s, -1)
    w = jnp.exp(s - lse[..., None])
    out = jnp.einsum("bhnm,bmhk->bnhk", *factors(w.astype(v.dtype), _by_query(v, q)))
    return out.astype(v.dtype), lse


def _gradients(
    form: Form, q: Any, k: Any, v: Any, seen: Seen, out: Any, lse: Any, g: Any
) -> tuple[Array, Array, Array]:
    """Returns the gradients of q, k and v."""
    q, k, v, g = (only_first_derivatives(x) for x in (q, k, v, g))
    if form.on_cudnn:
        bias = _bias(seen, q)
        return cudnn_backward(q, k, v, bias, lse, out, g, **_mask(form, seen))
    w = jnp.exp(_scores(form, q, k, seen) - lse[..., None])
    d_w = jnp.einsum("bnhk,bmhk->bhnm", *factors(g, _by_query(v, q)))
    d_s = w * (d_w - jnp.einsum("bnhk,bnhk->bhn", *factors(g, out))[..., None])
    w, d_s = (x.astype(q.dtype) for x in (w, d_s))
    d_q = jnp.einsum("bhnm,bmhk->bnhk", *factors(d_s, _by_query(k, q)))
    d_k = jnp.einsum("bhnm,bnhk->bmhk", *factors(d_s, q))
    d_v = jnp.einsum("bhnm,bnhk->bmhk", *factors(w, g))
    return d_q.astype(q.dtype), _summed(d_k, k), _summed(d_v, v)


def _scores(form, q, k, seen):
    """Returns q kᵀ (B, H, N, M) in float32 at least, HIDDEN added where keys are hidden."""
    s = jnp.einsum("bnhk,bmhk->bhnm", *factors(q, _by_query(k, q)))
    i = jnp.arange(s.shape[2])[:, None]
    j = jnp.arange(s.shape[3])[None]
    hidden = jnp.zeros((1, 1, 1, 1), bool)
    if form.causal:
        hidden = hidden | (j > i)[None, None]
    if form.left is not None:
        hidden = hidden | (j < i - form.left)[None, None]
    if seen.lengths is not None:
        hidden = hidden | (j[None, None] >= seen.lengths[:, None, None, None])
    if seen.visible is not None:
        hidden = hidden | ~seen.visible
    return s + jnp.where(hidden, HIDDEN, 0.0)


def _by_query(x, q):
    """Returns keys or values (B, M, J, K) for each head of queries, (B, M, H, K)."""
    return x.repeat(q.shape[2] // x.shape[2], 2)


def _summed(gradient, x):
    """Returns the gradient of heads that queries share, of those for each of these."""
    heads = x.shape[2]
    parts = gradient.reshape(*x.shape[:2], heads, -1, x.shape[3])
    return parts.sum(3).astype(x.dtype)


def _bias(seen, q):
    if seen.visible is None:
        return None
    hidden = jnp.asarray(HIDDEN if q.dtype == jnp.bfloat16 else -(2.0**15), q.dtype)
    return jnp.where(seen.visible, jnp.zeros((), q.dtype), hidden)


def _mask(form: Form, seen: Seen) -> dict[str, Any]:
    return dict(causal=form.causal, left=form.left, lengths=seen.lengths)


@contextlib.contextmanager
def named_remedy() -> Iterator[None]:
    """Has JAX's error for a derivative in forward mode say what to do."""
    try:
        yield
    except TypeError as error:
        if "custom_vjp" not in str(error):
            raise
        raise TypeError(OTHERS) from error


@jax.custom_jvp
def only_first_derivatives(x: Array) -> Array:
    """Returns x; what would differentiate it raises NotImplementedError."""
    return x


@only_first_derivatives.defjvp
def _refuse(primals, tangents):
    raise NotImplementedError(OTHERS)
