"""Dictionaries of arrays in .safetensors files, in which nothing is ever executed."""

from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jax.typing import ArrayLike


def load(
    path: str | Path, names: Container[str] | None = None
) -> dict[str, np.ndarray]:
    """Reads the arrays of a .safetensors file by name, or those of `names` alone.

    Raises ValueError for a file that is none, ImportError where safetensors is missing.
    """
    library = _safetensors()
    try:
        with library.safe_open(path, framework="numpy") as content:
            found = content.keys()
            read = [name for name in found if names is None or name in names]
            return {name: content.get_tensor(name) for name in read}
    except library.SafetensorError as error:
        raise ValueError(f"{path} is no safetensors file: {error}") from None


def save(path: str | Path, arrays: Mapping[str, ArrayLike]) -> None:
    """Writes arrays into a .safetensors file.

    Raises ImportError where safetensors is missing.
    """
    # The library writes memory as it lies.
    arrays = {name: np.asarray(x, order="C") for name, x in arrays.items()}
    # Not `save_file`, whose files their owner alone can read.
    Path(path).write_bytes(_safetensors().numpy.save(arrays))


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError:
        raise ImportError(
            ".safetensors files need the package safetensors: pip install "
            "'attn[safetensors]'; numpy.savez writes arrays without it"
        ) from None
    return safetensors
