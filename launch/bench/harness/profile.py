"""Says which kernels took a JAX program's time, by JAX's profiler."""

import collections
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax

from launch.bench.harness.report import Table, number

SHOWN = 25
"""Kernels that a table names."""


class Kernel(NamedTuple):
    """Holds what the kernels of one name are in a call."""

    name: str
    seconds: float
    """Of all of them."""
    count: float


def by_kernel(call: Callable[[], Any], calls: int) -> list[Kernel]:
    """Returns the kernels of a call, the mean of some, those first that take most time."""
    with tempfile.TemporaryDirectory() as directory:
        with jax.profiler.trace(directory):
            for _ in range(calls):
                call()
        (path,) = Path(directory).rglob("*.xplane.pb")
        data = jax.profiler.ProfileData.from_file(str(path))
    nanoseconds = collections.defaultdict(list)
    for name, duration in _events(data.planes):
        nanoseconds[name].append(duration)
    found = [
        Kernel(name, sum(all_of) / calls / 1e9, len(all_of) / calls)
        for name, all_of in nanoseconds.items()
    ]
    return sorted(found, key=lambda kernel: -kernel.seconds)


def _events(planes: Iterable[Any]) -> Iterator[tuple[str, float]]:
    """Yields (name, nanoseconds) of each time that a device, or else the CPU, ran one."""
    planes = [*planes]
    devices = [plane for plane in planes if plane.name.startswith("/device:")]
    for plane in devices or planes:
        for line in plane.lines:
            # A GPU's other lines sum these up, as do a TPU's.
            if devices and not line.name.startswith(("Stream", "XLA Ops")):
                continue
            for event in line.events:
                operation = dict(event.stats).get("hlo_op")
                # A CPU's have what else a process does, a GPU's graphs no operations.
                if operation or devices:
                    yield str(operation or event.name), event.duration_ns


def table(title: str, kernels: list[Kernel]) -> Table:
    """Returns the table of the kernels that take most time, and of all."""
    filled = Table(title, ("kernel", "ms a call", "of all", "times a call"))
    whole = sum(kernel.seconds for kernel in kernels)
    every = Kernel("all", whole, sum(kernel.count for kernel in kernels))
    for name, seconds, count in [every, *kernels[:SHOWN]]:
        share = f"{seconds / whole:.1%}" if whole else ""
        filled.rows.append((name, number(1e3 * seconds), share, number(count)))
    return filled
