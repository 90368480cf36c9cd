"""Lookups in learned tables, with gradients that are summed in float32.

The gradient of a row is a sum over all tokens that it was looked up for. In bfloat16 such a
sum stops growing at 256 times its terms. The rules here are of forward mode: so all rows of
a batch that are mapped by vmap share one sum, where a rule of reverse mode would make a
table of gradients for each of them. R rows, D numbers of a row.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn.functions import traced_as
from attn.pytrees import at_least_float32


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def rows(
    table: Float[Array, "R D"],
    places: Int[Array, "*N"],
    by_product: bool = False,
) -> Float[Array, "*N D"]:
    """Returns table[places].

    The gradient adds token by token, or, with `by_product`, is a product with one-hot
    vectors, whose memory is of N·R numbers.
    """
    return table[places]


@rows.defjvp
def _rows_jvp(
    by_product: bool, primals: tuple[Array, Array], tangents: tuple[Array, Any]
) -> tuple[Array, Array]:
    table, places = primals
    wide = tangents[0].astype(at_least_float32(table.dtype))
    change = _product(wide, places, table.dtype) if by_product else wide[places]
    return table[places], change.astype(table.dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def entries(
    x: Float[Array, "*A"],
    places: Int[Array, "*I"],
    axis: int,
) -> Float[Array, "*O"]:
    """Returns the entries of x at places along an axis, as `jnp.take_along_axis` does."""
    return jnp.take_along_axis(x, places, axis)


@entries.defjvp
def _entries_jvp(
    axis: int, primals: tuple[Array, Array], tangents: tuple[Array, Any]
) -> tuple[Array, Array]:
    x, places = primals
    wide = tangents[0].astype(at_least_float32(x.dtype))
    change = jnp.take_along_axis(wide, places, axis)
    return jnp.take_along_axis(x, places, axis), change.astype(x.dtype)


def _of_neighbours(x: Float[Array, "N"], places: Int[Array, "n"]) -> Float[Array, "n"]:
    """Returns x[places] of a run of neighbours: a slice does what would take a gather."""
    if len(places) > len(x):
        return _taken(x, places)
    return jax.lax.dynamic_slice_in_dim(x, places[0], len(places))


def _taken(x, places):
    return jnp.take(x, places, mode="clip")


of_neighbours = traced_as(_taken, _of_neighbours)


def _product(table: Array, places: Array, precision_of: Any) -> Array:
    """Returns the rows at places as a product, whose transpose is a product too."""
    hot = jax.nn.one_hot(places, len(table), dtype=table.dtype)
    # By default accelerators round factors to no less than bfloat16.
    precision = None if precision_of == jnp.bfloat16 else "highest"
    return jnp.einsum("...r,rd->...d", hot, table, precision=precision)
