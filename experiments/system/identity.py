"""Says which process this is, so that another can tell later whether it still runs."""

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PROC = Path("/proc")


def this_process() -> dict[str, Any]:
    """Returns what tells this process from all others, those of other machines too."""
    return dict(
        host=platform.node(),
        process=os.getpid(),
        started=_started(os.getpid()),
        kernel=_kernel(),
    )


def is_gone(identity: Mapping[str, Any]) -> bool:
    """Whether a process of this machine has ended; False also where that is not known."""
    process = identity.get("process")
    here = _kernel()
    # The same host's name is not enough: containers may share it, and a reboot keeps it.
    if here is None or identity.get("kernel") != here or not isinstance(process, int):
        return False
    return _started(process) != identity.get("started")


def _kernel():
    """Returns what all processes share that see each other's numbers; None if unknown."""
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink(PROC / 'self/ns/pid')}"
    except OSError:
        return None


def _started(process):
    """Returns when a process began, in ticks since the boot; None where there is none."""
    try:
        text = (PROC / f"{process}/stat").read_text()
    except OSError:
        return None
    # The name, in brackets, may have spaces; a zombie has ended.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])
