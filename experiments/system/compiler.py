"""Compiles for TPUs and GPUs that need not be here, and reads what their compilers say.

libtpu compiles for a TPU (`pip install '.[compile-tpu]'`) and JAX's CUDA plugin for a GPU
(`pip install '.[compile-cuda]'`) from a description of the device
(`jax.experimental.topologies`).

Memory is of one device. On a TPU it is HBM alone: what the compiler keeps in vector memory
is in no account. Cycles are the compiler's own estimates for each operation, with the body
of a loop counted once.
"""

import atexit
import concurrent.futures
import contextlib
import dataclasses
import importlib.util
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies

from attn import platforms
from experiments.errors import UserError
from experiments.system.gpu_kernels import Work, work_of
from experiments.system.process import Process

GIBIBYTE = 2**30

# What XLA knows of an H100 from the device itself, as the text of its GpuTargetConfigProto.
_H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 core_count: 132 fpus_per_core: 128
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472 threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 84929347584 cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA" device_description_str: "NVIDIA H100 80GB HBM3"
dnn_version_info { major: 9 minor: 10 } runtime_version { major: 12 minor: 9 }
"""

NEEDS = {"tpu": "libtpu", "gpu": "jax_cuda12_plugin"}
EXTRAS = {"tpu": "compile-tpu", "gpu": "compile-cuda"}
COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
)
LONGEST_MESSAGE = 160
SCHEDULES = "ATTN_SCHEDULES"
"""The environment variable of where a TPU's compiler writes schedules."""


@dataclasses.dataclass(frozen=True)
class Target:
    """Describes one kind of device, and how many of them share a program."""

    platform: str
    """"tpu" or "gpu"."""
    memory: int
    """Bytes of a device."""
    topology: str
    """The compiler's name for the devices."""
    bounds: tuple[int, int, int] = (1, 1, 1)
    """The chips of a TPU host, along each axis."""

    @property
    def count(self) -> int:
        """Returns how many devices share a program."""
        return math.prod(self.bounds)

    def devices(self) -> list[jax.Device]:
        """Returns the devices, which can be compiled for and do not run."""
        # Neither compiler is to look for devices of this machine; but JAX must have looked
        # for its plugins, of which CUDA's has the compiler.
        jax.config.update("jax_platforms", "cpu")
        jax.devices()
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
        os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
        os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
        # Has Pallas say what ptxas does of registers.
        os.environ.setdefault("MOSAIC_GPU_DUMP_PTXAS", "1")
        if self.platform == "gpu":
            options = dict(target_config=_H100, topology=self.topology)
            description = topologies.get_topology_desc(platform="cuda", **options)
        else:
            description = topologies.get_topology_desc(
                platform="tpu",
                topology_name=self.topology,
                chips_per_host_bounds=self.bounds,
            )
        return list(description.devices)


TARGETS = {
    "v5e": Target("tpu", 16 * GIBIBYTE, "v5e:1x1"),
    "v5e-4": Target("tpu", 16 * GIBIBYTE, "v5e:2x2", (2, 2, 1)),
    "v6e": Target("tpu", 32 * GIBIBYTE, "v6e:1x1"),
    "v6e-4": Target("tpu", 32 * GIBIBYTE, "v6e:2x2", (2, 2, 1)),
    "h100": Target("gpu", 79 * GIBIBYTE, "1x1x1"),
}


@dataclasses.dataclass(frozen=True)
class Compiled:
    """Holds what a compiler said of a program; None for what it does not say."""

    why_not: str = ""
    """Why it did not compile, in one line; then nothing else is known."""
    lowering_seconds: float = 0.0
    """Tracing, and lowering to StableHLO."""
    seconds: float = 0.0
    """Compiling."""
    temporary_bytes: int = 0
    argument_bytes: int = 0
    output_bytes: int = 0
    donated_bytes: int = 0
    """Bytes of outputs that are written over arguments."""
    code_bytes: int = 0
    cycles: int | None = None
    collectives: int = 0
    spills: int | None = None
    """Kernels whose registers spill to memory."""
    registers: int | None = None
    """Of a thread of the kernel of one's own, Pallas', that takes most, on a GPU."""
    bundles: int | None = None
    """Instructions of kernels of one's own on a TPU, one a cycle, each loop's body once; of
    a process that was asked for them."""
    work: Work | None = None
    """Kernels, bytes and turns of loops, of a GPU."""

    @property
    def bytes(self) -> int:
        """Returns the bytes that a device needs for the program in all."""
        own = self.argument_bytes + self.output_bytes - self.donated_bytes
        return own + self.temporary_bytes + self.code_bytes


def check_target(name: str) -> None:
    """Raises UserError for an unknown device, or where its compiler is not installed."""
    if name not in TARGETS:
        raise UserError(f"unknown device {name!r}; known: {', '.join(TARGETS)}")
    platform = TARGETS[name].platform
    if importlib.util.find_spec(NEEDS[platform]) is None:
        raise UserError(
            f"no compiler for {name} is installed: pip install '.[{EXTRAS[platform]}]'"
        )


