"""Builds the programs of trials that are compiled: a step, perplexity, a search."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.data.batches import Batch, Corpus, Sentences
from experiments.evaluation.decode import search_batch, search_of
from experiments.optim import moment_shapes
from experiments.settings import Settings
from experiments.sweep.plan import Trial
from experiments.training.population import LONGEST_DISPATCH
from experiments.trial.cost import all_variable_shapes, program_without_corpus
from experiments.trial.lanes import Lanes, on_devices, over_lanes
from experiments.trial.program import State, hyper_of
from experiments.trial.step import token_losses, train_steps
from launch.bench.compile.case import ProgramCase
from launch.bench.compile.configs import plan

PAIRS = 30_000
"""Pairs of the corpus that lies on a device beside the program."""
TOKENS = 30
"""Tokens of each of its sentences."""
LEAST_TOKENS = 4
"""Tokens of the shortest: so many pairs may stand in a row."""


def build(case: ProgramCase, devices: list[jax.Device]):
    """Returns a jitted function and the shapes of its arguments."""
    settings = trial(case).settings
    lanes = Lanes(case.lanes, case.strategy, tuple(devices))
    if case.part == "step":
        return _step(settings, lanes)
    return _evaluation(case.part, settings, lanes)


def step(settings: Settings, count: int, devices: list[jax.Device]):
    """Returns a jitted step of so many lanes, and the shapes of its arguments."""
    return _step(settings, Lanes(count, settings.training.strategy, tuple(devices)))


def trial(case: ProgramCase) -> Trial:
    """Returns the trial whose program a case is."""
    return plan(case.config, [dict(case.point)])[0]


def _step(settings, lanes):
    program = program_without_corpus(settings)
    t = settings.training
    groups = lanes.groups
    devices = lanes.mesh.size
    own_lanes = lanes.count // groups
    # A single lane shares its rows with all devices, others have theirs on one.
    rows = t.batch_size // devices if lanes.count == 1 else t.batch_size
    places = t.sequence_length // LEAST_TOKENS
    slots = _integers(devices, own_lanes, LONGEST_DISPATCH, rows, places)
    state = _with_axes(_state(settings, program), groups, own_lanes)
    hyper = _with_axes(jax.eval_shape(lambda: hyper_of(settings)), groups, own_lanes)
    steps = functools.partial(train_steps, program)
    arguments = (state, hyper, _corpus(), slots, _integers())
    return on_devices(steps, lanes), arguments


def _evaluation(part, settings, lanes):
    program = program_without_corpus(settings)
    state = _state(settings, program)
    state = _with_axes(state, lanes.groups, lanes.count // lanes.groups)
    size = settings.evaluation.batch_size
    shape = (size, program.length)
    if part == "losses":
        function = functools.partial(token_losses, program)
        shared = [Batch(*[_integers(*shape)] * len(Batch._fields))]
    else:
        how = search_of(settings.evaluation)
        function = functools.partial(search_batch, program, how, ())
        shared = [_integers(*shape), _integers(size)]
    arguments = _on(lanes.mesh.devices.flat[0], (state, *shared))
    return over_lanes(function, lanes), arguments


def _state(settings, program):
    """Returns the shapes of a trial's state."""
    variables = all_variable_shapes(program)
    trainable = dict(params=variables["params"], positions=variables["positions"])
    moments = moment_shapes(program.recipe, trainable)
    average = trainable if settings.training.ema else ()
    return State(step=_integers(), **trainable, moments=moments, ema=average)


def _corpus():
    ids = _integers(PAIRS * TOKENS)
    number = _integers(PAIRS)
    sentences = Sentences(ids, number, number)
    return Corpus(sentences, sentences)


def _integers(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _with_axes(tree, groups, lanes):
    """Returns shapes with the axes of groups and lanes before their own."""

    def stacked(leaf):
        return jax.ShapeDtypeStruct((groups, lanes, *leaf.shape), np.dtype(leaf.dtype))

    return jax.tree.map(stacked, tree)


def _on(device, tree):
    """Returns shapes of arrays that lie on a device."""
    sharding = jax.sharding.SingleDeviceSharding(device)
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        tree,
    )
