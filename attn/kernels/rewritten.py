"""Primitives that a kernel's compiler lacks, of those that it has.

What they make goes into exponents: errors are of the size of float32's rounding of 1, or of
the result where that is more, and relative ones of small results may be larger.
"""

import jax.numpy as jnp
from jax import lax


def _integer_pow(x, y, **_):
    result = None
    power = x
    for bit in range(abs(y).bit_length()):
        if abs(y) >> bit & 1:
            result = power if result is None else result * power
        power = power * power
    if result is None:
        return jnp.full(x.shape, 1, x.dtype)
    return result if y > 0 else 1 / result


RULES = {
    "add_any": lambda x, y, **_: lax.add(x, y),
    "clamp": lambda low, x, high: jnp.minimum(jnp.maximum(x, low), high),
    "copy": lambda x, **_: x,
    "copy_p": lambda x, **_: x,
    "expm1": lambda x, **_: jnp.exp(x) - 1,
    "integer_pow": _integer_pow,
    "is_finite": lambda x: jnp.abs(x) < jnp.inf,
    "log1p": lambda x, **_: jnp.log(1 + x),
    "one_minus_square": lambda x, **_: 1 - x * x,
    "optimization_barrier": lambda x: x,
    "pow": lambda x, y: jnp.exp(y * jnp.log(x)),
    "sign": lambda x: jnp.where(x > 0, 1, jnp.where(x < 0, -1, 0)).astype(x.dtype),
    "square": lambda x: x * x,
    "stop_gradient": lambda x: x,
}
"""{primitive: function}, as `attn.kernels.pairs` takes them."""
