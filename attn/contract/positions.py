"""Checks of one's own positions."""

import functools

import jax
import jax.numpy as jnp

from attn.attention import attention
from attn.contract.common import D, H, K, N, Row, cast, close, inputs, is_a, run, steps
from attn.contract.kernels import LONG
from attn.positions import Positions


def check_positions(positions: Positions) -> list[Row]:
    """Checks that a value meets the contract of `attn.positions`.

    Returns:
      Rows on its form, its table, rotation and bias, and a decoder's cache.
    """
    checks = {
        "it is a Positions": lambda: is_a(positions, Positions),
        "can be a field of Design: it has a hash": lambda: hash(positions),
        "it fits the widths": lambda: positions.check(D, K),
        "the table is (L, D) and finite": lambda: _table(positions),
        "rotate keeps shape, dtype and finite numbers": lambda: _rotate(positions),
        "any tile of the bias is cut from the whole": lambda: _tiles(positions),
        "gradients of the bias are finite": lambda: _bias_gradients(positions),
        "steps over a cache equal the full pass": lambda: steps(positions=positions),
    }
    return list(run(checks))


def _table(positions):
    table = positions.table(jax.random.key(0), N, D)
    if table.shape != (N, D) or not jnp.isfinite(table).all():
        raise ValueError(f"a table of shape {table.shape} for {N} positions, width {D}")


def _rotate(positions):
    for dtype in ("float32", "bfloat16"):
        q, _, _ = inputs(dtype)
        turned = positions.rotate(q, jnp.arange(N))
        if turned.shape != q.shape or turned.dtype != q.dtype:
            raise ValueError(f"{dtype} {q.shape} became {turned.dtype} {turned.shape}")
        if not jnp.isfinite(turned).all():
            raise ValueError("a turned number is NaN or Inf")


def _tiles(positions):
    for causal in (False, True):
        bias = positions.bias(jax.random.key(0), H, causal)
        if bias is None:
            return "no bias"
        leaves, tree = jax.tree.flatten(bias)
        axes = [0 if jnp.ndim(leaf) else None for leaf in leaves]
        i = jnp.arange(LONG)
        j = jnp.arange(LONG + 1)

        def tile(leaves, i=i, j=j, tree=tree):
            return tree.unflatten(leaves).tile(i, j)

        def heads(leaves, i, j, tile=tile, axes=axes):
            mapped = jax.vmap(functools.partial(tile, i=i, j=j), (axes,), axis_size=H)
            return mapped(leaves)

        whole = heads(leaves, i, j)
        part = heads(leaves, i[37:45], j[11:32])
        close(part, whole[:, 37:45, 11:32], 1e-6, "a tile and its part of the whole")


def _bias_gradients(positions):
    bias = positions.bias(jax.random.key(0), H, True)
    if bias is None:
        return "no bias"
    qkv = inputs(jnp.float32)
    leaves, tree = jax.tree.flatten(cast(bias, jnp.float32))
    places = [at for at, leaf in enumerate(leaves) if jnp.ndim(leaf)]

    def loss(arrays, kernel):
        every = list(leaves)
        for at, array in zip(places, arrays, strict=True):
            every[at] = array
        out = attention(*qkv, bias=tree.unflatten(every), implementation=kernel)
        return (out**2).sum()

    arrays = [leaves[at] for at in places]
    exact = jax.grad(loss)(arrays, "reference")
    for a, b in zip(jax.grad(loss)(arrays, "tiled"), exact, strict=True):
        if not jnp.isfinite(b).all():
            raise ValueError("a gradient is NaN or Inf")
        close(a, b, 1e-4, "gradients of tiled and reference")
    return f"{len(arrays)} parameters"
