"""The differences between the versions of JAX that attn runs on, from 0.7.2 on.

Each function says which version ends it: where attn needs that one, the function can go.
"""

import inspect
from contextlib import AbstractContextManager

import jax
import jax.experimental
import jax.nn


def enable_x64(is_on: bool = True) -> AbstractContextManager:
    """Returns a context in which arrays may, or may not, have 64 bits.

    jax 0.8 ends it: `jax.enable_x64`.
    """
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(is_on)
    return jax.experimental.enable_x64(is_on)


def jax_nn_gives_lse() -> bool:
    """Returns whether `jax.nn.dot_product_attention` can return its log-sum-exp.

    jax 0.8.1 ends it: there it always can, by `return_residual`.
    """
    signature = inspect.signature(jax.nn.dot_product_attention)
    return "return_residual" in signature.parameters
