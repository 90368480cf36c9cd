"""attention(): one function for every score and mask.

It picks a kernel and maps it over heads and batch.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Real

from attn.arguments import check_normaliser, checked, has_no_pairs, make_drop
from attn.kernels import cudnn, traced
from attn.kernels.blocks import blocks
from attn.kernels.fused import named_remedy
from attn.kernels.reference import all_heads, reference
from attn.map_heads import map_heads
from attn.masks import Mask
from attn.normalisers import Softmax
from attn.pytrees import AnyArray
from attn.scores import ScaledDot

IMPLEMENTATIONS = ("reference", "blocks", "cudnn", "pallas")
WHOLE = {"cudnn": cudnn, "pallas": traced}
"""The kernels of all heads at once."""
RENAMED = {"tiled": "blocks", "jax_nn": "cudnn"}
"""The kernels' earlier names."""

SMALL = 2**16
"""Scores of a head up to which implementation=None takes the textbook form.

They are 256 KiB in float32.
"""


def attention(
    q: Real[AnyArray, "*B N H K"],
    k: Real[AnyArray, "*B M J L"],
    v: Real[AnyArray, "*B M J V"],
    *,
    score: Any = ScaledDot(),
    normaliser: Any = Softmax(),
    mask: Mask | None = None,
    bias: Any = None,
    dropout_rate: float | Float[Array, ""] = 0.0,
    dropout_key: Array | None = None,
    implementation: str | None = None,
    return_lse: bool = False,
    return_weights: bool | str = False,
    is_finite: bool = False,
) -> Any:
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
        "cudnn" (a softmax of matrix products, by cuDNN on a GPU in float16 and bfloat16,
        else with N·M memory; first derivatives in reverse mode alone), "pallas" (any
        score, mask and bias that is a function of pairs, in the tiles of one kernel, on
        TPUs and Hopper; on a CPU Pallas interprets it, slowly; the same derivatives), or
        None: the third where cuDNN serves, else the first for short inputs and scores that
        are matrix products, else the second.
      return_lse: also return log Σ exp(score + bias), (*B, N, H), float32 at least; with
        a normaliser that has more in its denominator, or other exponents, the log of its.
      return_weights: also return the weights, (*B, H, N, M), float32 at least: those
        "before" dropout, which True means too, or "after" it.
      is_finite: promises that q, k and v hold no NaN or Inf, as models do, whose training
        looks at loss and gradients. It saves the passes that keep these from spreading
        where a mask hides them.

    Returns:
      The output (*B, N, H, V) in v's dtype, float32 for integers; asked for, a tuple of
      it, the LSE and the weights, in this order.

    Raises:
      TypeError: complex or boolean q, k or v, a score, normaliser or mask of another kind
        (an array as mask, a name as score), a boolean bias.
      NotImplementedError: other derivatives of "cudnn" and "pallas"; forward mode is a
        TypeError.
      ValueError: shapes that do not fit each other, those of masks and biases too, heads
        of queries that are no multiple of those of keys, an implementation that is
        unknown or cannot serve, an LSE of weights that are no exponentials, dropout
        without a key, a rate that is not from 0 to 1.
    """
    q, k, v, mask = checked(q, k, v, score, mask, bias)
    check_normaliser(normaliser, return_lse)
    if return_weights not in (False, True, "before", "after"):
        raise ValueError(
            f"return_weights={return_weights!r} must be 'before' or 'after' dropout, "
            "True or False"
        )
    drop = None
    if not isinstance(dropout_rate, float) or dropout_rate or dropout_key is not None:
        drop = make_drop(dropout_rate, dropout_key, (*q.shape[:-3], q.shape[-2]))
    results = ["out"]
    if return_lse:
        results.append("lse")
    if return_weights:
        results.append("after" if return_weights == "after" else "before")
    values = dict(score=score, normaliser=normaliser, mask=mask, bias=bias, drop=drop)
    if implementation is None:
        kernel = _fastest(q, k, v, values, results)
    else:
        kernel = _asked_for(implementation, q, k, v, values, results)
    if has_no_pairs(q, k):
        outputs = _without_keys(q, k, v, normaliser, results)
    elif kernel in WHOLE:
        options = dict(values, with_lse=return_lse, is_finite=is_finite)
        with named_remedy():
            outputs = WHOLE[kernel].in_batches(q, k, v, **options)
    else:
        options = dict(kernel=kernel, results=tuple(results), is_finite=is_finite)
        outputs = _map_kernel(q, k, v, values, **options)
    return tuple(outputs) if len(outputs) > 1 else outputs[0]


def _fastest(
    q: AnyArray, k: AnyArray, v: AnyArray, values: dict[str, Any], results: list[str]
) -> str:
    """Returns the kernel to use where nobody asks for one."""
    # cuDNN has kernels of half precision alone.
    is_half = jnp.result_type(q, k, v).itemsize == 2
    if is_half and cudnn.is_fastest(q, k, v, results=results, **values):
        return "cudnn"
    # Scores that are no product may make N·M·A numbers in the textbook form.
    short = q.shape[-3] * k.shape[-3] <= SMALL and values["score"].is_product
    with_weights = results[-1] in ("before", "after")
    return "reference" if with_weights or short else "blocks"


def _asked_for(
    implementation: str,
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    values: dict[str, Any],
    results: list[str],
) -> str:
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
    lacks = None
    if implementation in WHOLE and not has_no_pairs(q, k):
        lacks = WHOLE[implementation].why_not(q, k, v, results=results, **values)
    if lacks:
        raise ValueError(
            f"implementation={implementation!r} cannot serve here: {lacks}; 'blocks' can"
        )
    if implementation == "blocks" and results[-1] in ("before", "after"):
        raise ValueError(
            "implementation='blocks' never has all weights at once; "
            "use 'reference' for return_weights"
        )
    return implementation


@functools.partial(jax.jit, static_argnames=("kernel", "results", "is_finite"))
def _map_kernel(
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    values: dict[str, Any],
    *,
    kernel: str,
    results: tuple[str, ...],
    is_finite: bool,
) -> tuple[Array, ...]:
    """Maps the kernel over every head of every example, and returns some of its results.

    The compiler drops what a jitted function computes and does not return.
    """
    if kernel == "reference":
        out, lse, *weights = all_heads(
            reference, q, k, v, is_finite=is_finite, **values
        )
    else:
        out, lse, *weights = map_heads(blocks, q, k, v, is_finite=is_finite, **values)
    # Mapped they are (*B, N, H, M), and are to be laid out as a dense mask is.
    weights = [jnp.moveaxis(x, -2, -3) for x in weights]
    # The kernel blocks has no weights, so the last two names may lack a value.
    names = ["out", "lse", "before", "after"]
    named = dict(zip(names, (out, lse, *weights), strict=False))
    return tuple(named[name] for name in results)


def _without_keys(
    q: AnyArray, k: AnyArray, v: AnyArray, normaliser: Any, results: list[str]
) -> list[Array]:
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


def _rest(normaliser: Any, h: int) -> Array:
    """Returns the LSE (H,) of a query without keys: what else is in the denominator."""

    def of_head(normaliser):
        _, rest = normaliser.exponents(jnp.zeros((1, 0)))
        return jnp.asarray(-jnp.inf if rest is None else rest)

    def for_each_head(leaf):
        return jnp.broadcast_to(leaf, (h, *jnp.shape(leaf)[1:]))

    heads = jax.tree.map(for_each_head, normaliser)
    return jax.vmap(of_head, axis_size=h)(heads)
