"""The variables of a Transformer as a flat dictionary of arrays."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.typing import ArrayLike

from attn.masks import Mask
from attn.models.transformer import Transformer


def to_arrays(variables) -> dict[str, np.ndarray]:
    """Returns all variables of any model as one flat dictionary.

    Names are such as "encoder_0/self_attention/w_q" and "source_positions/table".
    """
    return {name: np.array(x) for name, x in _flat(variables).items()}


def from_arrays(model: Transformer, arrays: Mapping[str, ArrayLike]) -> dict:
    """Returns the variables of `model`, in float32 at least, from those of `to_arrays`.

    Raises ValueError for arrays that are missing, unknown, of another shape or not of
    floating numbers; it names all of them.
    """
    arrays = {name: np.asarray(x) for name, x in arrays.items()}
    expected = _abstract(model)
    if wrong := _mistakes(arrays, _flat(expected)):
        described = f"a Transformer with {model.shape} and {model.design}"
        raise ValueError(f"not the arrays of {described}: {'; '.join(wrong)}")
    variables = {}
    for collection, tree in expected.items():
        flat = {name: _wide(arrays[name]) for name in flatten_dict(tree, sep="/")}
        variables[collection] = unflatten_dict(flat, sep="/")
    return variables


def _abstract(model):
    """Returns the shapes of a model's variables."""
    ids = jnp.zeros((1, 1), jnp.int32)
    masks = {f"{name}_mask": Mask() for name in ("source", "target", "cross")}

    def init(key):
        return model.init(key, ids, ids, ids, ids, **masks)

    return jax.eval_shape(init, jax.random.key(0))


def _flat(variables):
    flat = {}
    # Parameters and tables never have a name in common, so collections are left out.
    for tree in variables.values():
        flat |= flatten_dict(tree, sep="/")
    return flat


def _wide(x):
    return jnp.asarray(x.astype(np.promote_types(x.dtype, np.float32)))


def _mistakes(arrays, expected):
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
