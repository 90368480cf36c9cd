"""What a sweep will take, before it is run: parameters, arithmetic, memory and time of each group of trials.

A group is the trials of one compiled program. All is reckoned from settings alone, without the corpus.
"""

import dataclasses
import functools
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import rich.box
import rich.table
import rich.text

from attn.attention import SMALL
from experiments import flops, sweep, trial
from experiments.planner import Machine, Way
from experiments.settings import Settings, SettingsError
from experiments.sweep import Planned

LOGITS = 2**22
"""What objective.py has at once of them."""
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
    names = (one.label or sweep.describe({k: v for k, v in one.point.items() if k != "seed"}) for one in group)
    steps = sum(one.settings.training.steps for one in group)
    return Estimate(tuple(dict.fromkeys(names)), len(group), max(parameters(one.settings) for one in group), step,
                    step * steps, memory(settings), steps * seconds_of_a_step(settings))


def parameters(settings: Settings) -> int:
    """How many numbers are trained. Learned positions may be more, where the corpus has sentences longer than a row."""
    program = sweep.program(settings)
    shapes = sweep.variables(program)
    once = sum(leaf.size for leaf in jax.tree.leaves(shapes["params"]))
    layer = sum(leaf.size for leaf in jax.tree.leaves([x for name, x in shapes["params"].items() if name[-2:] == "_0"]))
    tables = len(shapes["positions"]) * program.length * settings.model.d_model if trial.table(settings).trained else 0
    return once + (settings.model.N - 1) * layer + tables


def flops_of_a_step(settings: Settings) -> int:
    """As `flops.of_training` counts, for rows that one pair fills each: packed pairs need less for attention."""
    t = settings.training
    whole = [t.row_pieces] * t.rows
    return flops.of_training(sweep.program(settings), whole, whole)


def memory(settings: Settings, devices: int = 1) -> int:
    """Bytes of one trial while it trains, on each of the devices its rows are split over, with P parameters: its share
    of what is `kept`, and

        4·P·(parameters and gradients 2, Adam's moments 2, moving average 1)
    """
    t = settings.training
    return 4 * parameters(settings) * (2 + 2 * (t.optimizer == "adam") + (t.ema > 0)) + kept(settings) // devices


def translating(settings: Settings) -> int:
    """Bytes of a search at least: parameters, the encoder's widest layer, all caches, hypotheses and their logits.

        4·P + B·(4·L·d_ff + 4·N·h·(d_k + d_v)·(T·K + L) + T·K² + 4·K·Y)

    B sentences at once, K = beam, T pieces of a translation, L of a source, Y = vocabulary.
    """
    m, e, length = settings.model, settings.evaluation, sweep.program(settings).length
    caches = m.N * m.h * (m.d_k + m.d_v) * (e.max_pieces * e.beam + length)
    return 4 * parameters(settings) + e.rows * (
        4 * (length * m.d_ff + caches + e.beam * settings.data.vocabulary) + e.max_pieces * e.beam**2)


def showing(settings: Settings) -> int:
    """Bytes of the attention weights that examples for the report have at least: 3·4·N·h·L² each."""
    return 12 * settings.evaluation.examples * settings.model.N * settings.model.h * sweep.program(settings).length**2


