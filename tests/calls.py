"""Commands called in this process, because a process of their own takes seconds to import JAX."""

import contextlib
import importlib
import io
import os
import sys
from collections.abc import Iterator
from typing import NamedTuple
from unittest import mock

import jax
from absl import flags

from launch.__main__ import COMMANDS

KEPT = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_platforms",
)
"""What commands set of JAX for the whole of their process."""


class Done(NamedTuple):
    """What a command leaves, by the names of subprocess.CompletedProcess."""

    returncode: int
    stdout: str
    stderr: str


def call(name: str, *arguments: object, text: str | None = None) -> Done:
    """Calls launch.`name` as a person types it, with `text` to read where that is not None."""
    said = [_stream(), _stream()]
    status = 0
    with (
        own_flags(),
        _own_settings(),
        mock.patch.object(sys, "argv", [name, *map(str, arguments)]),
        mock.patch.object(sys, "stdin", sys.stdin if text is None else _stream(text)),
        contextlib.redirect_stdout(said[0]),
        contextlib.redirect_stderr(said[1]),
    ):
        module = importlib.import_module(f"launch.{name}")
        try:
            module.cli()
        except SystemExit as end:
            status = end.code or 0
    return Done(status, *map(_written, said))


def _stream(text=""):
    """Returns a stream like those of a process, which commands set to other encodings."""
    return io.TextIOWrapper(io.BytesIO(text.encode()), "utf-8", write_through=True)


def _written(stream):
    return stream.buffer.getvalue().decode()


@contextlib.contextmanager
def own_flags() -> Iterator[None]:
    """Has a command define its flags anew, as it does when it is imported, and removes them.

    Flags of libraries that it was the first to import stay: nobody defines them again.
    """
    before = set(flags.FLAGS)
    forget_commands()
    try:
        yield
    finally:
        for flag in set(flags.FLAGS) - before:
            if flags.FLAGS.find_module_defining_flag(flag).split(".")[0] == "launch":
                delattr(flags.FLAGS, flag)


def forget_commands() -> None:
    """Has the next call import its command again."""
    for name in (*COMMANDS, "__main__", "bench.__main__"):
        sys.modules.pop(f"launch.{name}", None)


@contextlib.contextmanager
def _own_settings() -> Iterator[None]:
    """Takes back what a command sets for its whole process."""
    before = {name: getattr(jax.config, name) for name in KEPT}
    # The command would start this process again.
    with mock.patch.dict(os.environ, GLIBC_TUNABLES="glibc.malloc.hugetlb=1"):
        try:
            yield
        finally:
            for name, value in before.items():
                jax.config.update(name, value)
