"""The differences between the versions of JAX that attn runs on, from 0.7.2 on.

Each function says which version ends it: where attn needs that one, the function can go.
"""

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.experimental
import jax.nn
import jax.numpy as jnp

VERSION = jax.__version_info__[:2]


def enable_x64(is_on: bool = True) -> AbstractContextManager:
    """Returns a context in which arrays may, or may not, have 64 bits.

    jax 0.8 ends it: `jax.enable_x64`.
    """
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(is_on)
    # pyright sees the newer JAX alone.
    return jax.experimental.enable_x64(is_on)  # pyright: ignore[reportAttributeAccessIssue]


def apply_linear(function: Callable, *arguments: Any) -> Any:
    """Returns `function(*arguments)` of a linear function, such that it can be transposed.

    It lets a rule of `jax.custom_jvp` have a scan over its tangents: JAX transposes only
    scans that it has linearized itself. jax 0.10 ends it: `function(*arguments)`.
    """
    if VERSION >= (0, 10):
        return function(*arguments)
    zeros = jax.tree.map(jnp.zeros_like, arguments)
    _, linear = jax.linearize(function, *zeros)
    return linear(*arguments)


def jax_nn_gives_lse() -> bool:
    """Returns whether `jax.nn.dot_product_attention` can return its log-sum-exp.

    jax 0.8.1 ends it: there it always can, by `return_residual`.
    """
    signature = inspect.signature(jax.nn.dot_product_attention)
    return "return_residual" in signature.parameters


def jax_nn_takes_window() -> bool:
    """Returns whether `jax.nn.dot_product_attention` heeds a window with no other mask.

    jax 0.10 ends it: before, such a window had no effect, without a word.
    """
    return VERSION >= (0, 10)
