"""The precision in which scores, softmax and tables are computed."""

import jax
import jax.numpy as jnp
import numpy as np


def at_least_float32(dtype) -> np.dtype:
    """Returns the dtype itself or float32, whichever holds more."""
    # Asked in so many words, which `numpy_dtype_promotion("strict")` is there to demand.
    with jax.numpy_dtype_promotion("standard"):
        return jnp.promote_types(dtype, jnp.float32)
