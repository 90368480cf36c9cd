"""The process and the machine under it: allocator, threads, compile cache, and what a record says of them."""

import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import jax

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "sentencepiece", "sacrebleu", "babel")


def use_huge_pages() -> None:
    """Makes malloc of every process started from now on use huge pages, unless the user set it up already.

    XLA on a CPU page-faults each large temporary, 4 to 7 GB/s against 26 to 29 with this. glibc reads it only when a
    process starts.
    """
    os.environ.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")


def restart_with_huge_pages() -> None:
    """Starts this same command again with huge pages, once, where the C library knows of them."""
    if platform.libc_ver()[0] == "glibc" and "GLIBC_TUNABLES" not in os.environ:
        use_huge_pages()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def use_compile_cache() -> None:
    """Keeps compiled programs in ~/.cache/attn (or $XDG_CACHE_HOME/attn), unless JAX_COMPILATION_CACHE_DIR is set.

    One folder for each kind of device: code compiled for one CPU may not run on another.
    """
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    kind = jax.local_devices()[0].device_kind
    name = re.sub(r"\W+", "-", f"{kind} {_cpu()}" if kind == "cpu" else kind).strip("-")
    jax.config.update("jax_compilation_cache_dir", str(home / "attn" / "xla" / name))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in PACKAGES}


def device() -> str:
    kind = jax.local_devices()[0].device_kind
    return f"{kind} ({_cpu()})" if kind == "cpu" else kind


def git_commit() -> str | None:
    """The checkout's commit, with "+" where tracked files differ from it; None outside a checkout."""
    def git(*words):
        return subprocess.run(["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10)

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
