"""Dictionaries of arrays in .npz and .safetensors files.

A safetensors file is 8 bytes, how long the header is, the header, which is JSON, and then the numbers, little-endian.
"""

import json
import math
from collections.abc import Container, Mapping
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

DTYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": jnp.bfloat16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U64": np.uint64,
    "U32": np.uint32,
    "U16": np.uint16,
    "U8": np.uint8,
    "BOOL": np.bool_,
}
"""By the names that safetensors has for them."""
FORMATS = (".npz", ".safetensors")


def load(
    path: str | Path, names: Container[str] | None = None
) -> dict[str, np.ndarray]:
    """The arrays of an .npz or .safetensors file, by name: those of `names`, where that is not None.

    Nothing in a file is executed: an .npz with pickled objects is refused.

    Raises ValueError for another kind of file, and for one that is damaged.
    """
    if _format(path) == ".npz":
        with open(path, "rb") as file:
            return _unzipped(file, path, names)
    with open(path, "rb") as file:
        header, start, size = _header(file, path)
        return {
            name: _tensor(file, start, size, path, name, entry)
            for name, entry in header.items()
            if names is None or name in names
        }


def save(path: str | Path, arrays: Mapping[str, ArrayLike]) -> None:
    """Writes arrays into an .npz or .safetensors file. Raises ValueError for another kind of file, and for numbers
    that the kind cannot hold: .npz has no bfloat16."""
    arrays = {name: np.asarray(x) for name, x in arrays.items()}
    kinds = {np.dtype(dtype): kind for kind, dtype in DTYPES.items()}
    known = [
        dtype for dtype in kinds if _format(path) != ".npz" or dtype != jnp.bfloat16
    ]
    for name, x in arrays.items():
        if x.dtype not in known:
            raise ValueError(
                f"{path}: {name} is of {x.dtype}; {_format(path)} files have {', '.join(map(str, known))}"
            )
    if _format(path) == ".npz":
        np.savez(path, **arrays)
        return
    # Wide numbers first, after a header of whole words: so each array stands where its numbers may be mapped to memory.
    arrays = dict(sorted(arrays.items(), key=lambda item: -item[1].itemsize))
    ends = np.cumsum([0, *(x.nbytes for x in arrays.values())]).tolist()
    header = json.dumps(
        {
            name: {
                "dtype": kinds[x.dtype],
                "shape": x.shape,
                "data_offsets": ends[i : i + 2],
            }
            for i, (name, x) in enumerate(arrays.items())
        }
    ).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for x in arrays.values():
            file.write(x.tobytes())


def _format(path):
    suffix = Path(path).suffix
    if suffix not in FORMATS:
        raise ValueError(f"{path}: the name must end in {' or '.join(FORMATS)}")
    return suffix


def _unzipped(file, path, names):
    try:
        with np.load(file, allow_pickle=False) as found:
            arrays = {
                name: found[name] for name in found if names is None or name in names
            }
    except Exception as error:  # zip, zlib and numpy have an error of their own for everything that can be wrong
        raise ValueError(f"{path} is no .npz file of arrays: {error}") from None
    for name, x in arrays.items():
        if not isinstance(x, np.ndarray) or x.dtype.kind not in "biuf":
            raise ValueError(
                f"{path} is no .npz file of arrays of numbers: {name!r} in it is none"
            )
    return arrays


def _header(file, path):
    """What is in a safetensors file, where its numbers start, and how many bytes they are."""
    size, length = Path(path).stat().st_size, int.from_bytes(file.read(8), "little")
    try:
        if not 2 <= length <= size - 8:
            raise ValueError(f"a header of {length} bytes in a file of {size}")
        header = json.loads(file.read(length))
        if not isinstance(header, dict):
            raise ValueError(f"a header that is no object but {type(header).__name__}")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no safetensors file: {error}") from None
    header.pop("__metadata__", None)
    return header, 8 + length, size - 8 - length


def _tensor(file, start, size, path, name, entry):
    try:
        kind, shape, (begin, end) = (
            entry["dtype"],
            entry["shape"],
            entry["data_offsets"],
        )
        if not all(type(n) is int and n >= 0 for n in [*shape, begin, end]):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            f"{path}: {name} has no dtype, shape and data_offsets, but {str(entry)[:100]}"
        ) from None
    if kind not in list(DTYPES):
        raise ValueError(f"{path}: {name} is of {kind}; known: {', '.join(DTYPES)}")
    count, dtype = math.prod(shape), np.dtype(DTYPES[kind])
    there = max(0, min(end, size) - begin) // dtype.itemsize * dtype.itemsize
    if there != end - begin or there != count * dtype.itemsize:
        raise ValueError(
            f"{path}: {name} should have {count} numbers of {dtype}, and the file has bytes {begin} to "
            f"{end} for it, of which {there} are there"
        )
    file.seek(start + begin)
    return np.fromfile(file, dtype, count).reshape(shape)
