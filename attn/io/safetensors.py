"""Dictionaries of arrays in .npz and .safetensors files.

A safetensors file is 8 bytes, the length of the header, the header, which is JSON, and
then the numbers, little-endian.
"""

import json
import math
import zipfile
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
"""The dtypes by safetensors' names."""
FORMATS = (".npz", ".safetensors")


def load(
    path: str | Path,
    names: Container[str] | None = None,
) -> dict[str, np.ndarray]:
    """Reads the arrays of an .npz or .safetensors file, by name.

    With `names` it reads those only. Nothing in a file is executed: an .npz with pickled
    objects is refused.

    Raises:
      ValueError: another kind of file, or one that is damaged.
    """
    if _format(path) == ".npz":
        with open(path, "rb") as file:
            return _read_npz(file, path, names)
    with open(path, "rb") as file:
        header, start, size = _read_header(file, path)
        return {
            name: _read_tensor(file, start, size, path, name, entry)
            for name, entry in header.items()
            if names is None or name in names
        }


def save(path: str | Path, arrays: Mapping[str, ArrayLike]) -> None:
    """Writes arrays into an .npz or .safetensors file.

    Raises:
      ValueError: another kind of file, or numbers that the kind cannot hold: .npz has no
        bfloat16; a name that is not an array's in safetensors.
    """
    arrays = {name: np.asarray(x) for name, x in arrays.items()}
    kinds = {np.dtype(dtype): kind for kind, dtype in DTYPES.items()}
    is_npz = _format(path) == ".npz"
    known = [dtype for dtype in kinds if not is_npz or dtype != jnp.bfloat16]
    for name, x in arrays.items():
        if x.dtype not in known:
            raise ValueError(
                f"{path}: {name} is of {x.dtype}; {_format(path)} files have "
                f"{', '.join(map(str, known))}"
            )
    if is_npz:
        _write_npz(path, arrays)
        return
    if "__metadata__" in arrays:
        raise ValueError(
            f"{path}: no array can have the name '__metadata__', which safetensors reads "
            "as notes"
        )
    # Wide numbers first, after a header of whole words: so each array stands where its
    # numbers may be mapped to memory.
    arrays = dict(sorted(arrays.items(), key=lambda item: -item[1].itemsize))
    entries = {}
    begin = 0
    for name, x in arrays.items():
        end = begin + x.nbytes
        entries[name] = {
            "dtype": kinds[x.dtype],
            "shape": x.shape,
            "data_offsets": [begin, end],
        }
        begin = end
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for x in arrays.values():
            file.write(x.tobytes())


def _write_npz(path, arrays):
    """Writes what np.savez does, which cannot name an array "file"."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, x in arrays.items():
            # The size is not known before, and may be above 2 GiB.
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, x, allow_pickle=False)


def _format(path):
    suffix = Path(path).suffix
    if suffix not in FORMATS:
        raise ValueError(f"{path}: the name must end in {' or '.join(FORMATS)}")
    return suffix


def _read_npz(file, path, names):
    try:
        with np.load(file, allow_pickle=False) as content:
            read = [name for name in content if names is None or name in names]
            arrays = {name: content[name] for name in read}
    # zip, zlib and numpy have an error of their own for everything that can be wrong.
    except Exception as error:
        raise ValueError(f"{path} is no .npz file of arrays: {error}") from None
    for name, x in arrays.items():
        if not isinstance(x, np.ndarray) or x.dtype.kind not in "biuf":
            raise ValueError(
                f"{path} is no .npz file of arrays of numbers: {name!r} in it is none"
            )
    return arrays


def _read_header(file, path):
    """Reads a safetensors file's header, the place of its numbers, and their bytes."""
    size = Path(path).stat().st_size
    length = int.from_bytes(file.read(8), "little")
    try:
        # Before reading: a damaged length could ask for more than the memory.
        if not 2 <= length <= size - 8:
            raise ValueError(f"a header of {length} bytes in a file of {size}")
        header = json.loads(file.read(length))
        if not isinstance(header, dict):
            kind = type(header).__name__
            raise ValueError(f"a header that is no object but {kind}")
    # json raises RecursionError where brackets are nested too deeply.
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no safetensors file: {error}") from None
    header.pop("__metadata__", None)
    return header, 8 + length, size - 8 - length


def _read_tensor(file, start, size, path, name, entry):
    try:
        kind = entry["dtype"]
        shape = entry["shape"]
        begin, end = entry["data_offsets"]
        # isinstance would let True pass as a number.
        if not all(type(n) is int and n >= 0 for n in [*shape, begin, end]):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            f"{path}: {name} has no dtype, shape and data_offsets, "
            f"but {str(entry)[:100]}"
        ) from None
    # A list, because an entry's dtype may be of a kind that no dictionary can look up.
    if kind not in list(DTYPES):
        raise ValueError(f"{path}: {name} is of {kind}; known: {', '.join(DTYPES)}")
    dtype = np.dtype(DTYPES[kind])
    count = math.prod(shape)
    # Checked here, because np.fromfile gives fewer numbers of a short file in silence.
    present = max(0, min(end, size) - begin) // dtype.itemsize * dtype.itemsize
    if present != end - begin or present != count * dtype.itemsize:
        raise ValueError(
            f"{path}: {name} should have {count} numbers of {dtype}, and the file has "
            f"bytes {begin} to {end} for it, of which {present} are there"
        )
    file.seek(start + begin)
    return np.fromfile(file, dtype, count).reshape(shape)
