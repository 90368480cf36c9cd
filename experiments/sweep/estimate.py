"""Estimates what a sweep will take: parameters, arithmetic, memory and time of each group.

A group is the trials of one compiled program. All comes from settings alone, without the
corpus.
"""

import functools
import time
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import rich.box
import rich.table
import rich.text

from experiments.settings import Settings
from experiments.sweep.plan import Trial, group_trials, trained_once
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

TOKENS = 2048
"""The most tokens of a product that is measured."""

PASSES = 6.5
"""Passes over what a step keeps for the backward pass: the step's time beside products."""


class Estimate(NamedTuple):
    """Holds what one group will take."""

    rows: tuple[str, ...]
    """Labels, or names without their seed."""
    trials: int
    parameters: int
    """Those of a trial, the largest where position tables are trained in some."""
    step: int
    """FLOPs of one step of a trial."""
    work: int
    """FLOPs of all steps of all trials."""
    memory: int
    """Bytes that a trial has at most while it trains; each lane takes as many."""
    seconds: float
    """Time of all training steps on this machine, one trial after the other."""


def estimate_all(trials: Sequence[Trial]) -> list[Estimate]:
    """Estimates the groups of a sweep, see `plan.group_trials`."""
    training = {trial.settings for trial in trained_once(trials)}
    groups = group_trials(trials)
    return [
        estimate(group, [trial for trial in group if trial.settings in training])
        for group in groups
    ]


def estimate(group: Sequence[Trial], trained: Sequence[Trial]) -> Estimate:
    """Estimates trials that can be lanes of one program, of which `trained` make steps."""
    settings = group[0].settings
    step = flops_of_a_step(settings)
    steps = sum(trial.settings.training.steps for trial in trained)
    return Estimate(
        rows=tuple(dict.fromkeys(map(_row_name, group))),
        trials=len(group),
        parameters=max(parameters(trial.settings) for trial in group),
        step=step,
        work=step * steps,
        memory=memory(settings),
        seconds=steps * seconds_of_a_step(settings),
    )


def seconds_of_a_step(settings: Settings) -> float:
    """Estimates the seconds of a training step on this machine.

    FLOPs over the speed of products + PASSES · `cost.activation_memory` over the speed of
    passes, both measured here in a moment. PASSES is fitted to four steps of quick.py on one
    CPU core, at d_model 64 to 256, and meets each within 7 %. On an accelerator small models
    take longer: starting its kernels is not counted.
    """
    # Nothing larger than what speeds depend on is measured: it might not fit.
    m = shape_of(settings.model)
    t = settings.training
    tokens = min(TOKENS, t.batch_size * t.sequence_length)
    inner = min(m.d_model, WIDE)
    # A recurrent model has no d_ff.
    outer = min(m.d_ff or m.d_model, WIDE)
    shapes = (tokens, inner), (inner, outer)
    product_time = _fastest(jnp.matmul, *shapes, dtype=t.precision)
    product_speed = 2 * tokens * inner * outer / product_time
    pass_time = _fastest(jnp.exp, (PASS,), dtype=t.precision)
    pass_speed = PASS * jnp.dtype(t.precision).itemsize / pass_time
    products = flops_of_a_step(settings) / product_speed
    # That memory is of one part of a batch, and a step computes them all.
    passes = PASSES * activation_memory(settings) * t.accumulate / pass_speed
    return (products + passes) / _devices()


def table(estimates: Sequence[Estimate], count: int) -> rich.table.Table:
    """Draws the first `count` groups as a person reads them."""
    drawn = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    drawn.add_column("group")
    for heading in ("trials", "parameters", "FLOPs a step", "FLOPs", "memory", "time"):
        drawn.add_column(heading, justify="right", no_wrap=True)
    for group in estimates[:count]:
        drawn.add_row(
            rich.text.Text(_few(group.rows)),
            f"{group.trials:,}",
            f"{group.parameters:,}",
            _flops(group.step),
            _flops(group.work),
            format_bytes(group.memory),
            _duration(group.seconds),
        )
    return drawn


def totals(estimates: Sequence[Estimate]) -> str:
    """Says in one line what all groups take together."""
    work = sum(group.work for group in estimates)
    seconds = sum(group.seconds for group in estimates)
    device = f"{_devices()} × {jax.local_devices()[0].device_kind}"
    return (
        f"about {_flops(work)} FLOPs, {_duration(seconds)} of training steps on {device}, "
        "one trial after the other; compiling and evaluating come on top"
    )


def _row_name(trial):
    point = {key: value for key, value in trial.point.items() if key != "seed"}
    return trial.label or describe_point(point)


def _devices():
    """Counts the devices that make this machine faster: a CPU is one, however it is split."""
    return 1 if jax.default_backend() == "cpu" else jax.local_device_count()


@functools.cache
def _fastest(function, *shapes, dtype):
    """Returns the seconds of one call on arrays of these shapes: the fastest of some."""
    compiled = jax.jit(function)
    arrays = [jnp.ones(shape, dtype) for shape in shapes]
    # The first call compiles.
    jax.block_until_ready(compiled(*arrays))
    times = []
    end = time.perf_counter() + 0.05
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        jax.block_until_ready(compiled(*arrays))
        times.append(time.perf_counter() - start)
    # The fastest, because other work on the machine only ever slows a call.
    return min(times)


def _few(rows):
    more = f" and {len(rows) - 3} more" if len(rows) > 3 else ""
    return ", ".join(rows[:3]) + more


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
