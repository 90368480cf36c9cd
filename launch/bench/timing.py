"""What happens in a worker process when a case is timed."""

import dataclasses
import time
from collections.abc import Callable

import numpy as np

from launch.bench.workers import peak_growth


@dataclasses.dataclass(frozen=True)
class Program:
    """A case built and compiled for one library."""

    run: Callable
    """Calls it and waits for the results."""
    sample: Callable[[], dict[str, np.ndarray]]
    """Calls it and gives what the case's `check` wants."""
    result_bytes: int = 0
    temporary_bytes: int | None = None
    """By the compiler's own account; None where it gives none."""
    by_hand: bool = False
    """The library has no such score: it is written around it, as a user would."""


@dataclasses.dataclass(eq=False)
class Adapter:
    """A library for which one function builds every case."""

    compile: Callable
    program: Program | None = None


@dataclasses.dataclass(frozen=True)
class Prepared:
    """What the parent learns of a `Program`."""

    sample: dict[str, np.ndarray]
    seconds: float
    """Of one call, for the number of calls in a turn; not a result."""
    temporary_bytes: int | None
    growth_bytes: int | None
    """By how much the process's memory peaks during a call, less the results."""
    by_hand: bool


def prepare(adapter, case) -> Prepared:
    """Builds, compiles and checks the case, which also warms it."""
    adapter.program = None  # the last case's memory
    adapter.program = program = adapter.compile(case)
    sample = program.sample()
    took = []

    def run():
        start = time.perf_counter()
        program.run()
        took.append(time.perf_counter() - start)

    growth = peak_growth(run)
    return Prepared(sample, took[0], program.temporary_bytes,
                    None if growth is None else max(0, growth - program.result_bytes), program.by_hand)


def turn(adapter, calls: int) -> float:
    """Seconds of one call, the mean of `calls`."""
    run = adapter.program.run
    if calls > 1:
        run()  # the caches are another peer's since the last turn
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls


def release(adapter) -> None:
    adapter.program = None
