"""What a sweep will take, before it is run: parameters, arithmetic, memory and time of each group of trials.

A group is the trials of one compiled program. All is reckoned from settings alone, without the corpus.
"""

import functools
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import rich.text

from experiments.settings import Settings
from experiments.sweep.plan import Planned
from experiments.sweep.points import describe_point
from experiments.trial.cost import (
    activation_memory,
    flops_of_a_step,
    format_bytes,
    memory,
    parameters,
)
from experiments.trial.program import shape_of

PASS = 2**20
"""Numbers in a pass whose speed is measured."""


WIDE = 4096
"""Matrices are as fast from here on; wider ones might not fit."""


PASSES = 6.5
"""What the rest of a training step takes beside its products, in passes over what it keeps for the backward pass."""


class Estimate(NamedTuple):
    """Of one group."""

    rows: tuple[str, ...]
    """Labels, or names without their seed."""
    trials: int
    parameters: int
    """Of a trial, the largest where position tables are trained in some."""
    step: int
    """FLOPs of one step of a trial."""
    work: int
    """FLOPs of all steps of all trials."""
    memory: int
    """Bytes that a trial has at most while it trains; as many times that as it has lanes."""
    seconds: float
    """Of all its training steps on this machine, one trial after the other."""


def estimate(group: list[Planned]) -> Estimate:
    """Of trials that can be lanes of one program, see `sweep.groups`."""
    settings = group[0].settings
    step = flops_of_a_step(settings)
    names = (
        one.label or describe_point({k: v for k, v in one.point.items() if k != "seed"})
        for one in group
    )
    steps = sum(one.settings.training.steps for one in group)
    return Estimate(
        tuple(dict.fromkeys(names)),
        len(group),
        max(parameters(one.settings) for one in group),
        step,
        step * steps,
        memory(settings),
        steps * seconds_of_a_step(settings),
    )


def seconds_of_a_step(settings: Settings) -> float:
    """FLOPs over the speed of products + PASSES · `kept` over the speed of passes, both measured here in a moment.

    PASSES is fitted to four steps of quick.py on one CPU core, at d_model 64 to 256, and meets each within 7 %. On an
    accelerator small models take longer: starting its kernels is not reckoned.
    """
    m = shape_of(settings.model)
    t = settings.training
    tokens, inner, outer = (
        min(2048, t.batch_size * t.sequence_length),
        min(m.d_model, WIDE),
        min(m.d_ff or m.d_model, WIDE),
    )
    product = (
        2
        * tokens
        * inner
        * outer
        / _fastest(jnp.matmul, (tokens, inner), (inner, outer), dtype=t.precision)
    )
    passes = (
        PASS
        * jnp.dtype(t.precision).itemsize
        / _fastest(jnp.exp, (PASS,), dtype=t.precision)
    )
    return (
        flops_of_a_step(settings) / product
        + PASSES * activation_memory(settings) * t.accumulate / passes
    ) / _devices()


def _devices():
    """Those of this machine that make it faster: a CPU is one, whatever it is told to look like."""
    return 1 if jax.default_backend() == "cpu" else jax.local_device_count()


@functools.cache
def _fastest(function, *shapes, dtype):
    """Seconds of one call on arrays of these shapes: the fastest of some."""
    function, arrays = jax.jit(function), [jnp.ones(shape, dtype) for shape in shapes]
    jax.block_until_ready(function(*arrays))
    found, end = [], time.perf_counter() + 0.05
    while len(found) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        jax.block_until_ready(function(*arrays))
        found.append(time.perf_counter() - start)
    return min(found)


def table(found: list[Estimate], most: int) -> rich.table.Table:
    """The first `most` groups as a person reads them."""
    drawn = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    drawn.add_column("group")
    for heading in ("trials", "parameters", "FLOPs a step", "FLOPs", "memory", "time"):
        drawn.add_column(heading, justify="right", no_wrap=True)
    for one in found[:most]:
        drawn.add_row(
            rich.text.Text(_few(one.rows)),
            f"{one.trials:,}",
            f"{one.parameters:,}",
            _flops(one.step),
            _flops(one.work),
            format_bytes(one.memory),
            _duration(one.seconds),
        )
    return drawn


def totals(found: list[Estimate]) -> str:
    """One line that says of how much all this is."""
    work, seconds = sum(one.work for one in found), sum(one.seconds for one in found)
    device = f"{_devices()} × {jax.local_devices()[0].device_kind}"
    return (
        f"about {_flops(work)} FLOPs, {_duration(seconds)} of training steps on {device}, one trial after the "
        "other; compiling and evaluating come on top"
    )


def _few(rows):
    return ", ".join(rows[:3]) + (f" and {len(rows) - 3} more" if len(rows) > 3 else "")


def _flops(count):
    for unit in ("", "k", "M", "G", "T", "P"):
        if count < 999.5:
            return f"{count:.3g} {unit}".rstrip()
        count /= 1000
    return f"{count:,.3g} E"


def _duration(seconds):
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.0f} s"
