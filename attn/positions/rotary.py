"""The rotation of queries and keys by their positions, and its scalings for long texts.

B batch (any leading axes), N tokens, H heads, K = d_k, P = K/2 pairs.
"""

import dataclasses
import math
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from attn.positions.base import Positions
from attn.positions.tables import check_base
from attn.pytrees import at_least_float32

if TYPE_CHECKING:
    from attn.config import Attention

SCALINGS = ("linear", "ntk", "yarn")
"""The ways to stretch wavelengths, for texts longer than those of training."""


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
    return turned(x, positions, rotary_rates(x.shape[-1], base))


def turned(
    x: Float[Array, "*B N H K"],
    positions: Int[Array, "*b N"],
    rates: Float[np.ndarray, "P"],
) -> Float[Array, "*B N H K"]:
    """Turns each pair (x_2i, x_2i+1) by the angle position · rates_i, as `rotary` does."""
    dtype = at_least_float32(x.dtype)
    rate = jnp.asarray(rates, dtype)
    rate = rate.reshape((1,) * (x.ndim - 1) + (-1,))
    missing_axes = x.ndim - 2 - positions.ndim
    positions = positions.reshape((1,) * missing_axes + positions.shape)
    angle = positions[..., None, None].astype(dtype) * rate
    cos = jnp.cos(angle)
    sin = jnp.sin(angle)
    pairs = x.reshape(*x.shape[:-1], -1, 2).astype(dtype)
    even = pairs[..., 0]
    odd = pairs[..., 1]
    both = jnp.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1)
    return both.reshape(x.shape).astype(x.dtype)


def rotary_rates(d_k: int, base: float = 10_000.0) -> Float[np.ndarray, "P"]:
    """Computes base^(−2i/K), the radians that a pair turns by from position to position.

    Raises:
      ValueError: an odd d_k, a base below 1.
    """
    check_base(base)
    if d_k % 2:
        raise ValueError(f"d_k={d_k} must be even: rotary positions turn pairs")
    # In float64 by numpy, because a position multiplies the error of a rate.
    return base ** (-np.arange(0, d_k, 2) / d_k)


def scaled_rates(
    d_k: int, base: float, scaling: str, factor: float, length: int
) -> Float[np.ndarray, "P"]:
    """Computes the rates for texts up to `factor` times as long as those of training.

    Args:
      d_k: K, the number of a head's numbers that are turned.
      base: that of training.
      scaling: "linear" divides each rate by the factor, and so interpolates positions
        (Chen et al. 2023). "ntk" multiplies the base by factor^(K/(K − 2)): the slowest
        pair is slowed down by the factor, the fastest stays. "yarn" ("NTK by parts", Peng
        et al. 2023, section 3.2) slows down by the factor the pairs that turn less than
        once within `length`, leaves those that turn more than 32 times, and goes over
        linearly in between; what else there is in YaRN is `yarn_magnitude`.
      factor: 1 changes nothing.
      length: the longest text of training, for "yarn".
    """
    rates = rotary_rates(d_k, base)
    if scaling == "ntk" and d_k > 2:
        return rotary_rates(d_k, base * factor ** (d_k / (d_k - 2)))
    if scaling != "yarn":
        return rates / factor
    turns = length * rates / (2 * np.pi)
    kept = np.clip((turns - 1) / (32 - 1), 0, 1)
    return kept * rates + (1 - kept) * rates / factor


def yarn_magnitude(factor: float) -> float:
    """Computes 0.1 · log(factor) + 1, by which YaRN multiplies queries and keys.

    It sharpens the softmax of long texts (Peng et al. 2023, equation 22).
    """
    return 0.1 * math.log(factor) + 1


def check_scaling(scaling: str, factor: float, length: int) -> None:
    """Raises ValueError for an unknown scaling, a factor below 1, or a length below 1."""
    if scaling not in SCALINGS:
        raise ValueError(f"unknown scaling {scaling!r}; known: {', '.join(SCALINGS)}")
    if not 1 <= factor < math.inf:
        raise ValueError(
            f"factor={factor} must be finite and at least 1: it says how many times "
            "longer texts are than those of training"
        )
    if length < 1:
        raise ValueError(f"length={length} must be at least 1")


@dataclasses.dataclass(frozen=True)
class Rotary(Positions):
    """Turns queries and keys by their positions (Su et al. 2021), see `rotary`.

    `fraction` is the share of a head's d_k numbers that are turned, the first ones; their
    number must be even (Black et al. 2022, GPT-NeoX, has a quarter). For texts `factor`
    times longer than those of training, `scaling` says how wavelengths are stretched, see
    `scaled_rates`: linear, ntk or yarn; the last multiplies the turned numbers of queries
    and keys by `yarn_magnitude` too, and needs the `length` of training.
    """

    base: float = 10_000.0
    fraction: float = 1.0
    scaling: str = "linear"
    factor: float = 1.0
    length: int = 2048

    def rotate(
        self,
        x: Float[Array, "*B N H K"],
        positions: Int[Array, "*b N"],
    ) -> Float[Array, "*B N H K"]:
        """Returns x with its first numbers turned."""
        d_k = x.shape[-1]
        self._check(d_k)
        count = round(self.fraction * d_k)
        if self.factor == 1:
            rates = rotary_rates(count, self.base)
        else:
            scaling = self.scaling, self.factor, self.length
            rates = scaled_rates(count, self.base, *scaling)
        first = turned(x[..., :count], positions, rates)
        if self.scaling == "yarn" and self.factor > 1:
            first = first * jnp.asarray(yarn_magnitude(self.factor), x.dtype)
        if count == d_k:
            return first
        return jnp.concatenate([first, x[..., count:]], axis=-1)

    def check(self, a: "Attention") -> None:
        """Raises ValueError for a base below 1, a scaling that makes no sense, or a fraction
        that turns an odd number.
        """
        # Of latents there are d_r numbers beside them that turn.
        self._check(a.d_r or a.d_k)

    def _check(self, d_k: int) -> None:
        check_base(self.base)
        check_scaling(self.scaling, self.factor, self.length)
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction={self.fraction} must be above 0, and 1 at most")
        if self.fraction == 1 and d_k % 2:
            raise ValueError(f"d_k={d_k} must be even: rotary positions turn pairs")
        # A share such as 0.7 is not exact in binary, so its product is given slack.
        count = self.fraction * d_k
        if abs(count - round(count)) > 1e-6 or round(count) % 2 or round(count) < 2:
            raise ValueError(
                f"fraction={self.fraction} of d_k={d_k} is {count:g}, which must be an "
                "even number: rotary positions turn pairs"
            )
