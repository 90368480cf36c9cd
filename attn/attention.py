"""attention(): one function for every score and mask.

It picks a kernel and maps it over heads and batch.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Real

from attn.arguments import check_normaliser, checked, make_drop, nobody_meets
from attn.functions import SAVED
from attn.kernels.blocks import blocks
from attn.kernels.cudnn import cudnn, is_padded, why_not
from attn.kernels.reference import reference
from attn.map_heads import heads_at_once, map_heads
from attn.masks import Mask
from attn.normalisers import Softmax
from attn.platforms import takes_cudnn
from attn.scores import ScaledDot

IMPLEMENTATIONS = ("reference", "blocks", "cudnn")
RENAMED = {"tiled": "blocks", "jax_nn": "cudnn"}
"""The kernels' earlier names."""

SMALL = 2**16
"""Scores of a head up to which implementation=None takes the textbook form.

They are 256 KiB in float32.
"""


def attention(
    q: Real[ArrayLike, "*B N H K"],
    k: Real[ArrayLike, "*B M J L"],
    v: Real[ArrayLike, "*B M J V"],
    *,
    score=ScaledDot(),
    normaliser=Softmax(),
    mask: Mask | None = None,
    bias: Any = None,
    dropout_rate: float | Float[Array, ""] = 0.0,
    dropout_key: Array | None = None,
    implementation: str | None = None,
    return_lse: bool = False,
    return_weights: bool | str = False,
):
    """Computes normaliser(score(q, k) + bias) v, over the keys that the mask shows.

    With softmax this is "Attention Is All You Need", section 3.2. B batch (any leading
    axes, none too), N queries, M keys, H heads of queries, J of keys and values,
    K = L = d_k, V = d_v; with a bilinear or additive score queries and keys may differ in
    width.

    H = J is multi-head attention, J = 1 multi-query attention (Shazeer 2019), and what is
    between grouped-query attention (Ainslie et al. 2023): head i of the queries takes head
    i // (H/J) of keys and values. These are nowhere repeated, and the results, dropout
    too, are those of keys and values that are.

    Args:
      q, k, v: queries, keys and values, heads before the last axis; H is a multiple of J.
        Integers are taken as float32.
      score: compares queries and keys, see `attn.scores`; its parameters are one number
        or have a leading axis H.
      normaliser: makes weights of scores, see `attn.normalisers`; its parameters are one
        number or have a leading axis H.
      mask: says which keys a query may see, see `attn.masks`. A query that sees nothing
        has output 0 and gradient 0; its LSE is −inf, or what else the normaliser has in
        its denominator.
      bias: added to the scores: an array broadcastable to (*B, H, N, M), or a value with
        a `tile`, see `attn.positions.biases`.
      dropout_rate: weights are dropped with this probability, independently for each
        element, head and example. It counts as a constant: a traced rate gets gradient 0.
      dropout_key: a random key, or one for each example (*B); needed by and only by a
        dropout rate.
      implementation: "reference" (textbook, N·M memory), "blocks" (O(N + M) memory),
        "cudnn" (plain products by `jax.nn.dot_product_attention`: cuDNN on a GPU, for
        float16 and bfloat16), or None: the third where cuDNN serves (without forward-mode
        derivatives), else the first for short inputs and scores that are matrix products,
        else the second.
      return_lse: also return log Σ exp(score + bias), (*B, N, H), float32 at least; with
        a normaliser that has more in its denominator, or other exponents, the log of its.
      return_weights: also return the weights, (*B, H, N, M), float32 at least: those
        "before" dropout, which True means too, or "after" it.

    Returns:
      The output (*B, N, H, V) in v's dtype, float32 for integers; asked for, a tuple of
      it, the LSE and the weights, in this order.

    Raises:
      TypeError: complex or boolean q, k or v, a score, normaliser or mask of another kind
        (an array as mask, a name as score), a boolean bias.
      ValueError: shapes that do not fit each other, those of masks and biases too, heads
        of queries that are no multiple of those of keys, an implementation that is
        unknown or cannot serve, an LSE of weights that are no exponentials, dropout
        without a key, a rate that is not from 0 to 1.
    """
    q, k, v, mask = checked(q, k, v, score, mask, bias)
    if return_weights not in (False, True, "before", "after"):
        raise ValueError(
            f"return_weights={return_weights!r} must be 'before' or 'after' dropout, "
            "True or False"
        )
    check_normaliser(normaliser, return_lse)
    drop = make_drop(dropout_rate, dropout_key, (*q.shape[:-3], q.shape[-2]))
    cudnn_lacks = why_not(
        q,
        k,
        v,
        score=score,
        normaliser=normaliser,
        mask=mask,
        bias=bias,
        drop=drop,
        return_lse=return_lse,
        return_weights=return_weights,
    )
    if implementation is None:
        kernel = _fastest(q, k, v, score, mask, cudnn_lacks, return_weights)
    else:
        kernel = _asked_for(implementation, cudnn_lacks, return_weights)
    results = ["out"]
    if return_lse:
        results.append("lse")
    if return_weights:
        results.append("after" if return_weights == "after" else "before")
    if nobody_meets(q, k):
        outputs = _without_keys(q, k, v, normaliser, results)
    elif kernel == "cudnn":
        outputs = [_by_cudnn(q, k, v, score, mask)]
    else:
        arguments = dict(
            score=score, normaliser=normaliser, mask=mask, bias=bias, drop=drop
        )
        outputs = _map_kernel(q, k, v, arguments, kernel=kernel, results=tuple(results))
    return outputs if len(outputs) > 1 else outputs[0]


