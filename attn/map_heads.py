"""Every head of every example: a function of one head, mapped.

B batch (any leading axes), N queries, M keys, H heads, K = d_k, V = d_v.
"""

import math

import jax
import jax.numpy as jnp

from attn.kernels.blocks import BLOCK
from attn.masks import spread
from attn.scores import PRODUCTS


def over_heads(
    function, q, k, v, *, score, mask, bias=None, drop=None, at_once=None, saved=None
):
    """`function(q, k, v, score=, mask=, taint=, bias=, drop=)` of one head, for q (*B, N, H, K), k and v.

    It gives arrays with a row for each query, (N, …), which come back as (*B, N, H, …). `at_once` heads are computed
    together, all of them by default; the others wait their turn. With `saved`, derivatives keep what bears that name
    and make all else again, transposed copies of the arguments too.
    """
    *batch, n, h, _ = q.shape
    batch, m = tuple(batch), k.shape[-3]
    count = math.prod(batch)
    at_once = at_once or count * h
    if bias is not None:
        bias = (
            _parameters(bias)
            if hasattr(bias, "tile")
            else spread(jnp.asarray(bias), batch, core=3)
        )
    mask, score = mask.flat(batch), _parameters(score)
    _check_axes(count, h, mask=mask, bias=bias, score=score)
    rows = (
        *(x.reshape(count, *x.shape[-3:]) for x in (q, k, v)),
        score,
        mask,
        bias,
        jax.tree.map(lambda x: x.reshape(count, h), drop),
    )

    def one_example(q, k, v, *rest):
        heads_first = (jnp.moveaxis(x, -2, 0) for x in (q, k, v))
        found = _over(one_head, h, at_once, (*heads_first, *rest))
        return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), found)

    def one_head(q, k, v, score, mask, bias, drop):
        if bias is not None and not hasattr(bias, "tile"):
            bias = jnp.broadcast_to(bias, (n, m))
        # Where nothing is hidden, NaN and Inf find their way by themselves.
        k, v, taint = _cleaned(k, v) if mask.parts else (k, v, None)
        return function(
            q, k, v, score=score, mask=mask, taint=taint, bias=bias, drop=drop
        )

    if saved is not None:
        keep = jax.checkpoint_policies.save_only_these_names(saved)
        one_head, one_example = (
            jax.checkpoint(f, policy=keep, prevent_cse=False)
            for f in (one_head, one_example)
        )
    found = _over(one_example, count, max(1, at_once // h), rows)
    return jax.tree.map(lambda x: x.reshape(*batch, *x.shape[1:]), found)


def near_the_caches(n, m, score):
    """Heads to take at once: on a CPU as many as keep a block of scores in the caches, with what they are made from."""
    on_cpu = 2**21 if isinstance(score, PRODUCTS) else 2**19
    return max(
        1,
        (on_cpu if jax.default_backend() == "cpu" else 2**30)
        // (4 * min(n, BLOCK) * m),
    )


def _over(function, count, at_once, rows):
    """`function` over the leading axis of every leaf of `rows`; one of length 1 is shared by all."""
    leaves, tree = jax.tree.flatten(rows)
    own = [leaf.shape[0] == count for leaf in leaves]

    def one(mapped):
        mapped = iter(mapped)
        return function(
            *tree.unflatten(
                next(mapped) if is_own else leaf[0]
                for leaf, is_own in zip(leaves, own, strict=True)
            )
        )

    mapped = [leaf for leaf, is_own in zip(leaves, own, strict=True) if is_own]
    if at_once >= count:
        return jax.vmap(one)(mapped)
    return jax.lax.map(one, mapped, batch_size=at_once if at_once > 1 else None)


def _check_axes(count, h, **values):
    for name, value in values.items():
        for leaf in jax.tree.leaves(value):
            if leaf.shape[0] not in (1, count) or leaf.shape[1] not in (1, h):
                raise ValueError(
                    f"{name} has an array for {leaf.shape[0]} examples and {leaf.shape[1]} heads; there "
                    f"are {count} examples and {h} heads, and 1 stands for all of them"
                )


def _cleaned(k, v):
    """Keys and values with 0 for NaN and Inf, and the taint (M,) of the tokens that held one, see `Tile`."""
    dtype = jnp.promote_types(v.dtype, jnp.float32)
    taint = sum(0 * jax.lax.stop_gradient(x).sum(-1).astype(dtype) for x in (k, v))
    return *(jnp.where(jnp.isfinite(x), x, 0) for x in (k, v)), taint


def _parameters(value):
    """Parameters, one number or with an axis H, with one more axis for the examples, which share them."""
    return jax.tree.map(
        lambda leaf: (
            jnp.asarray(leaf)[None, None] if jnp.ndim(leaf) == 0 else leaf[None]
        ),
        value,
    )
