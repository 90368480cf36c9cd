"""The stick-breaking weights of the scores of some queries (Tan et al. 2024)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

BLOCK = 32
"""Keys whose sums are one product."""


def stick_breaking(s: Float[Array, "n m"]) -> Float[Array, "n m"]:
    """Computes w_j = σ(s_j) Π_{l > j} (1 − σ(s_l)), 0 where s is −inf.

    With log(1 − σ(s)) = −log(1 + e^s) and log σ(s) = s − log(1 + e^s), that is
    exp(s_j − Σ_{l ≥ j} log(1 + e^s_l)), whose exponents are at most 0.
    """
    hidden = s == -jnp.inf
    # 0 in place of −inf, of which the difference below has no derivative.
    seen = jnp.where(hidden, 0, s)
    broken = jnp.where(hidden, 0, jax.nn.softplus(seen))
    return jnp.where(hidden, 0, jnp.exp(seen - sums_to_the_end(broken)))


def sums_to_the_end(x: Float[Array, "n m"]) -> Float[Array, "n m"]:
    """Returns Σ_{l ≥ j} x_l.

    By products with triangles of ones: on a CPU `cumsum` takes many passes over x, and
    several times as long.
    """
    n, m = x.shape
    padded = jnp.pad(x, ((0, 0), (0, -m % BLOCK)))
    blocks = padded.reshape(n, -1, BLOCK)
    within = _times(blocks, jnp.tril(jnp.ones((BLOCK, BLOCK), x.dtype)))
    count = blocks.shape[1]
    after = jnp.tril(jnp.ones((count, count), x.dtype), -1)
    later = _times(within[..., 0], after)
    return (within + later[..., None]).reshape(n, -1)[:, :m]


def _times(x: Array, ones: Array) -> Array:
    # The sums are exponents: a GPU's or TPU's fast products would cost digits.
    return jnp.matmul(x, ones, precision=jax.lax.Precision.HIGHEST)
