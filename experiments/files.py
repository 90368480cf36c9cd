"""Small files: read whole, written whole or not at all; and directories that one process at a time writes to."""

import contextlib
import fcntl
import json
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class LockedError(ValueError):
    """A directory that is not to be had now; the message says who has it."""


def slug(name: str) -> str:
    """`name` as a directory's: "h=2 d_k=32" becomes "h=2,d_k=32", and nothing leads out of the directory."""
    return re.sub(r"[^\w=.,+-]+", ",", name).strip(".,")[:80]


def read_json(path: Path) -> Any:
    """The file's content, or None where there is none."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


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
def lock(directory: str | Path) -> Iterator[None]:
    """Makes `directory` where it is not there, and keeps it to this `with` block by a lock on the file .lock in it.

    The lock ends with the process that holds it, however that ends, so an old .lock is no obstacle; it tells process
    and host for the message alone. Where the file system knows no locks, nothing is locked.

    Raises LockedError where another has the lock, and for a path that is a file.
    """
    directory = Path(directory)
    if directory.exists() and not directory.is_dir():
        raise LockedError(f"{directory} is a file; choose another --workdir")
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / ".lock", "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise LockedError(f"{directory} is in use by {file.read() or 'another process'}: let it end, "
                              "or choose another --workdir") from None
        except OSError:
            pass
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}")
        file.flush()
        yield
