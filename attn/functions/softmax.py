"""The parts of a softmax over the keys of a tile."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def softmax_parts(
    s: Float[Array, "n m"],
) -> tuple[Float[Array, "n m"], Float[Array, "n m"], Float[Array, "n 1"]]:
    """Returns s − max s, its exponential e, and Σ e, so that the weights are e / Σ e.

    In rows of −inf e is 0 and the sum counts as 1.
    """
    top = jax.lax.stop_gradient(s.max(-1, keepdims=True, initial=-jnp.inf))
    # In a row of −inf, subtracting the maximum would be −inf − (−inf) = NaN, in the value
    # and in every gradient.
    below = s - jnp.where(top == -jnp.inf, 0.0, top)
    e = jnp.exp(below)
    total = e.sum(-1, keepdims=True)
    return below, e, jnp.where(total == 0, 1.0, total)
