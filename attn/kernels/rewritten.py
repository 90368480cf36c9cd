"""Primitives that a kernel's compiler lacks, of those that it has."""

import jax.numpy as jnp
from jax import lax


def _log1p(x, **_):
    # The quotient puts right what rounding 1 + x took away.
    u = 1 + x
    is_small = u == 1
    safe = jnp.where(is_small, 2.0, u)
    return jnp.where(is_small, x, jnp.log(safe) * (x / (safe - 1)))


def _expm1(x, **_):
    u = jnp.exp(x)
    y = u - 1
    is_small = u == 1
    is_low = y == -1
    safe = jnp.where(is_small | is_low, 2.0, u)
    return jnp.where(is_small, x, jnp.where(is_low, -1.0, y * (x / jnp.log(safe))))


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
    "expm1": _expm1,
    "integer_pow": _integer_pow,
    "is_finite": lambda x: jnp.abs(x) < jnp.inf,
    "log1p": _log1p,
    "one_minus_square": lambda x, **_: 1 - x * x,
    "optimization_barrier": lambda x: x,
    "pow": lambda x, y: jnp.exp(y * jnp.log(x)),
    "sign": lambda x: jnp.where(x > 0, 1, jnp.where(x < 0, -1, 0)).astype(x.dtype),
    "square": lambda x: x * x,
    "stop_gradient": lambda x: x,
}
"""{primitive: function}, as `attn.kernels.pairs` takes them."""
