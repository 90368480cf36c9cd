"""Gives each library a process of its own.

The thread pools of two libraries in one process fight for the cores, and a crash takes
one library only. Nothing here imports a library that is compared, so that the
environment is complete before any of them starts.
"""

import concurrent.futures as futures
import contextlib
import ctypes
import os
import time
from pathlib import Path

from experiments.system.process import Process
from launch.bench.harness import device
from launch.bench.harness.libraries import Library, Unsupported, load

SETTLE = 0.1
"""Seconds in which a library's own threads free what the last call left."""
TIME_LIMIT = 600
"""The most seconds that one call may take."""
LONGEST_MESSAGE = 160


class Failed(Exception):
    """Raised where a worker could not do what was asked; the message is one line."""


class Worker(Process):
    """Holds a process that has one adapter loaded and runs one function at a time."""

    def __init__(self, library: Library, name: str, threads: int):
        super().__init__(_start, library.module, name, threads)

    def call(self, function, *arguments):
        """Returns `function(adapter, *arguments)`, computed in the process.

        Raises Unsupported where the library does not offer it, and Failed where it
        cannot. A process that died or took too long is replaced by a fresh one first.
        """
        try:
            future = self.submit(_guarded, function, arguments)
            kind, result = future.result(TIME_LIMIT)
        except futures.BrokenExecutor:
            self.restart()
            message = "the process died; it may have run out of memory"
            raise Failed(message) from None
        except futures.TimeoutError:
            self.restart()
            raise Failed(f"took more than {TIME_LIMIT} s") from None
        if kind == "returned":
            return result
        raise Unsupported(result) if kind == "unsupported" else Failed(result)


# Of a worker process: functions that are sent there have no object to keep it in.
_state = {}


def _start(module: str, name: str, threads: int):
    """Sets the environment of a worker process before any library starts."""
    # Libraries read these once, when they are imported.
    os.environ["NPROC"] = str(threads)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ |= device.environment()
    with contextlib.suppress(OSError):
        # If memory runs out, the kernel ends this process and not the parent.
        Path("/proc/self/oom_score_adj").write_text("1000")
    _state["module"] = module
    _state["name"] = name


def _guarded(function, arguments):
    """Calls the function and returns (kind, result or message).

    Exceptions travel as text: the parent may lack the library that an exception's
    class comes from.
    """
    try:
        # Here, and not in `_start`: an error of the import is an answer as well.
        if "adapter" not in _state:
            _state["adapter"] = load(_state["module"], _state["name"])
        return "returned", function(_state["adapter"], *arguments)
    except Unsupported as error:
        return "unsupported", str(error)
    except (ValueError, NotImplementedError) as error:
        # With these, attn and the other libraries say what they cannot serve.
        return "unsupported", one_line(error)
    except Exception as error:
        return "failed", one_line(error)


def one_line(error: BaseException) -> str:
    """Returns an exception's class and message as one short line."""
    text = " ".join(str(error).split())
    if len(text) > LONGEST_MESSAGE:
        text = text[: LONGEST_MESSAGE - 3] + "..."
    return f"{type(error).__name__}: {text}".removesuffix(": ")


def peak_growth(call) -> int | None:
    """Returns by how many bytes this process's memory peaks while `call()` runs.

    The result is None where the system does not say, and for another device than the CPU.
    Linux does: writing 5 to clear_refs resets the peak (proc_pid_clear_refs(5)). It is
    exact to a huge page or so, 2 MiB.
    """
    if device.platform() != device.CPU:
        call()
        return None
    time.sleep(SETTLE)
    try:
        # Memory that the allocator holds free would hide as much of the growth.
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmHWM")
    except (AttributeError, OSError):
        before = None
    call()
    return None if before is None else max(0, _status("VmHWM") - before)


def check_room(needed: int) -> None:
    """Raises MemoryError where `needed` bytes are more than are free."""
    try:
        free = _field("/proc/meminfo", "MemAvailable")
    except OSError:
        return
    if needed > free:
        gibibytes = f"{needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free"
        raise MemoryError(f"needs {gibibytes}")


def _status(name):
    return _field("/proc/self/status", name)


def _field(path, name):
    """Reads one line of a file of the kernel's, in bytes."""
    lines = Path(path).read_text().splitlines()
    line = next(line for line in lines if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024
