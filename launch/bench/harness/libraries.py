"""Names the libraries that a benchmark compares, and the programs that they build.

An adapter hides a library behind one method, `compile(case) -> Program`. The module of
a library holds its adapters by name in a dictionary ADAPTERS, and is imported in the
process of that library alone: nothing here imports a library that is compared.
"""

import dataclasses
import importlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from experiments.errors import UserError

PACKAGES = ("jax", "jaxlib", "flax", "numpy", "torch")
"""The packages whose versions stand in every record."""
CPU = "cpu"


class Library(NamedTuple):
    """Says where the adapter of a library is, and what it needs."""

    module: str
    """The module that has the adapter, such as "launch.bench.attention.torch"."""
    needs: tuple[str, ...] = ()
    """Packages that the module imports and that attn does not itself need."""


class Unsupported(Exception):
    """Raised by an adapter whose library does not offer what is asked."""


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
    """Whether the library lacks such a score, which is written around it by hand."""
    growth: Callable[[Callable], int | None] | None = None
    """Calls its argument and returns by how many bytes memory peaks; None for the process's."""
    wait: Callable = lambda result: None
    """Waits for the result of `run`."""


@dataclasses.dataclass(eq=False)
class Adapter:
    """Holds a library for which one function builds every case."""

    compile: Callable
    program: Program | None = None


def select(names: list[str], known: Mapping[str, Library]) -> dict[str, Library]:
    """Returns the libraries with these names, each once.

    Raises UserError for an unknown name, and where there is no name at all.
    """
    for name in names:
        if name not in known:
            raise UserError(f"unknown peer {name!r}; known: {', '.join(known)}")
    if not names:
        raise UserError(f"--peers names no library; known: {', '.join(known)}")
    return {name: known[name] for name in names}


def installed(library: Library) -> bool:
    """Returns whether all packages are there that the adapter's module imports."""
    # Found, not imported: its threads would start in this process.
    return all(importlib.util.find_spec(package) for package in library.needs)


def load(module: str, name: str):
    """Imports a library's module and returns the adapter with this name."""
    return importlib.import_module(module).ADAPTERS[name]


def versions(packages: tuple[str, ...]) -> dict[str, str | None]:
    """Returns the version of each package, None where it is not installed."""
    found = {}
    for package in (*PACKAGES, *packages):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def platform() -> str:
    """Returns where libraries are compared, by JAX_PLATFORMS: "cpu", "cuda" or "tpu"."""
    first = os.environ.get("JAX_PLATFORMS", "").partition(",")[0]
    return {"": CPU, "gpu": "cuda"}.get(first, first)


def environment(threads: int) -> dict[str, str]:
    """Returns the variables of a process that computes there beside others."""
    return {
        "JAX_PLATFORMS": platform(),
        # JAX would take three quarters of a GPU's memory, whatever it needs.
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "NPROC": str(threads),
        "OMP_NUM_THREADS": str(threads),
    }
