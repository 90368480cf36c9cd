"""The rotation of queries and keys by their positions."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from attn.positions.tables import check_base
from attn.precision import at_least_float32


def rotary(
    x: Float[Array, "*B N H K"],
    positions: Int[Array, "*b N"],
    base: float = 10_000.0,
) -> Float[Array, "*B N H K"]:
    """Turns each pair (x_2i, x_2i+1) by the angle position · base^(−2i/K).

    So q · k depends on the positions by their distance only ("RoFormer", Su et al. 2021,
    section 3.2.2).

    Args:
      x: queries or keys, heads before the last axis; K = d_k must be even.
      positions: (*B, N), or (N,) for every example.
      base: the longest wavelength is a little under 2π · base positions, the shortest 2π.

    Returns:
      The turned x in its dtype. Angles are float32 at least, so right to about
      position · 10⁻⁷ radians.

    Raises:
      ValueError: an odd d_k, a base below 1.
    """
    check_base(base)
    d_k = x.shape[-1]
    if d_k % 2:
        raise ValueError(f"d_k={d_k} must be even: rotary positions turn pairs")
    dtype = at_least_float32(x.dtype)
    # In float64 by numpy, because a position multiplies the error of a rate.
    rate = jnp.asarray(base ** (-np.arange(0, d_k, 2) / d_k), dtype)
    rate = rate.reshape((1,) * (x.ndim - 1) + (-1,))
    missing_axes = x.ndim - 2 - positions.ndim
    positions = positions.reshape((1,) * missing_axes + positions.shape)
    angle = positions[..., None, None].astype(dtype) * rate
    cos = jnp.cos(angle)
    sin = jnp.sin(angle)
    pairs = x.reshape(*x.shape[:-1], -1, 2).astype(dtype)
    even = pairs[..., 0]
    odd = pairs[..., 1]
    turned = jnp.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1)
    return turned.reshape(x.shape).astype(x.dtype)
