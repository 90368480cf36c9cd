"""Functions of the scores of one head, with gradients of their own where that pays."""

from collections.abc import Callable
from typing import Any

import jax

SAVED = "results of a block"
"""The name, for jax.checkpoint, of the results of a block that derivatives keep."""

FORMS: dict[str, Callable] = {}
"""What kernels that trace their tiles trace in place of functions, by these functions' names."""


def traced_as(form: Callable, function: Callable) -> Any:
    """Returns the function, and has kernels that trace their tiles trace `form` in its place.

    The form computes the same of queries, keys and pairs of them, as `attn.kernels.pairs`
    takes it apart, and may be a sum over features of (n, m, F) numbers.
    """

    def named(*arguments):
        return function(*arguments)

    named.__name__ = f"{function.__module__}.{function.__name__}"
    named.__doc__ = function.__doc__
    FORMS[named.__name__] = form
    return jax.jit(named)
