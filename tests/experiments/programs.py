"""Compiled programs that are kept, as those of the commands are."""

import contextlib
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache


@contextlib.contextmanager
def programs_in(folder: Path):
    """Keeps compiled programs in a folder of its own."""
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(folder))
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
        compilation_cache.reset_cache()
