"""Names the libraries that a benchmark compares, and loads the adapter of each.

An adapter hides a library behind one method, `compile(case) -> Program`. The module of
a library holds its adapters by name in a dictionary ADAPTERS, and is imported in the
process of that library alone.
"""

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Mapping
from typing import NamedTuple

PACKAGES = ("jax", "jaxlib", "flax", "numpy", "torch")
"""The packages whose versions stand in every record."""


class Library(NamedTuple):
    """Says where the adapter of a library is, and what it needs."""

    module: str
    """The module that has the adapter, such as "launch.bench.attention.torch"."""
    needs: tuple[str, ...] = ()
    """Packages that the module imports and that attn does not itself need."""


class Unsupported(Exception):
    """Raised by an adapter whose library does not offer what is asked."""


class BenchError(Exception):
    """Raised for a user's mistake in naming what to measure."""


def select(names: list[str], known: Mapping[str, Library]) -> dict[str, Library]:
    """Returns the libraries with these names, each once.

    Raises BenchError for an unknown name, and where there is no name at all.
    """
    for name in names:
        if name not in known:
            raise BenchError(f"unknown peer {name!r}; known: {', '.join(known)}")
    if not names:
        raise BenchError(f"--peers names no library; known: {', '.join(known)}")
    return {name: known[name] for name in names}


def installed(library: Library) -> bool:
    """Returns whether all packages are there that the adapter's module imports."""
    # Found, not imported: its threads would start in this process.
    return all(importlib.util.find_spec(package) for package in library.needs)


def load(module: str, name: str):
    """Imports a library's module and returns the adapter with this name."""
    # By name, as no module may import the libraries of all.
    return importlib.import_module(module).ADAPTERS[name]


def versions(packages: tuple[str, ...] = PACKAGES) -> dict[str, str | None]:
    """Returns the version of each package, None where it is not installed."""
    return {package: _version(package) for package in packages}


def _version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
