"""Checks of custom positions."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attn.attention import attention
from attn.context import Context
from attn.contract.common import (
    B,
    D,
    H,
    N,
    Row,
    cast,
    close,
    description,
    inputs,
    is_a,
    on_cudnn,
    packed,
    run,
    steps,
)
from attn.contract.kernels import LONG
from attn.masks import Mask
from attn.nn.attention import MultiHeadAttention
from attn.positions import Positions, bias_of_heads


def check_positions(positions: Positions) -> list[Row]:
    """Checks that a value meets the contract of `attn.positions`.

    Returns:
      Rows on its form, its table, rotation and bias, and a decoder's cache.
    """
    checks = {
        "it is a Positions": lambda: is_a(positions, Positions),
        "can be a part of a description: it has a hash": lambda: hash(positions),
        "it fits the widths": lambda: positions.check(description(positions=positions)),
        "the table is (L, D) and finite": lambda: _table(positions),
        "places are rows of the table, in order": lambda: _places(positions),
        "rotate keeps shape, dtype and finite numbers": lambda: _rotate(positions),
        "any tile of the bias is cut from the whole": lambda: _tiles(positions),
        "gradients of the bias are finite": lambda: _gradients(positions),
        "sides, where the bias has them, say what tiles do": lambda: _sides(positions),
        "a text in a packed row is as alone": lambda: _packed(positions),
        "steps over a cache equal the full pass": lambda: steps(positions=positions),
    }
    return list(run(checks))


def _table(positions: Positions) -> None:
    table = positions.table(jax.random.key(0), N, D)
    rows, *width = table.shape
    if rows < N or width != [D] or not jnp.isfinite(table).all():
        raise ValueError(f"a table of shape {table.shape} for {N} positions, width {D}")


def _places(positions: Positions) -> None:
    counted = jnp.broadcast_to(jnp.arange(N), (B, N))
    rows = len(positions.table(jax.random.key(0), N, D))
    for key in (None, jax.random.key(1)):
        places = positions.places(counted, N, key)
        in_order = (jnp.diff(places) > 0).all()
        if not in_order or places.min() < 0 or places.max() >= rows:
            raise ValueError(f"places {places.tolist()} in a table of {rows} rows")


def _rotate(positions: Positions) -> None:
    for dtype in ("float32", "bfloat16"):
        q, _, _ = inputs(dtype)
        turned = positions.rotate(q, jnp.arange(N))
        if turned.shape != q.shape or turned.dtype != q.dtype:
            raise ValueError(f"{dtype} {q.shape} became {turned.dtype} {turned.shape}")
        if not jnp.isfinite(turned).all():
            raise ValueError("a turned number is NaN or Inf")


def _tiles(positions: Positions) -> str | None:
    for causal in (False, True):
        bias = positions.bias(jax.random.key(0), H, causal)
        if bias is None:
            return "no bias of distances"
        i = jnp.arange(LONG)
        j = jnp.arange(LONG + 1)
        whole = bias_of_heads(bias, H, i, j)
        part = bias_of_heads(bias, H, i[37:45], j[11:32])
        close(part, whole[:, 37:45, 11:32], 1e-6, "a tile and its part of the whole")


def _packed(positions: Positions) -> str:
    module = MultiHeadAttention(description(positions=positions), causal=True)
    x = jnp.zeros((1, N, D))
    variables = module.init(jax.random.key(1), x, Context(Mask.causal()))

    def mix(x, ctx):
        return module.apply(variables, x, ctx)[0]

    return packed(mix, Mask.causal())


def _sides(positions: Positions) -> str:
    bias: Any = None
    if not positions.attend:
        a = description(positions=positions)
        value = positions.in_attention(jax.random.key(0), a, True)
        x = jnp.asarray(np.random.default_rng(3).normal(size=(B, N, D)), jnp.float32)
        bias, _ = positions.bias_of(value, x, Context(Mask.causal()))
    if not hasattr(bias, "sides") or bias.sides(N, N) is None:
        return "it has none"
    return on_cudnn(inputs("float32", m=N), bias=bias)


def _gradients(positions: Positions) -> str:
    """Compares what kernels say of the gradients of a bias, through what it is made of."""
    if positions.attend:
        return "no bias"
    a = description(positions=positions)
    value = positions.in_attention(jax.random.key(0), a, True)
    if value is None:
        return "no bias"
    x = jnp.asarray(np.random.default_rng(3).normal(size=(B, N, D)), jnp.float32)

    def bias_of(value):
        return positions.bias_of(value, x, Context(Mask.causal()))[0]

    return _compared(value, bias_of, N)


def _compared(value: Any, bias_of: Callable, m: int) -> str:
    """Compares what kernels say of the gradients of a value's arrays."""
    qkv = inputs(jnp.float32, m=m)
    leaves, tree = jax.tree.flatten(cast(value, jnp.float32))
    places = [at for at, leaf in enumerate(leaves) if jnp.ndim(leaf)]

    def loss(arrays, kernel):
        every = list(leaves)
        for at, array in zip(places, arrays, strict=True):
            every[at] = array
        bias = bias_of(tree.unflatten(every))
        out = attention(*qkv, bias=bias, implementation=kernel)
        return (out**2).sum()

    arrays = [leaves[at] for at in places]
    exact = jax.grad(loss)(arrays, "reference")
    for a, b in zip(jax.grad(loss)(arrays, "blocks"), exact, strict=True):
        if not jnp.isfinite(b).all():
            raise ValueError("a gradient is NaN or Inf")
        close(a, b, 1e-4, "gradients of blocks and reference")
    return f"{len(arrays)} parameters"