class Compiler:
    """Compiles for one kind of device, in a process of its own.

    Raises UserError as `check_target` does.
    """

    def __init__(self, name: str, with_bundles: bool = False):
        """Asked for bundles, a TPU's compiler writes much, and takes three times as long."""
        check_target(name)
        self._target = TARGETS[name]
        self._process = Process(_write_schedules if with_bundles else _nothing)

    def compile(self, build: Callable, *arguments: Any) -> Compiled:
        """Compiles, as `compile_for` does; a compiler that dies is a `why_not` too."""
        work = (compile_for, self._target, build, *arguments)
        try:
            return self._process.submit(*work).result()
        except concurrent.futures.BrokenExecutor:
            self._process.restart()
            return Compiled(why_not="the compiler died; it may have run out of memory")

    def stop(self) -> None:
        """Ends the process."""
        self._process.stop()


def _nothing():
    pass


def _write_schedules():
    """Has libtpu, which reads this when it starts, write what it compiles."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ[SCHEDULES] = folder
    options = f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true"
    os.environ["LIBTPU_INIT_ARGS"] = options


def compile_for(target: Target, build: Callable, *arguments: Any) -> Compiled:
    """Compiles the function that `build` makes, for devices of a target.

    Args:
      target: the devices.
      build: `build(*arguments, devices)` returns a jitted or pmapped function and the
        shapes of its arguments.
      arguments: given to `build`, before the devices.

    Returns:
      What the compiler says; what it refuses, as `why_not`.
    """
    platforms.compile_for(target.platform)
    try:
        # What compilers say of devices that they look for in vain is no news.
        with _output() as lines, _traced_for(target) as devices:
            compiled = _compile(*build(*arguments, devices), target)
    except Exception as error:
        return Compiled(why_not=_reason(error))
    if target.platform != "gpu":
        return dataclasses.replace(compiled, bundles=_bundles())
    spills = sum("Registers are spilled" in line for line in lines)
    used = re.findall(r"Used (\d+) registers", "\n".join(lines))
    registers = max(map(int, used), default=None)
    return dataclasses.replace(compiled, spills=spills, registers=registers)


@contextlib.contextmanager
def _traced_for(target: Target) -> Iterator[list[jax.Device]]:
    """Gives the devices of a target, which Pallas too takes for those that are there."""
    devices = target.devices()
    mesh = jax.sharding.Mesh(np.array(devices[:1]), ("devices",))
    with contextlib.ExitStack() as stack:
        if target.platform == "tpu" and target.count == 1:
            stack.enter_context(jax.sharding.use_abstract_mesh(mesh.abstract_mesh))
        yield devices


def _bundles() -> int | None:
    """Returns the bundles of the kernels of one's own compiled since; None if none are written."""
    folder = os.environ.get(SCHEDULES)
    if folder is None:
        return None
    total = 0
    for path in Path(folder).iterdir():
        if path.name.endswith("schedule-analysis_final_bundles.txt"):
            found = re.search(r"\[opcode\]\s+(\d+) .*: custom-call", path.read_text())
            total += int(found[1]) if found else 0
        path.unlink()
    return total


def _compile(function, arguments, target):
    begin = time.perf_counter()
    # A pmapped function has no trace, and takes its platform from its devices.
    if hasattr(function, "trace"):
        platform = "cuda" if target.platform == "gpu" else target.platform
        lowered = function.trace(*arguments).lower(lowering_platforms=(platform,))
    else:
        lowered = function.lower(*arguments)
    lowered_at = time.perf_counter()
    compiled = lowered.compile()
    seconds = time.perf_counter() - lowered_at
    memory = compiled.memory_analysis()
    text = compiled.as_text()
    # An asynchronous collective has a start and an end.
    collective = rf" (?:{'|'.join(COLLECTIVES)})(?:-start)?\("
    return Compiled(
        lowering_seconds=lowered_at - begin,
        seconds=seconds,
        temporary_bytes=memory.temp_size_in_bytes,
        argument_bytes=memory.argument_size_in_bytes,
        output_bytes=memory.output_size_in_bytes,
        donated_bytes=memory.alias_size_in_bytes,
        code_bytes=memory.generated_code_size_in_bytes,
        cycles=None if target.platform == "gpu" else _cycles(text),
        collectives=len(re.findall(collective, text)),
        work=work_of(text) if target.platform == "gpu" else None,
    )


def _cycles(text):
    return sum(map(int, re.findall(r'"estimated_cycles":"(\d+)"', text)))


@contextlib.contextmanager
def _output() -> Iterator[list[str]]:
    """Collects what this process, compilers too, writes in the block."""
    lines = []
    kept = {place: os.dup(place) for place in (1, 2)}
    with tempfile.TemporaryFile("w+", errors="replace") as file:
        for place in kept:
            os.dup2(file.fileno(), place)
        try:
            yield lines
        finally:
            for place, own in kept.items():
                os.dup2(own, place)
                os.close(own)
            file.seek(0)
            lines += file.read().splitlines()


def _reason(error):
    """Returns in one line what a compiler refused, with the numbers that it names."""
    text = " ".join(str(error).split())
    used = re.search(r"Used ([\d.]+\w) of ([\d.]+\w) (\w+)\. Exceeded", text)
    if used:
        return f"needs {used[1]} of {used[2]} {used[3]}"
    return f"{type(error).__name__}: {text}"[:LONGEST_MESSAGE]
