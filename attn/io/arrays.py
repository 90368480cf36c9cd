"""The variables of a model as a flat dictionary of arrays."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.typing import ArrayLike
from jaxtyping import Array

from attn.context import Context


def to_arrays(variables: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns all variables of any model as one flat dictionary.

    Names are such as "encoder_0/self_attention/w_q" and "source_positions/table".
    """
    return {name: np.array(x) for name, x in _flat(variables).items()}


def from_arrays(model: nn.Module, arrays: Mapping[str, ArrayLike]) -> dict:
    """Returns the variables of `model`, in float32 at least, from those of `to_arrays`.

    Raises ValueError for arrays that are missing, unknown, of another shape or not of
    floating numbers; it names all of them.
    """
    arrays = {name: np.asarray(x) for name, x in arrays.items()}
    expected = _abstract(model)
    if wrong := _mistakes(arrays, _flat(expected)):
        raise ValueError(f"not the arrays of {model.config}: {'; '.join(wrong)}")
    variables = {}
    for collection, tree in expected.items():
        flat = {name: _wide(arrays[name]) for name in flatten_dict(tree, sep="/")}
        variables[collection] = unflatten_dict(flat, sep="/")
    return variables


def _abstract(model: nn.Module) -> Any:
    """Returns the shapes of a model's variables."""
    tokens = jnp.zeros((1, 1), jnp.int32)
    # One of tokens and one context for each text that the model reads.
    texts = 2 if hasattr(model, "encode") else 1

    def init(key):
        return model.init(key, *[tokens] * texts, *[Context()] * texts)

    return jax.eval_shape(init, jax.random.key(0))


def _flat(variables: Mapping[str, Any]) -> dict[str, Any]:
    flat = {}
    # Parameters and tables never have a name in common, so collections are left out.
    for tree in variables.values():
        flat |= flatten_dict(tree, sep="/")
    return flat


def _wide(x: np.ndarray) -> Array:
    return jnp.asarray(x.astype(np.promote_types(x.dtype, np.float32)))


def _mistakes(
    arrays: Mapping[str, np.ndarray], expected: Mapping[str, Any]
) -> list[str]:
    """Lists all that is wrong with these arrays."""
    wrong = []
    if missing := sorted(expected.keys() - arrays.keys()):
        wrong.append(f"missing: {', '.join(missing)}")
    if unknown := sorted(arrays.keys() - expected.keys()):
        wrong.append(f"unknown: {', '.join(unknown)}")
    for name in sorted(expected.keys() & arrays.keys()):
        x = arrays[name]
        if x.shape != expected[name].shape:
            wrong.append(f"{name} has shape {x.shape}, not {expected[name].shape}")
        elif not jnp.issubdtype(x.dtype, jnp.floating):
            wrong.append(f"{name} is of {x.dtype} and not of floating numbers")
    return wrong
