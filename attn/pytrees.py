"""Pytrees: frozen dataclasses as such, maps over them, and their arrays' precision."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import GetAttrKey
from jaxtyping import Array

from attn import platforms

T = TypeVar("T")
AnyArray = Array | np.ndarray
"""An array of JAX's or numpy's."""


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def pytree(cls: type[T], children: Iterable[str] | None = None) -> type[T]:
    """Makes a class of fields a frozen dataclass and a pytree of them.

    The children are the fields of these names, or those without the metadata
    {"static": True}. The other fields belong to its structure, and must be hashable.
    """
    # `jax.tree_util.register_dataclass` does the same. But in JAX 0.10 and 0.12 structures
    # of two such classes are equal where their static fields are, and the caches of jit
    # take, rarely and silently, a program of the one for the other's.
    made: Any = dataclasses.dataclass(frozen=True)(cls)
    fields = {field.name: field for field in dataclasses.fields(made)}
    if children is None:
        children = [name for name in fields if not fields[name].metadata.get("static")]
    children = tuple(children)
    if unknown := set(children) - set(fields):
        raise TypeError(
            f"{made.__name__} has no fields {sorted(unknown)}; its own: {list(fields)}"
        )
    static = tuple(name for name in fields if name not in children)

    def flatten(value):
        leaves = tuple(getattr(value, name) for name in children)
        return leaves, tuple(getattr(value, name) for name in static)

    def flatten_with_keys(value):
        leaves, structure = flatten(value)
        return tuple(zip(map(GetAttrKey, children), leaves, strict=True)), structure

    def unflatten(structure, leaves):
        names = (*static, *children)
        return made(**dict(zip(names, (*structure, *leaves), strict=True)))

    jax.tree_util.register_pytree_with_keys(made, flatten_with_keys, unflatten, flatten)
    return made


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Datum:
    """A number of a score that its module keeps as data, in the collection "numbers".

    To JAX it belongs to the score's structure.
    """

    value: float


def shared_by_examples(value):
    """Returns parameters with one more axis for the examples, which share them.

    A parameter is one number or has an axis H.
    """

    def with_axes(leaf):
        return jnp.asarray(leaf)[None, None] if jnp.ndim(leaf) == 0 else leaf[None]

    return jax.tree.map(with_axes, value)


def at_least_float32(dtype) -> np.dtype:
    """Returns the dtype itself or float32, whichever holds more."""
    # Asked in so many words, which `numpy_dtype_promotion("strict")` is there to demand.
    with jax.numpy_dtype_promotion("standard"):
        return jnp.promote_types(dtype, jnp.float32)


def factors(*arrays: Array) -> tuple[Array, ...]:
    """Returns the factors of a product whose sums are asked for in float32 at least.

    They are the same numbers, in the precision of which there is such a product.
    """
    is_wide = all(x.dtype.itemsize > 2 for x in arrays)
    if is_wide or platforms.has_wide_products():
        return arrays
    return widened(arrays)


def widened(tree):
    """Returns the tree with its floating-point arrays in float32 at least.

    What a loop shares between its turns has the sum of their gradients, added turn by turn:
    in bfloat16 it would be rounded at each. So it enters a loop widened, and each turn makes
    it `as_narrow_as` it was.
    """

    def wide(x):
        is_float = jnp.issubdtype(x.dtype, jnp.floating)
        return x.astype(at_least_float32(x.dtype)) if is_float else x

    return jax.tree.map(wide, tree)


def as_narrow_as(like, tree):
    """Returns the tree with the dtypes of `like`, of which it is the widened one."""

    def narrow(own, x):
        # Random keys are arrays too, and cannot be cast.
        return x if x.dtype == own.dtype else x.astype(own.dtype)

    return jax.tree.map(narrow, like, tree)


def map_leading(function: Callable, *rows: Any):
    """Maps over the leading axis of every leaf of `rows`; all share one of length 1."""
    leaves, tree = jax.tree.flatten(rows)
    is_mapped = [leaf.shape[0] != 1 for leaf in leaves]

    def one(mapped):
        mapped = iter(mapped)
        every = [
            next(mapped) if varies else leaf[0]
            for leaf, varies in zip(leaves, is_mapped, strict=True)
        ]
        return function(*tree.unflatten(every))

    mapped = [x for x, varies in zip(leaves, is_mapped, strict=True) if varies]
    if not mapped:
        return jax.tree.map(lambda x: x[None], one(()))
    # Without explicit axes every entry is None.
    if len({jax.typeof(x).sharding.spec[0] for x in mapped}) > 1:
        mapped = _sharded_alike(mapped)
    return jax.vmap(one)(mapped)


def _sharded_alike(arrays: list[Array]) -> list[Array]:
    """Returns the arrays with the leading axis of all sharded as it is in the first.

    Over a mesh with explicit axes vmap takes no others.
    """
    lead, *_ = jax.typeof(arrays[0]).sharding.spec
    alike = []
    for x in arrays:
        # A mesh axis can shard one axis of an array only.
        spec = jax.typeof(x).sharding.spec
        rest = [None if _share_axes(axes, lead) else axes for axes in spec[1:]]
        alike.append(jax.sharding.reshard(x, jax.P(lead, *rest)))
    return alike


def _share_axes(a: Any, b: Any) -> bool:
    """Tells whether two entries of a PartitionSpec share an axis of the mesh."""
    names = [set(x if isinstance(x, tuple) else (x,)) for x in (a, b)]
    return bool((names[0] & names[1]) - {None})
