"""Prepares a case in a worker process, and takes its turns there."""

import dataclasses
import time
from collections.abc import Callable

import numpy as np

from launch.bench.harness import device
from launch.bench.harness.process import peak_growth


@dataclasses.dataclass(frozen=True)
class Program:
    """Holds a case that one library has built and compiled."""

    run: Callable
    """Calls it; a device may still be computing the result."""
    sample: Callable[[], dict[str, np.ndarray]]
    """Calls it and returns what the case's `check` looks at."""
    result_bytes: int = 0
    temporary_bytes: int | None = None
    """The compiler's own account; None where it gives none."""
    by_hand: bool = False
    """The library has no such score: it is written around it, as a user would."""
    growth: Callable[[Callable], int | None] = peak_growth
    """Calls its argument and returns by how many bytes memory peaks, None if unknown."""
    wait: Callable = lambda result: None
    """Waits for the result of `run`."""


@dataclasses.dataclass(eq=False)
class Adapter:
    """Holds a library for which one function builds every case."""

    compile: Callable
    program: Program | None = None


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
    growth = program.growth(run)
    if growth is not None:
        growth = max(0, growth - program.result_bytes)
    return Prepared(
        sample=sample,
        seconds=seconds[0],
        temporary_bytes=program.temporary_bytes,
        growth_bytes=growth,
        by_hand=program.by_hand,
    )


def take_turn(adapter, calls: int) -> float:
    """Returns the seconds of one call, the mean of `calls`."""
    program = adapter.program
    if calls > 1:
        # Another library has filled the processor's caches since the last turn.
        program.wait(program.run())
    start = time.perf_counter()
    for _ in range(calls):
        result = program.run()
        # An accelerator gets the next call meanwhile, as it does in a program of many.
        if device.platform() == device.CPU:
            program.wait(result)
    program.wait(result)
    return (time.perf_counter() - start) / calls


def release(adapter) -> None:
    """Frees the memory of the adapter's program."""
    adapter.program = None
