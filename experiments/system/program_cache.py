"""Keeps compiled programs on disk whole, so that a process that starts again traces nothing.

JAX's own cache has the program's text for its key, and to trace and lower that takes longer
than all else on the way to a first step. Here a program has two keys: what it is made from
(the source of this project, versions, machine, JAX's options, the arguments' shapes), by
which it is found at once, and its text (StableHLO), by which it is still found after the
source has changed elsewhere.
"""

import contextlib
import dataclasses
import functools
import hashlib
import os
import pickle
import sys
import types
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache

import attn
import experiments
from experiments.system import machine
from experiments.system.files import write_bytes

VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "NPROC")
"""Of the environment, what decides how XLA compiles beside JAX's own options."""

NOT_COMPILED_IN = ("jax_compilation_cache", "jax_persistent_cache", "jax_log")
"""How those of JAX's options begin that change no program."""


class DiskCached:
    """Calls `function`, of `jax.jit` or `jax.pmap`, whose compiled programs are kept on disk.

    The `key`, functions of this project and values that they are bound to, has to tell it
    from any other function. Where a part of that is from outside, and its source in who
    knows which files, a program is found by its text alone. Programs are kept where JAX
    keeps its own, if it does, and not of functions that several processes run together or
    that call LAPACK.
    Raises what `function` raises.
    """

    def __init__(self, function: Callable, *key: Any):
        self.function = function
        try:
            self._key = _text(key)
        except _Outside:
            self._key = None
        self._programs = []

    def __call__(self, *arguments) -> Any:
        folder = _folder()
        if folder is None:
            return self.function(*arguments)
        for program in self._programs:
            try:
                return program(*arguments)
            # Made for other shapes or devices; it says so before it begins.
            except (TypeError, ValueError):
                continue
        if _is_traced(arguments):
            return self.function(*arguments)
        program = self._program(folder, arguments)
        try:
            result = program(*arguments)
        except ValueError:
            # Older JAX compiles for one device what pmap has spread over several, and
            # jit alone moves it there.
            program = self.function
            result = program(*arguments)
        # First, as the next call most likely has the same shapes.
        self._programs.insert(0, program)
        return result

    def _program(self, folder, arguments):
        about = f"{_surroundings()}\n{_described(arguments)}"
        by_key = None
        if self._key is not None:
            by_key = folder / _digest(f"{_sources()}\n{self._key}\n{about}")
            if program := _load(by_key):
                return program
        lowered = self.function.lower(*arguments)
        text = lowered.as_text()
        # JAX loads LAPACK where a call of it is lowered, and no program without it may run.
        if "@lapack_" in text:
            return self.function
        by_text = folder / _digest(f"{text}\n{about}")
        program = _load(by_text) or _compile(lowered, by_text)
        if by_key is not None and by_text.exists():
            _link(by_key, by_text.name)
        return program


def disk_cached(function: Callable) -> DiskCached:
    """Compiles a function of this project as `jax.jit` does, see `DiskCached`."""
    return DiskCached(jax.jit(function), function)


def _folder() -> Path | None:
    """Returns where programs are kept; None where they are not."""
    cache = jax.config.jax_compilation_cache_dir
    if not cache or not jax.config.jax_enable_compilation_cache:
        return None
    # Who looks for a mistake has functions run line by line, which is jit's to do.
    if jax.config.jax_disable_jit or jax.config.jax_debug_nans:
        return None
    # A cache in a bucket is JAX's alone; what several processes compile, they compile together.
    if "://" in cache or jax.process_count() > 1:
        return None
    return Path(cache) / "programs"


def _load(path):
    """Returns the program in the file, or None: also for one that cannot be read."""
    try:
        ids, *serialized = pickle.loads(zlib.decompress(path.read_bytes()))
        devices = {device.id: device for device in jax.devices()}
        return serialize_executable.deserialize_and_load(
            *serialized, execution_devices=[devices[number] for number in ids]
        )
    # A file that another version, or a full disk, has left is compiled anew.
    except Exception:
        return None


def _compile(lowered, path):
    """Compiles a program and keeps it in the file, where both can be done."""
    # What JAX has from its own cache cannot be serialised again: it lacks the code.
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    try:
        program = lowered.compile()
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
        compilation_cache.reset_cache()
    try:
        ids = [device.id for device in program.runtime_executable().local_devices()]
        content = pickle.dumps((ids, *serialize_executable.serialize(program)))
    # Those with arrays in them, or that call Python, are compiled in each process.
    except Exception:
        return program
    # A full or read-only disk is no reason to end.
    with contextlib.suppress(OSError):
        write_bytes(path, zlib.compress(content, 1))
    return program


def _link(path, name):
    """Makes a kept program be found by its other key too."""
    # Another process has just done so, or nothing can be written there.
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
        path.symlink_to(name)


def _described(arguments):
    """Returns the structure, shapes, types and places of arguments."""
    leaves, structure = jax.tree.flatten(arguments)
    places = [getattr(leaf, "sharding", None) for leaf in leaves]
    return f"{structure} {[jax.typeof(leaf) for leaf in leaves]} {places}"


def _is_traced(arguments):
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(arguments))


class _Outside(Exception):
    """Raised for a value whose source this project does not have."""


def _text(value) -> str:
    """Returns a text that tells a value from all others, in any process."""
    if value is None or isinstance(value, (str, int, float)):
        return repr(value)
    if isinstance(value, functools.partial):
        return _text((value.func, value.args, tuple(value.keywords.items())))
    is_function = isinstance(value, types.FunctionType)
    kind = value if is_function else type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    # A function within another is bound to what no name tells.
    if "<" in name or name.split(".")[0] not in ("attn", "experiments", "builtins"):
        raise _Outside
    if is_function:
        return name
    if isinstance(value, tuple):
        parts = value
    elif dataclasses.is_dataclass(value):
        parts = vars(value).values()
    else:
        raise _Outside
    return f"{name}({', '.join(map(_text, parts))})"


@functools.cache
def _sources():
    """Returns the digest of all source code of this project."""
    digest = hashlib.sha256()
    for package in (attn, experiments):
        root = Path(package.__file__).parent
        for path in sorted(root.rglob("*.py")):
            digest.update(f"{path.relative_to(root)}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _surroundings():
    """Returns all else that decides what a program is compiled to."""
    options = {
        name: value
        for name, value in sorted(jax.config.values.items())
        if not name.startswith(NOT_COMPILED_IN)
        and name != "jax_enable_compilation_cache"
    }
    variables = {name: os.environ.get(name) for name in VARIABLES}
    return f"{_here()} {options} {variables}"


@functools.cache
def _here():
    """Returns the versions and the devices, a CPU with what it can do."""
    device = jax.local_devices()[0]
    return (
        f"{sys.version} {machine.versions()} {device.client.platform_version} "
        f"{jax.local_devices()} {device.device_kind} {machine.cores()} "
        f"{machine.cpu_features()}"
    )


def _digest(text):
    return hashlib.sha256(text.encode()).hexdigest()
