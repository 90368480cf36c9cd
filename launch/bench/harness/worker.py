"""Gives each library a process of its own, which prepares cases and takes turns.

The thread pools of two libraries in one process fight for the cores, and a crash takes
one library only.
"""

import concurrent.futures as futures
import contextlib
import ctypes
import dataclasses
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.system.process import Process
from launch.bench.harness.libraries import (
    CPU,
    Library,
    Unsupported,
    environment,
    load,
    platform,
)

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

    def call(self, function: Callable, *arguments):
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
    os.environ |= environment(threads)
    with contextlib.suppress(OSError):
        # If memory runs out, the kernel ends this process and not the parent.
        Path("/proc/self/oom_score_adj").write_text("1000")
    _state["names"] = module, name


def _guarded(function, arguments):
    """Calls the function and returns (kind, result or message).

    Exceptions travel as text: the parent may lack the library that an exception's
    class comes from.
    """
    try:
        # Here, and not in `_start`: an error of the import is an answer as well.
        if "adapter" not in _state:
            _state["adapter"] = load(*_state["names"])
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
    return f"{type(error).__name__}: {text}"[:LONGEST_MESSAGE].removesuffix(": ")


@dataclasses.dataclass(frozen=True)
class Prepared:
    """Holds what the parent process learns of a `Program`."""

    sample: dict[str, np.ndarray]
    seconds: float
    """Time of one call. It sets the number of calls in a turn and is no result."""
    temporary_bytes: int | None
    growth_bytes: int | None
    """The growth of memory to its peak in a call, less the results."""
    by_hand: bool


def prepare(adapter, case) -> Prepared:
    """Builds, compiles and samples the case, which also warms it."""
    # Frees the memory of the last case before this one is built.
    adapter.program = None
    program = adapter.compile(case)
    adapter.program = program
    sample = program.sample()
    seconds = []

    def run():
        start = time.perf_counter()
        program.wait(program.run())
        seconds.append(time.perf_counter() - start)

    # After the sample, as the first call compiles and fills caches.
    growth = (program.growth or peak_growth)(run)
    if growth is not None:
        growth = max(0, growth - program.result_bytes)
    return Prepared(
        sample=sample,
        seconds=seconds[0],
        temporary_bytes=program.temporary_bytes,
        growth_bytes=growth,
        by_hand=program.by_hand,
    )


class Turn(NamedTuple):
    """Holds what a turn was."""

    seconds: float
    """Of one call, the mean of several."""
    others: float | None
    """The processor cores that other processes, and other virtual machines, had meanwhile;
    None where the system does not say."""


def take_turn(adapter, calls: int) -> Turn:
    """Times some calls, one after another."""
    program = adapter.program
    if calls > 1:
        # Another library has filled the processor's caches since the last turn.
        program.wait(program.run())
    taken = _processor_seconds()
    own = time.process_time()
    start = time.perf_counter()
    for _ in range(calls):
        result = program.run()
        # An accelerator gets the next call meanwhile, as it does in a program of many.
        if platform() == CPU:
            program.wait(result)
    program.wait(result)
    seconds = time.perf_counter() - start
    others = None
    if taken is not None:
        own = time.process_time() - own
        # Of a short turn a clock of 10 ms makes it too much, or too little and below 0.
        others = (_processor_seconds() - taken - own) / seconds
    return Turn(seconds / calls, others)


def _processor_seconds():
    """Returns the seconds that all cores have worked, or were withheld; None off Linux."""
    with contextlib.suppress(OSError):
        # proc_stat(5): user, nice, system, idle, iowait, irq, softirq, steal.
        words = Path("/proc/stat").read_text().split()[1:9]
        user, nice, system, _, _, *rest = map(int, words)
        return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


def release(adapter) -> None:
    """Frees the memory of the adapter's program."""
    adapter.program = None


def peak_growth(call: Callable) -> int | None:
    """Returns by how many bytes this process's memory peaks while `call()` runs.

    The result is None where the system does not say, and for another device than the CPU.
    Linux does: writing 5 to clear_refs resets the peak (proc_pid_clear_refs(5)). It is
    exact to a huge page or so, 2 MiB.
    """
    if platform() != CPU:
        call()
        return None
    time.sleep(SETTLE)
    try:
        # Memory that the allocator holds free would hide as much of the growth.
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = _peak()
    except (AttributeError, OSError):
        before = None
    call()
    return None if before is None else max(0, _peak() - before)


def _peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
