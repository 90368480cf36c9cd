"""The softmax over the keys of some queries, and what more may be in its denominator."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def softmax_parts(
    x: Float[Array, "n m"], rest=None
) -> tuple[Float[Array, "n m"], Float[Array, "n m"], Float[Array, "n 1"]]:
    """Returns x − t, its exponential e, and Σ e + exp(rest − t), t the greatest exponent.

    So the weights are e over the sum. In rows of −inf, without a rest, e is 0 and the sum
    counts as 1.
    """
    top, e, total = exponentials(x, rest)
    return x - top, e, jnp.where(total == 0, 1.0, total)


def softmax(x: Float[Array, "n m"], rest=None):
    """Returns e^x / (e^rest + Σ e^x), and the log of the denominator (n,).

    In rows of −inf, without a rest, the weights are 0, with gradient 0, and the log −inf.
    """
    top, e, total = exponentials(x, rest)
    # 0 / 1 keeps the weights of such a row at 0, with a gradient that is 0 and not NaN.
    empty = total == 0
    total = jnp.where(empty, 1.0, total)
    return e / total, jnp.where(empty, -jnp.inf, top + jnp.log(total))[..., 0]


def exponentials(x: Float[Array, "n m"], rest=None):
    """Returns the greatest exponent t of each row, exp(x − t), and Σ exp(x − t) with the rest.

    t is 0 in a row of −inf. It cancels in the quotient and in the LSE: it has no gradient.
    """
    top = x.max(-1, keepdims=True, initial=-jnp.inf)
    if rest is not None:
        top = jnp.maximum(top, rest)
    # In a row of −inf, subtracting the maximum would be −inf − (−inf) = NaN, in the value
    # and in every gradient.
    top = jax.lax.stop_gradient(jnp.where(top == -jnp.inf, 0.0, top))
    e = jnp.exp(x - top)
    total = e.sum(-1, keepdims=True)
    return top, e, total if rest is None else total + jnp.exp(rest - top)
