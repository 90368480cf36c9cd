"""Values of scores, normalisers and biases whose arrays are parameters of a module."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jaxtyping import Array

from attn.normalisers import normaliser_init
from attn.scores import ScoreChoice


def normaliser_of(module: nn.Module, choice: ScoreChoice, selection: str, h: int):
    """Returns the normaliser of a choice, with its parameters, for h heads of `module`.

    Raises:
      ValueError: one whose weights cannot be sampled by, where the selection samples, or do
        not follow the scores, where it takes the best.
    """
    init = normaliser_init(choice)
    value = with_parameters(module, "normaliser", lambda key: init(key, h))
    check_selected(value, selection)
    return value


def check_selected(normaliser: Any, selection: str) -> None:
    """Raises ValueError for a normaliser by whose weights no key can be selected."""
    name = type(normaliser).__name__
    if selection == "sampled" and not normaliser.sums_to_one:
        raise ValueError(
            f"selection=sampled draws keys by their weights, and those of {name} need not "
            "sum to 1"
        )
    if selection == "argmax" and not normaliser.by_score:
        raise ValueError(
            "selection=argmax takes the key of the best score, which need not have the "
            f"greatest weight of {name}"
        )


def with_parameters(module: nn.Module, name: str, make: Callable[[Array], Any]):
    """Returns the value that `make(key)` makes, with its arrays as parameters of `module`.

    They are kept under `name`; there is no entry where there are none, and the arrays of a
    value whose `trained` is False stay as they are.

    Raises:
      ValueError: the parameters are those of another value.
    """
    value = make(jax.random.key(0))  # for its form and its numbers
    if not getattr(value, "trained", True):
        return value
    names = list(_arrays(value))
    params = {}
    # Parameters where none belong are read as well, to be refused below.
    if names or module.has_variable("params", name):
        params = module.param(name, lambda key: _arrays(make(key)))
    if sorted(params) != sorted(names):
        raise ValueError(
            f"the parameters are of another {name}: they have {sorted(params)}, "
            f"it has {sorted(names)}"
        )

    def replaced(path, leaf):
        return params.get(_name(path), leaf)

    return jax.tree.map_with_path(replaced, value)


def _arrays(value):
    """Returns the arrays of a score or bias, each by the name of its field."""
    leaves = jax.tree.leaves_with_path(value)
    is_array = jax.Array | np.ndarray
    return {_name(path): leaf for path, leaf in leaves if isinstance(leaf, is_array)}


def _name(path):
    return jax.tree_util.keystr(path, simple=True, separator=".")