def check_memory(settings: Settings, machine: Machine, way: Way = Way("one after another", 1, 1)) -> None:
    """Raises SettingsError for trials that cannot fit, run in this way; it names a setting that would do.

    An accelerator is believed up to twice what it has: `kept` is fitted to a CPU, and other compilers keep less.
    """
    if machine.memory is None:
        return
    cpu = machine.backend == "cpu"
    have = machine.memory if cpu else 2 * machine.memory
    split = 1 if cpu or way.lanes > 1 else machine.devices  # devices of a CPU share its memory
    at_once = way.workers * (way.lanes if cpu else -(-way.lanes // machine.devices))
    there = f"and {'this machine' if cpu else 'a device'} has {_bytes(machine.memory)}"
    need = memory(settings, split)
    if at_once > 1 and at_once * need > have >= need:
        raise SettingsError(f"{at_once} trials at once need about {_bytes(at_once * need)} of memory {there}; "
                            "--workers=1 --lanes=1 runs one at a time")
    if need > have:
        raise SettingsError(f"training needs about {_bytes(need)} of memory {there}; "
                            + remedy(settings, need - have, split))
    e, (searched, shown) = settings.evaluation, (translating(settings), showing(settings))
    if searched > have:
        raise SettingsError(f"translating evaluation.rows={e.rows} sentences with evaluation.beam={e.beam} needs "
                            f"{_bytes(searched)} of memory or more {there}; lower one of them")
    if shown > have:
        raise SettingsError(f"the attention of evaluation.examples={e.examples} takes {_bytes(shown)} of memory or "
                            f"more {there}; lower it")


def remedy(settings: Settings, lacking: int, devices: int) -> str:
    """The least change with which training that lacks so many bytes on each device should fit."""
    t, now = settings.training, kept(settings) // devices
    for parts in range(t.accumulate + 1, t.rows // devices + 1):
        if t.rows % (devices * parts) == 0:
            smaller = dataclasses.replace(settings, training=dataclasses.replace(t, accumulate=parts))
            if now - kept(smaller) // devices >= lacking:
                return f"training.accumulate={parts} should fit"
    return "a smaller model should fit, or a smaller training.rows times training.row_pieces"


def kept(settings: Settings) -> int:
    """Bytes that the forward pass keeps for the backward pass.

    With S pieces a side of what is computed at once (rows · row_pieces / accumulate), T = row_pieces, D = d_model,
    Y = vocabulary, b = 4 bytes or 2 in bfloat16:

        b·S·N·(20·D + 4·d_ff + 3·h·(2·(d_k + d_v) + 2.5·T)) + 4·min(S·Y, 2²²)

    The term with T is of textbook attention, and not there for rows of more than 256 pieces; the last is of the logits,
    in chunks. With remat one layer stands in the place of N, and N inputs, 2·D each, beside it. The factors are fitted
    to what XLA says of quick.py's step on a CPU (45 MiB of temporaries), changed in one setting at a time: within 10 %.
    But on a CPU bfloat16 is computed in float32, and remat undone: there they need as much as without.
    """
    m, t = settings.model, settings.training
    pieces = t.rows * t.row_pieces // t.accumulate
    weights = 2.5 * t.row_pieces if t.row_pieces**2 <= SMALL else 0
    layer = 20 * m.d_model + 4 * m.d_ff + 3 * m.h * (2 * (m.d_k + m.d_v) + weights)
    floats = layer + 2 * m.N * m.d_model if t.remat else m.N * layer
    logits = min(pieces * settings.data.vocabulary, LOGITS)
    return int(pieces * floats * (2 if t.precision == "bfloat16" else 4) + 4 * logits)


def seconds_of_a_step(settings: Settings) -> float:
    """FLOPs over the speed of products + PASSES · `kept` over the speed of passes, both measured here in a moment.

    PASSES is fitted to four steps of quick.py on one CPU core, at d_model 64 to 256, and meets each within 7 %. On an
    accelerator small models take longer: starting its kernels is not reckoned.
    """
    m, t = settings.model, settings.training
    pieces, inner, outer = min(2048, t.rows * t.row_pieces), min(m.d_model, WIDE), min(m.d_ff, WIDE)
    product = 2 * pieces * inner * outer / _fastest(jnp.matmul, (pieces, inner), (inner, outer), dtype=t.precision)
    passes = PASS * jnp.dtype(t.precision).itemsize / _fastest(jnp.exp, (PASS,), dtype=t.precision)
    return (flops_of_a_step(settings) / product + PASSES * kept(settings) * t.accumulate / passes) / _devices()


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
        drawn.add_row(rich.text.Text(_few(one.rows)), f"{one.trials:,}", f"{one.parameters:,}", _flops(one.step),
                      _flops(one.work), _bytes(one.memory), _duration(one.seconds))
    return drawn


def totals(found: list[Estimate]) -> str:
    """One line that says of how much all this is."""
    work, seconds = sum(one.work for one in found), sum(one.seconds for one in found)
    device = f"{_devices()} × {jax.local_devices()[0].device_kind}"
    return (f"about {_flops(work)} FLOPs, {_duration(seconds)} of training steps on {device}, one trial after the "
            "other; compiling and evaluating come on top")


def _few(rows):
    return ", ".join(rows[:3]) + (f" and {len(rows) - 3} more" if len(rows) > 3 else "")


def _flops(count):
    for unit in ("", "k", "M", "G", "T", "P"):
        if count < 999.5:
            return f"{count:.3g} {unit}".rstrip()
        count /= 1000
    return f"{count:,.3g} E"


def _bytes(count):
    return f"{count / 2**20:,.0f} MiB" if count < 2**30 else f"{count / 2**30:,.1f} GiB"


def _duration(seconds):
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.0f} s"
