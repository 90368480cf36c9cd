"""A process for each peer: thread pools of two libraries in one process fight, and a crash takes one peer only.

Nothing here imports a library that is compared, so that the environment stands before any of them starts.
"""

import concurrent.futures as futures
import contextlib
import ctypes
import os
import time
from pathlib import Path

from experiments.processes import Process
from launch.bench.peers import Unsupported, load

SETTLE = 0.1
"""Seconds for a library's own threads to free what the last call left."""
SECONDS = 600
"""The most that one call may take."""


class Failed(Exception):
    """A worker could not do what was asked; the message is one line why."""


class Worker(Process):
    """A process that has one peer loaded and calls functions on it, one at a time."""

    def __init__(self, module: str, peer: str, threads: int):
        super().__init__(_begin, module, peer, threads)

    def call(self, function, *arguments):
        """`function(adapter, *arguments)`, in the process.

        Raises Unsupported where the library does not offer it, Failed where it cannot; a process that died or took
        too long is replaced by a fresh one first.
        """
        try:
            kind, found = self.submit(_guarded, function, arguments).result(SECONDS)
        except futures.BrokenExecutor:
            self.restart()
            raise Failed("the process died; it may have run out of memory") from None
        except futures.TimeoutError:
            self.restart()
            raise Failed(f"took more than {SECONDS} s") from None
        if kind == "returned":
            return found
        raise Unsupported(found) if kind == "unsupported" else Failed(found)


_state = {}


def _begin(module: str, peer: str, threads: int):
    """First thing in a worker process, before any library starts."""
    os.environ.update(NPROC=str(threads), OMP_NUM_THREADS=str(threads), JAX_PLATFORMS="cpu")
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # if memory runs out, this process goes and no other
    _state.update(module=module, peer=peer)


def _guarded(function, arguments):
    """Exceptions travel as text: the parent may lack the library that an exception's class comes from."""
    try:
        if "adapter" not in _state:
            _state["adapter"] = load(_state["module"], _state["peer"])
        return "returned", function(_state["adapter"], *arguments)
    except Unsupported as error:
        return "unsupported", str(error)
    except (ValueError, NotImplementedError) as error:  # how attn and the others say what they cannot serve
        return "unsupported", described(error)
    except Exception as error:
        return "failed", described(error)


def described(error: BaseException) -> str:
    """An exception in one short line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:157] + '...' if len(text) > 160 else text}".removesuffix(": ")


def peak_growth(call) -> int | None:
    """Bytes by which this process's memory peaks above its start while `call()` runs; None where nothing tells it.

    Linux tells it: writing 5 to clear_refs resets the peak (proc_pid_clear_refs(5)). The allocator first gives back
    what it holds free, which would hide as much of the growth. Exact to a huge page or so, 2 MiB.
    """
    time.sleep(SETTLE)
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmHWM")
    except (AttributeError, OSError):
        before = None
    call()
    return None if before is None else max(0, _status("VmHWM") - before)


def _status(name):
    """A line of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def check_room(needed: int) -> None:
    """Raises MemoryError where `needed` bytes are more than are free."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    if needed > free:
        raise MemoryError(f"needs {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free")
