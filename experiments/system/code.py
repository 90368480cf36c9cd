"""Names the code that makes a result: the sources of what trains and scores, and the versions
of the libraries beneath it.

The name is made when a process imports this module, as the process goes on with the code that
it has imported, whatever becomes of the files.
"""

import hashlib
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from experiments.system import machine

ROOT = Path(__file__).parents[2]

APART = ("bar", "configs", "report", "results", "sweep")
"""Folders of experiments/ whose code decides no result of a trial."""


def sources() -> list[Path]:
    """Returns the files of this project that decide a trial's result."""
    found = []
    for package in ("attn", "experiments"):
        for path in sorted((ROOT / package).rglob("*.py")):
            folder = path.relative_to(ROOT / package).parts[0]
            if package == "attn" or folder not in APART:
                found.append(path)
    return found


def name_of(files: Iterable[Path], versions: Mapping[str, str], began: float) -> str:
    """Returns sixteen hexadecimal digits that equal code shares.

    A file that was saved between `began`, in seconds since 1970, and now may be another than
    what was imported: then the name is one that no other process has.
    """
    digest = hashlib.sha256(repr(sorted(versions.items())).encode())
    is_known = True
    for path in files:
        content = path.read_bytes()
        inside = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name
        digest.update(repr((str(inside), len(content))).encode())
        digest.update(content)
        is_known &= not began <= path.stat().st_mtime <= time.time()
    if not is_known:
        digest.update(os.urandom(16))
    return digest.hexdigest()[:16]


def now() -> str:
    """Returns the name of the code that this process runs."""
    return _NOW


def of(record: Mapping[str, Any]) -> str | None:
    """Returns the name of the code in a trial's record; None where it does not say.

    Earlier versions have the commit alone.
    """
    name = record.get("code") or record.get("git")
    return name if isinstance(name, str) else None


def _began() -> float:
    """Returns when this process began, in seconds since 1970."""
    try:
        # Field 22, counted behind the name, which may hold blanks.
        ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
        uptime = float(Path("/proc/uptime").read_text().split()[0])
    # Not Linux.
    except (OSError, ValueError, IndexError):
        return time.time()
    return time.time() - uptime + int(ticks) / os.sysconf("SC_CLK_TCK")


_NOW = name_of(sources(), machine.versions(), _began())