def _fastest(q, k, v, score, mask, cudnn_lacks, return_weights):
    """Returns the kernel to use where nobody asks for one."""
    if cudnn_lacks is None:
        # Elsewhere jax.nn's own form takes N·M memory.
        dtype = jnp.result_type(q, k, v)
        if takes_cudnn(dtype, v.shape[-1], *mask.reach(), is_padded(mask)):
            return "cudnn"
    # Scores that are no product may make N·M·A numbers in the textbook form.
    short = q.shape[-3] * k.shape[-3] <= SMALL and score.is_product
    return "reference" if return_weights or short else "blocks"


def _asked_for(implementation, cudnn_lacks, return_weights):
    """Returns the kernel with this name.

    Raises ValueError for one that is unknown or cannot do what is asked, saying why.
    """
    if implementation in RENAMED:
        raise ValueError(
            f"implementation={implementation!r} is now {RENAMED[implementation]!r}"
        )
    if implementation not in IMPLEMENTATIONS:
        known = ", ".join(IMPLEMENTATIONS)
        raise ValueError(f"unknown implementation {implementation!r}; known: {known}")
    if implementation == "cudnn" and cudnn_lacks:
        raise ValueError(
            f"implementation='cudnn' cannot serve here: {cudnn_lacks}; 'blocks' can"
        )
    if implementation == "blocks" and return_weights:
        raise ValueError(
            "implementation='blocks' never has all weights at once; "
            "use 'reference' for return_weights"
        )
    return implementation


@functools.partial(jax.jit, static_argnames=("kernel", "results"))
def _map_kernel(q, k, v, arguments, *, kernel, results):
    """Maps the kernel over every head of every example, and returns some of its results.

    The compiler drops what a jitted function computes and does not return.
    """
    one_head = {"reference": _reference, "blocks": blocks}[kernel]
    limits = {}
    # The reference names nothing to keep, so its derivative would make all again.
    if kernel == "blocks":
        limits["at_once"] = heads_at_once(q.shape[-3], k.shape[-3], arguments["score"])
        limits["saved"] = SAVED
    out, lse, *weights = map_heads(one_head, q, k, v, **arguments, **limits)
    # map_heads gives (*B, N, H, M); weights are laid out as a dense mask is.
    weights = [jnp.moveaxis(x, -2, -3) for x in weights]
    # The kernel blocks has no weights, so the last two names may lack a value.
    named = dict(
        zip(("out", "lse", "before", "after"), (out, lse, *weights), strict=False)
    )
    return tuple(named[name] for name in results)


def _without_keys(q, k, v, normaliser, results):
    """Returns what there is where no query sees a key, as there are none of one kind."""
    *batch, n, h, _ = q.shape
    wide = jnp.promote_types(jnp.result_type(q), jnp.float32)
    weights = jnp.zeros((*batch, h, n, k.shape[-3]), wide)
    lse = jnp.full((*batch, n, h), -jnp.inf, wide)
    if "lse" in results and lse.size:
        lse = lse.at[:].set(_rest(normaliser, h))
    named = {
        "out": jnp.zeros((*batch, n, h, v.shape[-1]), jnp.result_type(v)),
        "lse": lse,
        "before": weights,
        "after": weights,
    }
    return [named[name] for name in results]


def _rest(normaliser, h):
    """Returns the LSE (H,) of a query without keys: what else is in the denominator."""

    def of_head(normaliser):
        _, rest = normaliser.exponents(jnp.zeros((1, 0)))
        return jnp.asarray(-jnp.inf if rest is None else rest)

    def for_each_head(leaf):
        return jnp.broadcast_to(leaf, (h, *jnp.shape(leaf)[1:]))

    heads = jax.tree.map(for_each_head, normaliser)
    return jax.vmap(of_head, axis_size=h)(heads)


def _reference(q, k, v, *, score, normaliser, mask, taint, bias, drop):
    """Calls the reference kernel with arrays in place of descriptions.

    Tokens that held NaN or Inf are 0 here; their taint makes NaN of the scores that see
    them.
    """
    i = jnp.arange(q.shape[0])
    j = jnp.arange(k.shape[0])
    if hasattr(bias, "tile"):
        bias = bias.tile(i, j)

    def tainted(q, k):
        s = score(q, k)
        return s if taint is None else s + taint.tile().astype(s.dtype)

    rest = dict(mask=mask.tile(i, j), bias=bias, drop=drop)
    return reference(q, k, v, score=tainted, normaliser=normaliser, **rest)


@jax.jit
def _by_cudnn(q, k, v, score, mask):
    batch = q.shape[:-3]

    def flat(leaf):
        # Of the parts that are served only padding has an array, one number an example.
        return jnp.broadcast_to(leaf, batch).reshape(-1)

    mask = Mask(tuple(jax.tree.map(flat, part) for part in mask.parts))
    # jax.nn takes one batch axis, attention() any number.
    q, k, v = (x.reshape(-1, *x.shape[-3:]) for x in (q, k, v))
    out = cudnn(q, k, v, score=score, mask=mask)
    return out.reshape(*batch, *out.shape[1:])
