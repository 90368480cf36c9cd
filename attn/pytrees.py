"""Frozen dataclasses as pytrees: what scores, masks, biases and dropout are made of."""

import dataclasses
from collections.abc import Iterable
from typing import Any, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import GetAttrKey
from jaxtyping import Array

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


def shared_by_examples(value):
    """Returns parameters with one more axis for the examples, which share them.

    A parameter is one number or has an axis H.
    """

    def with_axes(leaf):
        return jnp.asarray(leaf)[None, None] if jnp.ndim(leaf) == 0 else leaf[None]

    return jax.tree.map(with_axes, value)
