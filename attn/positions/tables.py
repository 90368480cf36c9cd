"""Tables of position encodings that are added to the embeddings."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

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


def zeros(length: int, d_model: int) -> Float[Array, "L D"]:
    """Returns a table that adds nothing."""
    return jnp.zeros((length, d_model))
