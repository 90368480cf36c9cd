"""Checksums of a directory's files, kept in its checksums.json.

They show what a disk, a copy or a hand has changed since. A directory without
checksums.json, as earlier versions wrote it, is taken as it is.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from experiments.system.files import DamagedError, read_json, sha256, write_json

NAME = "checksums.json"


def write_sealed(path: Path, value: dict[str, Any]) -> None:
    """Writes JSON with its own checksum, whole or not at all."""
    write_json(path, dict(value, checksum=_checksum(value)))


def read_sealed(path: Path) -> dict[str, Any] | None:
    """Reads what `write_sealed` wrote, or an object without a checksum; None for no file.

    Raises DamagedError where it is not what was written.
    """
    value = read_json(path)
    if value is not None and not unseal(value):
        raise DamagedError(path, "it is not what was written")
    return value


def unseal(value: dict[str, Any]) -> bool:
    """Takes the checksum out of `value`; returns whether the rest is what was written."""
    checksum = value.pop("checksum", None)
    return checksum is None or checksum == _checksum(value)


def write_checksums(
    directory: Path,
    names: Iterable[str],
    coming: Mapping[str, bytes] = MappingProxyType({}),
) -> None:
    """Keeps the checksums of the files `names` that are there.

    Those of files that are to be written next are taken from their bytes, `coming`.
    """
    sums = of(directory, filter(Path.is_file, (directory / name for name in names)))
    for name, content in coming.items():
        sums[name] = hashlib.sha256(content).hexdigest()
    write_sealed(directory / NAME, dict(sha256=sums))


def of(directory: Path, paths: Iterable[Path]) -> dict[str, str]:
    """Returns the checksums of files in `directory`, by their names there."""
    return {f"{path.relative_to(directory)}": sha256(path) for path in paths}


def changed_files(directory: Path, names: Iterable[str] = ()) -> list[str]:
    """Lists the files that are missing or not what was written: `names`, else all.

    A file without a checksum, of those named, is none that was written. Where checksums.json
    is damaged, it alone is listed.
    """
    try:
        checksums = read_sealed(directory / NAME)
    except DamagedError:
        return [NAME]
    if checksums is None:
        return []
    written = checksums.get("sha256")
    if not isinstance(written, dict):
        return [NAME]
    return [
        name
        for name in names or written
        if not _is_as_written(directory, name, written.get(name))
    ]


def _is_as_written(directory, name, checksum):
    try:
        return sha256(directory / name) == checksum
    except OSError:
        return False


def _checksum(value):
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
