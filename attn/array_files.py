"""Dictionaries of arrays in .npz and .safetensors files.

A safetensors file is 8 bytes, how long the header is, the header, which is JSON, and then the numbers, little-endian.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16, "I64": np.int64,
          "I32": np.int32, "I16": np.int16, "I8": np.int8, "U64": np.uint64, "U32": np.uint32, "U16": np.uint16,
          "U8": np.uint8, "BOOL": np.bool_}
"""By the names that safetensors has for them."""
FORMATS = (".npz", ".safetensors")


def load(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz or .safetensors file, by name. Raises ValueError for another kind of file."""
    if _format(path) == ".npz":
        with np.load(path) as file:
            return dict(file)
    with open(path, "rb") as file:
        header, start = _header(file, path)
        return {name: _tensor(file, start, path, name, **entry) for name, entry in header.items()}


def save(path: str | Path, arrays: Mapping[str, ArrayLike]) -> None:
    """Writes arrays into an .npz or .safetensors file. Raises ValueError for another kind of file, and for numbers
    that the kind cannot hold: .npz has no bfloat16."""
    arrays = {name: np.asarray(x) for name, x in arrays.items()}
    kinds = {np.dtype(dtype): kind for kind, dtype in DTYPES.items()}
    known = [dtype for dtype in kinds if _format(path) != ".npz" or dtype != jnp.bfloat16]
    for name, x in arrays.items():
        if x.dtype not in known:
            raise ValueError(f"{path}: {name} is of {x.dtype}; {_format(path)} files have {', '.join(map(str, known))}")
    if _format(path) == ".npz":
        np.savez(path, **arrays)
        return
    # Wide numbers first, after a header of whole words: so each array stands where its numbers may be mapped to memory.
    arrays = dict(sorted(arrays.items(), key=lambda item: -item[1].itemsize))
    ends = np.cumsum([0, *(x.nbytes for x in arrays.values())]).tolist()
    header = json.dumps({name: {"dtype": kinds[x.dtype], "shape": x.shape, "data_offsets": ends[i : i + 2]}
                         for i, (name, x) in enumerate(arrays.items())}).encode()
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


def _header(file, path):
    """What is in a safetensors file, and where its numbers start: 8 bytes of length, then JSON, then the numbers."""
    size, length = Path(path).stat().st_size, int.from_bytes(file.read(8), "little")
    try:
        if not 2 <= length <= size - 8:
            raise ValueError(f"a header of {length} bytes in a file of {size}")
        header = json.loads(file.read(length))
    except ValueError as error:
        raise ValueError(f"{path} is no safetensors file: {error}") from None
    header.pop("__metadata__", None)
    return header, 8 + length


def _tensor(file, start, path, name, dtype, shape, data_offsets):
    if dtype not in DTYPES:
        raise ValueError(f"{path}: {name} is of {dtype}; known: {', '.join(DTYPES)}")
    begin, end = data_offsets
    count, dtype = math.prod(shape), np.dtype(DTYPES[dtype])
    file.seek(start + begin)
    x = np.fromfile(file, dtype, count)
    if x.size != count or end - begin != x.nbytes:
        raise ValueError(f"{path}: {name} should have {count} numbers of {dtype}, and the file has bytes {begin} to "
                         f"{end} for it, of which {x.nbytes} are there")
    return x.reshape(shape)
