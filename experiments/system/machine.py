"""Describes the machine of this process, and sets up its cache of compiled programs."""

import contextlib
import importlib.metadata
import os
import platform
import re
import resource
import subprocess
import sys
import zlib
from pathlib import Path
from typing import NamedTuple

import jax

from experiments.errors import UserError, one_line

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


VECTORS = {"amx_tile": "AMX", "avx512f": "AVX-512", "avx2": "AVX2"}
"""What the widest instructions of a CPU are called, the best first, by Linux's names."""


class CacheError(UserError):
    """Raised where there is no place for the cache; names the variable to set."""


class PlatformError(UserError):
    """Raised where JAX finds no device to compute on; names the variable to set."""


class Machine(NamedTuple):
    """Holds what decides how trials are run on a machine."""

    backend: str
    devices: int
    cores: int
    memory: int | None = None
    """Bytes of a device, or of a CPU's machine; None where that is unknown."""


def cache() -> Path:
    """Returns the folder for what can be made again: $XDG_CACHE_HOME/attn or ~/.cache/attn.

    Raises CacheError for a user without a home directory, as in many containers.
    """
    if folder := os.environ.get("XDG_CACHE_HOME"):
        return Path(folder) / "attn"
    try:
        return Path.home() / ".cache" / "attn"
    except RuntimeError:
        # A folder in /tmp could be another user's, and compiled programs are run.
        raise CacheError(
            f"user {os.getuid()} has no home directory for the cache: set XDG_CACHE_HOME "
            "to a directory that can be written to"
        ) from None


def check_platform() -> None:
    """Raises PlatformError where JAX cannot start the devices that it is to compute on."""
    try:
        jax.local_devices()
    # Of several kinds: a plugin that is missing is a RuntimeError, one without a device an
    # AssertionError without a message.
    except Exception as error:
        asked = os.environ.get("JAX_PLATFORMS", "")
        reason = one_line(error).partition(" (set JAX_PLATFORMS")[0]
        raise PlatformError(
            f"JAX_PLATFORMS={asked}: JAX finds no such device here"
            f"{reason and f' ({reason})'}; leave the variable out for what there is, or set "
            "JAX_PLATFORMS=cpu"
        ) from error


def use_compile_cache() -> None:
    """Keeps compiled programs in the `cache`, unless JAX_COMPILATION_CACHE_DIR is set.

    Each kind of device has a folder: code compiled for one CPU may not run on another.
    Raises PlatformError where there is no device.
    """
    check_platform()
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    kind = jax.local_devices()[0].device_kind
    if kind == "cpu":
        # In virtual machines CPUs of several generations have one name.
        kind = f"{kind} {_cpu()} {zlib.crc32(cpu_features().encode()):08x}"
    name = re.sub(r"\W+", "-", kind).strip("-")
    jax.config.update("jax_compilation_cache_dir", str(cache() / "xla" / name))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


def cores() -> int:
    """Counts the CPU cores that this process may use."""
    # A container or SLURM may give fewer than the machine has; macOS cannot say.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads() -> int:
    """Returns the threads that XLA computes with on a CPU: NPROC, or as many as cores.

    Their number decides the order of some sums, and so a result's last bits.
    """
    given = os.environ.get("NPROC", "")
    return int(given) if given.isdigit() else cores()


def memory() -> int | None:
    """Returns the bytes that a device has, None where that is unknown.

    A CPU has the machine's memory, or that of the container that this process is in.
    """
    device = jax.local_devices()[0]
    if device.platform != "cpu":
        return (device.memory_stats() or {}).get("bytes_limit")
    limits = []
    # Those of control groups, version 2 and 1.
    for path in ("memory.max", "memory/memory.limit_in_bytes"):
        # The limit may be the word "max".
        with contextlib.suppress(OSError, ValueError):
            limits.append(int(Path("/sys/fs/cgroup", path).read_text()))
    with contextlib.suppress(OSError, ValueError, AttributeError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    # Version 1 without a limit says nearly 2⁶³, so the least counts.
    return min(limits, default=None)


def peak_memory() -> int | None:
    """Returns the most bytes that were in use; None where that is unknown.

    On an accelerator they are those of the first device since this process began, on a CPU
    those of this process since `reset_peak_memory`. Lanes share them.
    """
    device = jax.local_devices()[0]
    if device.platform != "cpu":
        return (device.memory_stats() or {}).get("peak_bytes_in_use")
    with contextlib.suppress(OSError):
        status = Path("/proc/self/status").read_text()
        if peak := re.search(r"^VmHWM:\s*(\d+) kB", status, re.M):
            return 1024 * int(peak[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS counts bytes, the others kibibytes.
    return peak if sys.platform == "darwin" else 1024 * peak


def reset_peak_memory() -> None:
    """Makes `peak_memory` of a CPU begin anew, where Linux can."""
    with contextlib.suppress(OSError):
        # 5 is the kernel's word for "the peak is what is in use now".
        Path("/proc/self/clear_refs").write_text("5")


def here() -> Machine:
    """Returns the machine that this process runs on. Raises PlatformError without a device."""
    check_platform()
    return Machine(jax.default_backend(), jax.device_count(), cores(), memory())


def versions() -> dict[str, str]:
    """Returns the versions of the packages that results depend on."""
    return {name: importlib.metadata.version(name) for name in PACKAGES}


def device() -> str:
    """Returns the kind of the first device, with a CPU's model and widest instructions."""
    kind = jax.local_devices()[0].device_kind
    return f"{kind} ({_cpu()})" if kind == "cpu" else kind


def git_commit() -> str | None:
    """Returns the checkout's commit, with "+" where tracked files differ from it.

    None outside a checkout.
    """

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


def cpu_features() -> str:
    """Returns the CPU's model and all that it can do, as the system says it."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    found = re.findall(r"^(?:model name|model|flags|Features)\s*:.*", text, re.M)
    # Of the first core; the others have the same.
    return "\n".join(dict.fromkeys(found))


def _cpu() -> str:
    features = cpu_features()
    model = re.search(r"model name\s*:\s*(.+)", features)
    names = [model[1] if model else platform.machine()]
    flags = set(features.split())
    names += [name for flag, name in VECTORS.items() if flag in flags][:1]
    return ", ".join(names)


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an error says that memory was not enough."""
    return isinstance(error, MemoryError) or (
        # JAX has no class for it, only this word in the message.
        isinstance(error, jax.errors.JaxRuntimeError)
        and "RESOURCE_EXHAUSTED" in str(error)
    )
