"""The precision in which scores, softmax and tables are computed."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from attn import platforms


def at_least_float32(dtype) -> np.dtype:
    """Returns the dtype itself or float32, whichever holds more."""
    # Asked in so many words, which `numpy_dtype_promotion("strict")` is there to demand.
    with jax.numpy_dtype_promotion("standard"):
        return jnp.promote_types(dtype, jnp.float32)


def factors(*arrays: Array) -> tuple[Array, ...]:
    """Returns the factors of a product whose sums are asked for in float32 at least.

    They are the same numbers, in the precision of which there is such a product.
    """
    return arrays if platforms.has_wide_products() else widened(arrays)


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
