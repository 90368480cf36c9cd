"""Reads small files whole, and writes them whole or not at all.

Directories can be locked, so that one process at a time writes to them.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from experiments.errors import UserError

READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
"""Errors of a place that this process may not write to."""


class LockedError(UserError):
    """Raised for a directory that another process uses; the message says which."""


class DamagedError(UserError):
    """Raised for a file that does not hold what it should; says what is wrong and the remedy."""

    def __init__(
        self,
        path: Path,
        why: object,
        remedy: str = "restore it, or choose another --workdir",
    ):
        self.why = f"{why}"
        super().__init__(f"{path} is damaged ({why}): {remedy}")


def slug(name: str) -> str:
    """Returns `name` as a directory's: "h=2 d_k=32" becomes "h=2,d_k=32".

    The result stays inside of its directory and below file systems' limits.
    """
    text = re.sub(r"[^\w=.,+-]+", ",", name).strip(".,")
    # The limit is of bytes, and the cut may fall within a character.
    return text.encode()[:80].decode(errors="ignore")


def read_json(path: Path) -> dict[str, Any] | None:
    """Returns the object in the file, or None where there is no file.

    Raises DamagedError for anything else in it.
    """
    try:
        value = json.loads(Path(path).read_bytes())
    except FileNotFoundError:
        return None
    except IsADirectoryError:
        raise DamagedError(path, "it is a directory") from None
    except ValueError as error:
        raise DamagedError(path, error) from None
    if not isinstance(value, dict):
        raise DamagedError(path, f"it holds no object but {type(value).__name__}")
    return value


def write_json(path: Path, value: Any) -> None:
    """Writes the whole file or nothing, as `write_bytes`."""
    write_text(path, to_json(value))


def to_json(value: Any) -> str:
    """Returns the text that `write_json` writes."""
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def write_text(path: Path, text: str) -> None:
    """Writes the whole file or nothing, as `write_bytes`."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Writes the whole file or nothing.

    A reader sees the old content or the new, even after a power failure. Raises
    DamagedError where a directory is in the file's place.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same directory: only there is a rename one step.
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            # Else a power failure may leave the new name with no content behind it.
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except IsADirectoryError:
        temporary.unlink(missing_ok=True)
        raise DamagedError(path, "it is a directory", "remove it") from None
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def remove_leftovers(directory: Path, names: Container[str]) -> None:
    """Removes what writers of the files `names` left there when they were killed.

    No other process may be writing these files.
    """
    for path in Path(directory).glob(".*.*"):
        name, _, process = path.name[1:].rpartition(".")
        if name in names and process.isdecimal() and not path.is_dir():
            path.unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Removes a file, or a directory with all that is in it, or nothing."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def link_or_copy(source: str, target: str) -> None:
    """Links a file that nobody changes any more; copies it where there are no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def sync(path: Path) -> None:
    """Waits until a file is on the disk, or which files a directory has."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def sha256(path: Path) -> str:
    """Returns the SHA-256 of a file's bytes: about a second for a gigabyte."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def lock(directory: str | Path, wait: bool = False) -> Iterator[None]:
    """Makes `directory`, and locks it during this `with` block by the file .lock in it.

    The lock ends with the process that holds it, however that ends, so an old .lock is no
    obstacle; it names process and host for the message alone. Where the file system has no
    locks, nothing is locked; nor is a directory that nothing can be written to.

    Raises LockedError where another process has the lock, unless `wait` is true, and for a
    path that is a file.
    """
    directory = Path(directory)
    if directory.exists() and not directory.is_dir():
        raise LockedError(f"{directory} is a file; choose another --workdir")
    directory.mkdir(parents=True, exist_ok=True)
    lock_file = _open_lock(directory)
    if lock_file is None:
        yield
        return
    with lock_file as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read() or "another process"
            raise LockedError(
                f"{directory} is in use by {holder}: let it end, or choose another "
                "--workdir"
            ) from None
        except OSError:
            # This file system has no locks.
            pass
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}")
        file.flush()
        yield


def _open_lock(directory):
    """Opens the file .lock, None where nothing can be written to the directory."""
    if (directory / ".lock").is_dir():
        raise LockedError(f"{directory}/.lock is a directory: remove it")
    # Not through a link, since the file is emptied.
    opener = lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o666)
    try:
        # To append: the holder's name has to stay in the file until the lock is ours.
        return open(directory / ".lock", "a+", encoding="utf-8", opener=opener)
    except OSError as error:
        # Where a file may be made, the lock of someone else still counts.
        if error.errno not in READ_ONLY or os.access(directory, os.W_OK):
            raise
        return None
