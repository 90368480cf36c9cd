"""Where a token stands: position encodings that are added to the embeddings, and the rotation of queries and keys.

An encoding is a value with one interface: `init(key, length, d_model)` makes its table, `trained` says whether the
table is a parameter. The table lives in its own variable collection, "positions", because whether it is trained is a
property of the experiment and not of the program: trials with different encodings can share a compiled program.
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

LAYOUTS = ("interleaved", "halves", "tensor2tensor")


def sinusoidal(
    length: int, d_model: int, layout: str = "interleaved"
) -> Float[np.ndarray, "L D"]:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos(the same), interleaved as in the paper's
    section 3.5. Computed in float64, returned in float32. d_model must be even.

    Other layouts, for models from elsewhere: "halves", the same sines and then the same cosines (Marian in Hugging
    Face transformers); "tensor2tensor", halves with 10000^(i/(d_model/2 − 1)) in place of 10000^(2i/d_model), where
    d_model must be 4 at least (tensor2tensor, fairseq, Marian).
    """
    if d_model % 2:
        raise ValueError(
            f"d_model={d_model} must be even: sines and cosines come in pairs"
        )
    if layout not in LAYOUTS:
        raise ValueError(f"unknown layout {layout!r}; known: {', '.join(LAYOUTS)}")
    steps = d_model / 2 - (layout == "tensor2tensor")
    if not steps:
        raise ValueError(
            f"layout='tensor2tensor' needs a d_model of 4 at least, not {d_model}"
        )
    angle = np.arange(length)[:, None] * 10_000.0 ** (-np.arange(d_model // 2) / steps)
    pairs = np.stack(
        [np.sin(angle), np.cos(angle)], axis=-1 if layout == "interleaved" else -2
    )
    return pairs.reshape(length, d_model).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Sinusoidal:
    """The paper's fixed sines and cosines, or another layout of them, see `sinusoidal`."""

    trained = False
    layout: str = "interleaved"

    def init(self, key: Array, length: int, d_model: int) -> Float[Array, "L D"]:
        return jnp.asarray(sinusoidal(length, d_model, self.layout))


@dataclasses.dataclass(frozen=True)
class Learned:
    """One trained vector a position, from N(0, 1/d_model) (Gehring et al. 2017; the paper's Table 3, row E)."""

    trained = True

    def init(self, key: Array, length: int, d_model: int) -> Float[Array, "L D"]:
        return jax.random.normal(key, (length, d_model)) * d_model**-0.5


@dataclasses.dataclass(frozen=True)
class NoPositions:
    """Nothing is added: the encoder sees a bag of tokens."""

    trained = False

    def init(self, key: Array, length: int, d_model: int) -> Float[Array, "L D"]:
        return jnp.zeros((length, d_model))


POSITIONS = {
    "sinusoidal": Sinusoidal(),
    "sinusoidal_halves": Sinusoidal("halves"),
    "sinusoidal_t2t": Sinusoidal("tensor2tensor"),
    "learned": Learned(),
    "none": NoPositions(),
}


class PositionTable(nn.Module):
    """Looks positions up in the encoding's table, variable "table" (length, d_model) of collection "positions"."""

    encoding: Sinusoidal | Learned | NoPositions
    length: int
    d_model: int

    @nn.compact
    def __call__(self, positions: Int[Array, "*B N"]) -> Float[Array, "*B N D"]:
        table = self.variable(
            "positions",
            "table",
            lambda: self.encoding.init(
                self.make_rng("params"), self.length, self.d_model
            ),
        )
        return table.value[positions]


def rotary(
    x: Float[Array, "*B N H K"], positions: Int[Array, "*b N"], base: float = 10_000.0
) -> Float[Array, "*B N H K"]:
    """(x_2i, x_2i+1) turned by the angle position · base^(−2i/K): then q · k depends on positions by distance only.

    "RoFormer", Su et al. 2021, section 3.2.2. K = d_k must be even.

    Args:
      x: queries or keys, heads before the last axis.
      positions: (*B, N), or (N,) for every example.
      base: the longest wavelength is a little under 2π · base positions, the shortest 2π.

    Returns:
      The turned x in its dtype. Angles are float32 at least, so right to about position · 10⁻⁷ radians.
    """
    if x.shape[-1] % 2:
        raise ValueError(f"d_k={x.shape[-1]} must be even: numbers are turned in pairs")
    dtype = jnp.promote_types(x.dtype, jnp.float32)
    rate = jnp.asarray(base ** (-np.arange(0, x.shape[-1], 2) / x.shape[-1]), dtype)
    positions = positions.reshape(
        (1,) * (x.ndim - 2 - positions.ndim) + positions.shape
    )
    angle = positions[..., None, None].astype(dtype) * rate.reshape(
        (1,) * (x.ndim - 1) + (-1,)
    )
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    pairs = x.reshape(*x.shape[:-1], -1, 2).astype(dtype)
    even, odd = pairs[..., 0], pairs[..., 1]
    return (
        jnp.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1)
        .reshape(x.shape)
        .astype(x.dtype)
    )
