"""The process and the machine under it: threads, compile cache, and what a record says of them."""

import contextlib
import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import jax

PACKAGES = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "numpy",
    "sentencepiece",
    "sacrebleu",
    "babel",
)


class Machine(NamedTuple):
    backend: str
    devices: int
    cores: int
    memory: int | None = None
    """Bytes of a device, or of a CPU's machine; None where that is not known."""


def cache() -> Path:
    """For what can be made again: $XDG_CACHE_HOME/attn, or ~/.cache/attn."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attn"


def use_compile_cache() -> None:
    """Keeps compiled programs in ~/.cache/attn (or $XDG_CACHE_HOME/attn), unless JAX_COMPILATION_CACHE_DIR is set.

    One folder for each kind of device: code compiled for one CPU may not run on another.
    """
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    kind = jax.local_devices()[0].device_kind
    name = re.sub(r"\W+", "-", f"{kind} {_cpu()}" if kind == "cpu" else kind).strip("-")
    jax.config.update("jax_compilation_cache_dir", str(cache() / "xla" / name))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


def cores() -> int:
    """CPU cores that this process may use."""
    return (
        len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1
    )


def memory() -> int | None:
    """Bytes that a device has: of a CPU the machine's, or those of the container that this process is in.

    None where nothing tells.
    """
    device = jax.local_devices()[0]
    if device.platform != "cpu":
        return (device.memory_stats() or {}).get("bytes_limit")
    found = []
    for path in (
        "memory.max",
        "memory/memory.limit_in_bytes",
    ):  # of control groups, version 2 and 1
        with contextlib.suppress(
            OSError, ValueError
        ):  # the limit may be the word "max"
            found.append(int(Path("/sys/fs/cgroup", path).read_text()))
    with contextlib.suppress(OSError, ValueError, AttributeError):
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min(found, default=None)


def here() -> Machine:
    """What this process runs on."""
    return Machine(jax.default_backend(), jax.device_count(), cores(), memory())


def versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in PACKAGES}


def device() -> str:
    kind = jax.local_devices()[0].device_kind
    return f"{kind} ({_cpu()})" if kind == "cpu" else kind


def git_commit() -> str | None:
    """The checkout's commit, with "+" where tracked files differ from it; None outside a checkout."""

    def git(*words):
        return subprocess.run(
            ["git", *words],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
        )

    try:
        head = git("rev-parse", "HEAD")
        changed = git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.TimeoutExpired):
        return None
    if head.returncode:
        return None
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


def _cpu() -> str:
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1] if found else platform.machine()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory was not enough."""
    return isinstance(error, MemoryError) or (
        isinstance(error, jax.errors.JaxRuntimeError)
        and "RESOURCE_EXHAUSTED" in str(error)
    )
