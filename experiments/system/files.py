"""Small files: read whole, written whole or not at all; and directories that one process at a time writes to."""

import contextlib
import fcntl
import json
import os
import platform
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.errors import UserError

DEEPEST = 50
"""Levels of objects and lists in a JSON file."""


class LockedError(UserError):
    """A directory that is not to be had now; the message says who has it."""


class DamagedError(UserError):
    """A file that does not hold what belongs there; the message names it, what is wrong and the remedy."""

    def __init__(
        self,
        path: Path,
        why: object,
        remedy: str = "restore it, or choose another --workdir",
    ):
        super().__init__(f"{path} is damaged ({why}): {remedy}")


def slug(name: str) -> str:
    """`name` as a directory's: "h=2 d_k=32" becomes "h=2,d_k=32", and nothing leads out of the directory."""
    return (
        re.sub(r"[^\w=.,+-]+", ",", name)
        .strip(".,")
        .encode()[:80]
        .decode(errors="ignore")
    )


def inside(workdir: Path, name: object, said_by: Path) -> Path:
    """The path `name` in `workdir`, as the file `said_by` has it. Raises DamagedError for one that leads out."""
    if (
        not isinstance(name, str)
        or "\0" in name
        or not (path := Path(name)).parts
        or path.is_absolute()
        or (".." in path.parts)
    ):
        raise DamagedError(said_by, f"{name!r} is no directory within {workdir}")
    return workdir / path


def parse(text: str | bytes) -> Any:
    """The JSON value of `text`. Raises ValueError for what is none, and for one that the rest of the code would fail
    at: numbers beyond those of float, and nesting deeper than DEEPEST. A half of a character becomes "?"."""
    try:
        return _clean(json.loads(text), 0)
    except RecursionError:
        raise ValueError(f"nested deeper than {DEEPEST} levels") from None


def _clean(value, depth):
    if isinstance(value, str):
        return value if value.isascii() else value.encode(errors="replace").decode()
    if depth > DEEPEST:
        raise ValueError(f"nested deeper than {DEEPEST} levels")
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        raise ValueError("a number beyond those of float")
    if isinstance(value, dict):
        return {
            _clean(key, depth): _clean(own, depth + 1) for key, own in value.items()
        }
    return (
        [_clean(own, depth + 1) for own in value] if isinstance(value, list) else value
    )


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in the file, or None where there is no file. Raises DamagedError for anything else in it."""
    try:
        value = parse(Path(path).read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DamagedError(path, error) from None
    if not isinstance(value, dict):
        raise DamagedError(path, f"it holds no object but {type(value).__name__}")
    return value


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Writes the whole file or nothing: a reader sees the old content or the new, whenever the power goes."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def lock(directory: str | Path, wait: bool = False) -> Iterator[None]:
    """Makes `directory` where it is not there, and keeps it to this `with` block by a lock on the file .lock in it.

    The lock ends with the process that holds it, however that ends, so an old .lock is no obstacle; it tells process
    and host for the message alone. Where the file system knows no locks, nothing is locked.

    Raises LockedError where another has the lock, unless that is to be waited for, and for a path that is a file.
    """
    directory = Path(directory)
    if directory.exists() and not directory.is_dir():
        raise LockedError(f"{directory} is a file; choose another --workdir")
    directory.mkdir(parents=True, exist_ok=True)
    # Not through a link, since it is emptied.
    with open(
        directory / ".lock",
        "a+",
        encoding="utf-8",
        opener=lambda path, how: os.open(path, how | os.O_NOFOLLOW, 0o666),
    ) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise LockedError(
                f"{directory} is in use by {file.read() or 'another process'}: let it end, "
                "or choose another --workdir"
            ) from None
        except OSError:
            pass
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}")
        file.flush()
        yield
