"""Where JAX's default is float64, a trial computes in what its settings say all the same."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn.jax_versions import enable_x64
from experiments.data.batches import Encoded, assemble, corpus
from experiments.settings import default_config, resolve
from experiments.trial.lanes import AXIS
from experiments.trial.program import hyper_of, initial_state, program_of
from experiments.trial.step import token_losses, train_step
from tests.cases import the_rest_in_ci
from tests.experiments.variants import LANGUAGE, LAYERS

TOKENS = 12
SIZES = {
    "training.sequence_length": TOKENS,
    "data.max_length": TOKENS,
    "model.N": 1,
    "model.d_model": 8,
}
KINDS = {
    # With initial values of every kind: matrices, tables, biases, a score, a normaliser.
    "language": {**LANGUAGE, "model.positions": "relative", "model.normaliser": "sink"},
    "transformer": {**LAYERS, "model.positions": "learned", "model.score": "additive"},
    "rnn": {"model.kind": "rnn"},
}


@pytest.mark.parametrize("kind", the_rest_in_ci([*KINDS], first=1))
def test_parameters_and_a_step_are_float32(kind):
    settings = resolve(default_config(), {**SIZES, **KINDS[kind]})
    program = program_of(settings, 60, TOKENS)
    text = [np.full(5, TOKENS - 4, np.int32)]
    batch = assemble(
        corpus(Encoded(text, text)), np.zeros((1, 1), np.int32), TOKENS, np
    )
    usual = initial_state(program, settings)
    with enable_x64(True):
        state = initial_state(program, settings)
        step = functools.partial(train_step, program)
        devices = jax.vmap(step, (None, None, 0), axis_name=AXIS)
        rows = jax.tree.map(lambda x: jnp.asarray(x[None]), batch)
        after, metrics = jax.jit(devices)(state, hyper_of(settings), rows)
        losses = token_losses(program, state, batch)
    jax.tree.map(np.testing.assert_array_equal, state, usual)
    for tree in (state, after, metrics, losses):
        assert {x.dtype for x in jax.tree.leaves(tree)} <= {
            np.dtype("f4"),
            np.dtype("i4"),
        }
    assert np.isfinite(losses).all()
