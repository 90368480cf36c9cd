"""Compiles a trial's training step for a device that need not be here, and says what fits."""

import functools
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from experiments import optim
from experiments.data.batches import Corpus, Sentences
from experiments.settings import Settings
from experiments.sweep.plan import Trial
from experiments.sweep.schedule import layouts
from experiments.system.compiler import TARGETS, Compiler
from experiments.system.machine import Machine
from experiments.training.population import LONGEST_DISPATCH
from experiments.trial.cost import (
    all_variable_shapes,
    format_bytes,
    program_without_corpus,
)
from experiments.trial.lanes import Lanes, on_devices
from experiments.trial.program import State, hyper_of
from experiments.trial.step import train_steps

PAIRS = 30_000
"""Pairs of the corpus that lies on a device beside the program."""
TOKENS = 30
"""Tokens of each of its sentences."""
LEAST_TOKENS = 4
"""Tokens of the shortest sentence, which sets how many pairs a row may hold."""


def fits(device: str, groups: Sequence[list[Trial]]) -> Iterator[str]:
    """Says of each group in a line what fits; the trials of a group share a program.

    The most lanes that the runner would try are compiled first, then fewer, until they
    fit. Raises UserError where nothing compiles for the device.
    """
    compiler = Compiler(device)
    try:
        for group in groups:
            name = group[0].label or group[0].name
            yield f"{device}: {name}: {_say(compiler, TARGETS[device], group)}"
    finally:
        compiler.stop()


def _say(compiler, target, group):
    why_not = ""
    # One lane comes last: it has the rows of a batch on all devices.
    for count in _lanes(target, len(group)):
        compiled = compiler.compile(step, group[0].settings, count)
        needed = (
            f"{format_bytes(compiled.bytes)} of {format_bytes(target.memory)} a device"
        )
        if not compiled.why_not and compiled.bytes <= target.memory:
            lanes = "1 trial at a time" if count == 1 else f"{count} lanes"
            return f"fits with {lanes}: {needed}{_work(compiled.work)}"
        why_not = compiled.why_not or f"needs {needed}"
    return f"does not fit: {why_not}"


def _work(work):
    """Says what a step does, where the compiler says it."""
    if work is None:
        return ""
    return f"; a step moves {work.bytes / 1e9:.3g} GB in {work.kernels:,} kernels"


def _lanes(target, trials):
    machine = Machine(target.platform, target.count, cores=1, memory=target.memory)
    counts = {layout.lanes for layout in layouts(machine, trials)}
    return sorted(counts, reverse=True)


def step(settings: Settings, count: int, devices: list[jax.Device]):
    """Returns a jitted step of `count` lanes, and the shapes of its arguments."""
    lanes = Lanes(count, settings.training.strategy, tuple(devices))
    program = program_without_corpus(settings)
    t = settings.training
    device_count = lanes.mesh.size
    own_lanes = count // lanes.groups
    # A single lane shares its rows with all devices, others have theirs on one.
    rows = t.batch_size // device_count if count == 1 else t.batch_size
    places = t.sequence_length // LEAST_TOKENS
    slots = integers(device_count, own_lanes, LONGEST_DISPATCH, rows, places)
    hyper = jax.eval_shape(lambda: hyper_of(settings))
    ids = integers(PAIRS * TOKENS)
    sentences = Sentences(ids, integers(PAIRS), integers(PAIRS))
    arguments = (
        in_lanes(state_shapes(settings, program), lanes),
        in_lanes(hyper, lanes),
        Corpus(sentences, sentences),
        slots,
        integers(),
    )
    return on_devices(functools.partial(train_steps, program), lanes), arguments


def state_shapes(settings: Settings, program) -> State:
    """Returns the shapes of a trial's state."""
    variables = all_variable_shapes(program)
    trainable = dict(params=variables["params"], positions=variables["positions"])
    moments = optim.moment_shapes(program.recipe, trainable)
    average = trainable if settings.training.ema else ()
    numbers = variables["numbers"]
    return State(integers(), **trainable, moments=moments, ema=average, numbers=numbers)


def integers(*shape: int) -> jax.ShapeDtypeStruct:
    """Returns the shape of an array of int32."""
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def in_lanes(tree, lanes: Lanes):
    """Returns shapes with the axes of groups and lanes before their own."""
    axes = (lanes.groups, lanes.count // lanes.groups)

    def stacked(leaf):
        return jax.ShapeDtypeStruct((*axes, *leaf.shape), np.dtype(leaf.dtype))

    return jax.tree.map(stacked, tree)
