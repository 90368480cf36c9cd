"""Starts the process that compiles for a device."""

from experiments.system import machine
from launch.bench.compile.targets import TARGETS
from launch.bench.harness.libraries import BenchError, Library, installed
from launch.bench.harness.process import Worker

MODULE = "launch.bench.compile.compiler"
NEEDS = {"tpu": ("libtpu",), "gpu": ("jax_cuda12_plugin",)}
REMEDY = {"tpu": "compile-tpu", "gpu": "compile-cuda"}


def check_name(name: str) -> None:
    """Raises BenchError for a device that is none of `TARGETS`."""
    if name not in TARGETS:
        raise BenchError(f"unknown device {name!r}; known: {', '.join(TARGETS)}")


def library(name: str) -> Library:
    """Returns what compiles for a device.

    Raises BenchError for an unknown one, and where its compiler is not installed.
    """
    check_name(name)
    platform = TARGETS[name].platform
    found = Library(MODULE, NEEDS[platform])
    if not installed(found):
        raise BenchError(
            f"no compiler for {name} is installed: pip install '.[{REMEDY[platform]}]'"
        )
    return found


def start(name: str) -> Worker:
    """Starts the process of a device; raises BenchError as `library` does."""
    return Worker(library(name), name, machine.threads())
