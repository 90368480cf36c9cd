"""Estimates what a sweep will take: parameters, arithmetic, memory and time of each group.

A group is the trials of one compiled program. All comes from settings alone, without the
corpus. What a group's variants do not state is unknown, never a number.
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

from experiments.errors import few
from experiments.settings import Settings
from experiments.sweep.plan import Trial, group_trials, trained_once
from experiments.sweep.points import describe_point
from experiments.trial.cost import (
    activation_memory,
    assumed_flops_of_a_step,
    flops_of_a_step,
    format_bytes,
    memory,
    parameters,
)

PASS = 2**20
"""Numbers in a pass whose speed is measured."""

WIDE = 4096
"""Matrices are as fast from here on; wider ones might not fit."""

TOKENS = 2048
"""The most tokens of a product that is measured."""

UNKNOWN = "unknown"

PASSES = 6.5
"""Passes over what a step keeps for the backward pass: the step's time beside products."""


class Estimate(NamedTuple):
    """Holds what one group will take; None is unknown."""

    rows: tuple[str, ...]
    """Labels, or names without their seed."""
    trials: int
    parameters: int | None
    """Those of a trial, the largest where position tables are trained in some."""
    step: int | None
    """FLOPs of one step of a trial."""
    work: int | None
    """FLOPs of all steps of all trials."""
    memory: int | None
    """Bytes that a trial has at most while it trains; each lane takes as many."""
    seconds: float | None
    """Time of all training steps on this machine, one trial after the other."""
    unknown: tuple[str, ...] = ()
    """What is unknown, and why."""


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
    bytes_of_one = memory(settings)
    counts = [parameters(trial.settings) for trial in group]
    steps = sum(trial.settings.training.steps for trial in trained)
    # Its passes are over what is in memory.
    is_timed = bytes_of_one is not None
    return Estimate(
        rows=tuple(dict.fromkeys(map(_row_name, group))),
        trials=len(group),
        parameters=None if None in counts else max(counts),
        step=step,
        work=None if step is None else step * steps,
        memory=bytes_of_one,
        seconds=steps * seconds_of_a_step(settings) if is_timed else None,
        unknown=_reasons(settings, step),
    )


def _reasons(settings, step):
    """Says why something is unknown of such trials."""
    data = settings.data
    if not data.has_set_vocabulary:
        return (f"the number of tokens of data.corpus={data.corpus} before it is read",)
    reasons = []
    parts = ", ".join(part.name for part in settings.outside(["model"]))
    if step is None:
        variants = parts or f"model.kind={settings.model.kind}"
        reasons.append(
            f"FLOPs with {variants}: a method `products` states them (CONTRIBUTING.md)"
        )
    if parts:
        reasons.append(f"memory and time with {parts}, which are not the library's")
    return tuple(reasons)


def seconds_of_a_step(settings: Settings) -> float:
    """Estimates the seconds of a training step on this machine.

    It is of no use where FLOPs or memory are unknown.

    FLOPs over the speed of products + PASSES · `cost.activation_memory` over the speed of
    passes, both measured here in a moment. PASSES is fitted to four steps of quick.py on one
    CPU core, at d_model 64 to 256, and meets each within 7 %. On an accelerator small models
    take longer: starting its kernels is not counted.
    """
    # Nothing larger than what speeds depend on is measured: it might not fit.
    m = settings.model
    t = settings.training
    tokens = min(TOKENS, t.batch_size * t.sequence_length)
    inner = min(m.d_model, WIDE)
    # A recurrent model has no d_ff.
    outer = min(getattr(m, "d_ff", m.d_model), WIDE)
    shapes = (tokens, inner), (inner, outer)
    product_time = _fastest(jnp.matmul, *shapes, dtype=t.precision)
    product_speed = 2 * tokens * inner * outer / product_time
    pass_time = _fastest(jnp.exp, (PASS,), dtype=t.precision)
    pass_speed = PASS * jnp.dtype(t.precision).itemsize / pass_time
    products = assumed_flops_of_a_step(settings) / product_speed
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
            rich.text.Text(few(group.rows)),
            f"{group.trials:,}",
            _shown(group.parameters, "{:,}".format),
            _shown(group.step, _flops),
            _shown(group.work, _flops),
            _shown(group.memory, format_bytes),
            _shown(group.seconds, duration),
        )
    return drawn


def _shown(value, text_of):
    return UNKNOWN if value is None else text_of(value)


def totals(estimates: Sequence[Estimate]) -> str:
    """Says in one line what all groups take together."""
    works = [group.work for group in estimates if group.work is not None]
    times = [group.seconds for group in estimates if group.seconds is not None]
    device = f"{_devices()} × {jax.local_devices()[0].device_kind}"
    flops = f"about {_flops(sum(works))} FLOPs" if works else "FLOPs unknown"
    time_text = duration(sum(times)) if times else "unknown time"
    text = (
        f"{flops}, {time_text} of training steps on {device}, "
        "one trial after the other; compiling and evaluating come on top"
    )
    left = len(estimates) - len(times)
    if left and times:
        text += f"; without what is unknown of {left} of {len(estimates)} groups"
    return text


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


def _flops(count):
    for unit in ("", "k", "M", "G", "T", "P"):
        if count < 999.5:
            return f"{count:.3g} {unit}".rstrip()
        count /= 1000
    return f"{count:,.3g} E"


def duration(seconds: float) -> str:
    """Returns seconds as a person says them: "90 s", "2.5 min", "8.0 h", "2.1 days"."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.0f} s"
