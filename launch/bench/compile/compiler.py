"""Compiles one case for one target, in a process of its own, and reads the program.

Memory is of one device. On a TPU it is HBM alone: what the compiler keeps in vector memory
is in no account. Cycles are the compiler's own estimates for each operation, with the body
of a loop counted once; so are FLOPs.
"""

import contextlib
import dataclasses
import functools
import os
import re
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import jax

from attn import platforms
from experiments.settings import Settings
from launch.bench.compile import attention, training
from launch.bench.compile.case import AttentionCase
from launch.bench.compile.targets import TARGETS, Target
from launch.bench.harness.process import one_line

COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
)


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
    flops: float | None = None
    collectives: int = 0
    spills: int | None = None
    """Kernels whose registers spill to memory."""
    is_cudnn: bool = False
    """Whether cuDNN computes the attention."""

    @property
    def bytes(self) -> int:
        """Returns the bytes that a device needs for the program in all."""
        own = self.argument_bytes + self.output_bytes - self.donated_bytes
        return own + self.temporary_bytes + self.code_bytes


@dataclasses.dataclass(frozen=True)
class Compiler:
    """Compiles for one target."""

    target: Target

    def compile(self, case) -> Compiled:
        """Compiles a case; what the compiler refuses comes back as `why_not`."""
        family = attention if isinstance(case, AttentionCase) else training
        return self._compile(functools.partial(family.build, case))

    def compile_step(self, settings: Settings, lanes: int) -> Compiled:
        """Compiles the step of a trial, of so many lanes, as `compile` does."""
        return self._compile(functools.partial(training.step, settings, lanes))

    def _compile(self, build):
        platforms.compile_for(self.target.platform)
        try:
            # What compilers say of devices that they look for in vain is no news.
            with _stderr() as lines:
                function, arguments = build(self.target.devices())
                compiled = _compile(function, arguments, self.target)
        except jax.errors.JaxRuntimeError as error:
            return Compiled(why_not=_reason(error))
        if self.target.platform != "gpu":
            return compiled
        return dataclasses.replace(compiled, spills=_count_spills(lines))


# An object for each name, as the harness loads adapters.
ADAPTERS = {name: Compiler(target) for name, target in TARGETS.items()}


def _compile(function, arguments: Any, target: Target) -> Compiled:
    begin = time.perf_counter()
    # A pmapped function has no trace, and takes its platform from its devices.
    if hasattr(function, "trace"):
        traced = function.trace(*arguments)
        lowered = traced.lower(lowering_platforms=(target.lowering,))
    else:
        lowered = function.lower(*arguments)
    lowered_at = time.perf_counter()
    compiled = lowered.compile()
    seconds = time.perf_counter() - lowered_at
    memory = compiled.memory_analysis()
    text = compiled.as_text()
    is_gpu = target.platform == "gpu"
    return Compiled(
        lowering_seconds=lowered_at - begin,
        seconds=seconds,
        temporary_bytes=memory.temp_size_in_bytes,
        argument_bytes=memory.argument_size_in_bytes,
        output_bytes=memory.output_size_in_bytes,
        donated_bytes=memory.alias_size_in_bytes,
        code_bytes=memory.generated_code_size_in_bytes,
        cycles=None if is_gpu else _cycles(text),
        flops=None if is_gpu else _flops(compiled),
        collectives=_count_collectives(text),
        is_cudnn="__cudnn$fmha" in text,
    )


def _cycles(text):
    return sum(map(int, re.findall(r'"estimated_cycles":"(\d+)"', text)))


def _flops(compiled):
    costs = compiled.cost_analysis()
    # A list of one in earlier versions of JAX.
    costs = costs[0] if isinstance(costs, list) else costs
    return costs.get("flops") if costs else None


def _count_collectives(text):
    # An asynchronous one has a start and an end.
    names = "|".join(COLLECTIVES)
    return len(re.findall(rf" (?:{names})(?:-start)?\(", text))


def _count_spills(lines):
    return sum("Registers are spilled" in line for line in lines)


@contextlib.contextmanager
def _stderr() -> Iterator[list[str]]:
    """Collects what this process, compilers too, writes to stderr in the block."""
    lines = []
    kept = os.dup(2)
    with tempfile.TemporaryFile("w+", errors="replace") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            lines += file.read().splitlines()


def _reason(error):
    """Returns what a compiler refused, with the numbers that it names."""
    text = str(error)
    used = re.search(r"Used ([\d.]+\w) of ([\d.]+\w) (\w+)\. Exceeded", text)
    if used:
        return f"needs {used[1]} of {used[2]} {used[3]}"
    return one_line(error)
