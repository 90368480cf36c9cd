"""No gradient of training in bfloat16 is added up in it, term by term.

What is added at places that may be the same (scatter-add), or from turn to turn of a loop,
is rounded at every term: 4,000 terms of 1 give 256. XLA sums products and reductions in
float32. What a registry holds is tried by being there; a program is traced, and not run.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import keys_of_rows
from experiments.data.batches import Encoded, assemble, corpus
from experiments.settings import default_config, resolve
from experiments.trial.program import hyper_of, initial_state, program_of
from experiments.trial.step import summed_gradients
from tests.cases import the_rest_in_ci
from tests.experiments.variants import (
    HEADED,
    LAYERS,
    MIXED,
    PLACES,
    RECURRENT,
    both_sides,
    name_of,
)

ROWS, TOKENS = 4, 40
SIZES = {
    "training.precision": "bfloat16",
    "training.sequence_length": TOKENS,
    "data.max_length": TOKENS,
    "model.N": 1,
    "model.d_model": 8,
}
KINDS = [{**LAYERS, "model.selection": "sampled"}]
KINDS += [{"model.kind": "rnn", **changes} for changes in RECURRENT]
KINDS += [{**LAYERS, "model.selection": "argmax"}]
KINDS += [{**LAYERS, **both_sides(changes)} for changes in (*PLACES, *MIXED, *HEADED)]


@pytest.mark.parametrize("changes", the_rest_in_ci(KINDS, first=2), ids=name_of)
def test_sums_are_float32(changes):
    settings = resolve(default_config(), {**SIZES, **changes})
    program = program_of(settings, 60, TOKENS)
    state = jax.eval_shape(functools.partial(initial_state, program, settings))
    keys = keys_of_rows(jax.random.key(0), jnp.arange(ROWS))
    arguments = state, hyper_of(settings), batch(), keys
    jaxpr = jax.make_jaxpr(functools.partial(summed_gradients, program))(*arguments)
    equations = list(all_equations(jaxpr.jaxpr))
    assert [e for e in equations if e.primitive.name == "scatter-add"]
    assert not [str(e)[:500] for e in equations if adds_up_in_bfloat16(e)]


@functools.cache
def batch():
    text = np.full(5, TOKENS - 6, np.int32)
    pairs = corpus(Encoded([text] * ROWS, [text] * ROWS))
    return assemble(pairs, np.arange(ROWS, dtype=np.int32)[:, None], TOKENS, np)


def all_equations(jaxpr):
    """Yields the equations of a program and of all programs in it."""
    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(equation.params):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from all_equations(inner)


def adds_up_in_bfloat16(equation):
    if equation.primitive.name == "scatter-add":
        is_half = equation.outvars[0].aval.dtype == jnp.bfloat16
        return is_half and not equation.params["unique_indices"]
    return equation.primitive.name == "scan" and any(halves_carried(equation))


def halves_carried(scan):
    """Yields whether each number carried by a scan is a bfloat16 with something added."""
    body = scan.params["jaxpr"].jaxpr
    # What is scanned, or stacked, has an axis more outside than in the body; constants come
    # first. (The parameters that say so have other names in JAX 0.12.)
    count = sum(map(has_same_shape, scan.outvars, body.outvars))
    scanned = sum(
        not has_same_shape(*x) for x in zip(scan.invars, body.invars, strict=True)
    )
    first = len(body.invars) - count - scanned
    carried = body.invars[first : first + count]
    for before, after in zip(carried, body.outvars, strict=False):
        made = [e for e in body.eqns if after in e.outvars]
        is_sum = (
            made and made[0].primitive.name == "add_any" and before in made[0].invars
        )
        yield is_sum and before.aval.dtype == jnp.bfloat16


def has_same_shape(one, other):
    return one.aval.shape == other.aval.shape
