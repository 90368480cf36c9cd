"""Tables of position encodings that are added to the embeddings.

B batch (any leading axes), N tokens, L the length of a table, D = d_model.
"""

import dataclasses
import math
from typing import TYPE_CHECKING, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from attn.positions.base import Positions

if TYPE_CHECKING:
    from attn.config import Attention

LAYOUTS = ("interleaved", "halves", "tensor2tensor")


def sinusoidal(
    length: int,
    d_model: int,
    layout: str = "interleaved",
    base: float = 10_000.0,
) -> Float[np.ndarray, "L D"]:
    """Computes the paper's fixed position encoding (section 3.5).

    PE(pos, 2i) = sin(pos / base^(2i/d_model)), PE(pos, 2i+1) = cos(the same). It is
    computed in float64 and returned in float32.

    Args:
      length: L, the number of positions.
      d_model: D, which must be even.
      layout: "interleaved" is the paper's. Others are for models from elsewhere:
        "halves", the same sines and then the same cosines (Marian in Hugging Face
        transformers); "tensor2tensor", halves with base^(i/(d_model/2 − 1)) in place of
        base^(2i/d_model), where d_model must be 4 at least (tensor2tensor, fairseq,
        Marian).
      base: the longest wavelength is a little under 2π · base positions.

    Raises:
      ValueError: a layout that is unknown, a d_model that does not fit it, a base below 1.
    """
    check_sinusoidal(d_model, layout, base)
    steps = d_model / 2 - (layout == "tensor2tensor")
    rates = base ** (-np.arange(d_model // 2) / steps)
    angle = np.arange(length)[:, None] * rates
    # Stacked last, sine and cosine alternate; stacked before, each has its half.
    axis = -1 if layout == "interleaved" else -2
    pairs = np.stack([np.sin(angle), np.cos(angle)], axis=axis)
    return pairs.reshape(length, d_model).astype(np.float32)


def check_sinusoidal(d_model: int, layout: str, base: float) -> None:
    """Raises ValueError for an unknown layout, a d_model that does not fit it, or a base."""
    check_base(base)
    if layout not in LAYOUTS:
        raise ValueError(f"unknown layout {layout!r}; known: {', '.join(LAYOUTS)}")
    if d_model % 2:
        raise ValueError(
            f"d_model={d_model} must be even: "
            "sinusoidal positions come as pairs (sin, cos)"
        )
    if layout == "tensor2tensor" and d_model < 4:
        raise ValueError(
            f"layout='tensor2tensor' needs a d_model of 4 at least, not {d_model}"
        )


def check_base(base: float) -> None:
    """Raises ValueError for a base from which no wavelengths follow."""
    if not 1 <= base < np.inf:
        raise ValueError(
            f"base={base} must be finite and at least 1: "
            "wavelengths grow from 2π to 2π · base positions"
        )


def learned(key: Array, length: int, d_model: int) -> Float[Array, "L D"]:
    """Draws one vector a position from N(0, 1/d_model), for training."""
    return jax.random.normal(key, (length, d_model)) * d_model**-0.5


@dataclasses.dataclass(frozen=True)
class Sinusoidal(Positions):
    """Adds the paper's fixed sines and cosines, or another layout, see `sinusoidal`."""

    base: float = 10_000.0
    layout: str = "interleaved"

    def table(self, key: Array, length: int, d_model: int) -> Float[Array, "L D"]:
        """Computes the sines and cosines; the key is not used."""
        return jnp.asarray(sinusoidal(length, d_model, self.layout, self.base))

    def check(self, a: "Attention") -> None:
        """Raises ValueError for an unknown layout, an odd d_model, or a base below 1."""
        check_sinusoidal(a.d_model, self.layout, self.base)


@dataclasses.dataclass(frozen=True)
class Learned(Positions):
    """Adds one trained vector a position, from N(0, 1/d_model).

    Gehring et al. 2017; the paper's Table 3, row E.
    """

    trained: ClassVar[bool] = True

    def table(self, key: Array, length: int, d_model: int) -> Float[Array, "L D"]:
        """Draws the initial vectors."""
        return learned(key, length, d_model)


@dataclasses.dataclass(frozen=True)
class Randomised(Sinusoidal):
    """Adds sinusoids of places drawn from a range longer than any text.

    Ruoss et al. 2023, "Randomized positional encodings boost length generalization of
    Transformers". In training, where an rng named "positions" is given, the N tokens of a
    row stand at N of `longest` places, drawn anew for each row without repetition and
    sorted. Otherwise token t of a model of `length` positions stands at ⌊t · longest /
    length⌋, the same in every text: a deviation, as theirs are drawn in tests too. Another:
    a text shorter than its row stands at the first of the row's places.
    """

    longest: int = 2048

    def table(self, key: Array, length: int, d_model: int) -> Float[Array, "L D"]:
        """Computes the sinusoids of all places. Raises ValueError for fewer than `length`."""
        if length > self.longest:
            raise ValueError(
                f"longest={self.longest} must be at least the {length} positions of the "
                "model"
            )
        return super().table(key, self.longest, d_model)

    def places(
        self,
        positions: Int[Array, "*B N"],
        length: int,
        key: Array | None = None,
    ) -> Int[Array, "*B N"]:
        """Returns places drawn with the key, or, without one, at equal distances."""
        if key is None:
            # In floating point the product of two integers might be rounded below.
            return positions * self.longest // length
        *batch, n = positions.shape
        keys = jax.random.split(key, math.prod(batch))

        def draw(key):
            places = jax.random.choice(key, self.longest, (n,), replace=False)
            return jnp.sort(places)

        drawn = jax.vmap(draw)(keys).reshape(positions.shape)
        return jnp.take_along_axis(drawn, positions, axis=-1)

    def check(self, a: "Attention") -> None:
        """Raises ValueError for a layout or base as Sinusoidal's, or no place."""
        super().check(a)
        if not 1 <= self.longest < 2**15:
            raise ValueError(f"longest={self.longest} must be from 1 to 32767")
