"""A text has the same losses packed into a row with another, alone, and step by step.

What a registry holds is tried by being there, in rows longer than any threshold of its
defaults. E texts, T tokens of a row.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import Context, Decoding
from attn.nn.layers import output_matrix
from experiments.data.batches import Encoded, assemble, corpus
from experiments.settings import default_config, resolve
from experiments.trial.program import (
    build_model,
    contexts,
    initial_state,
    program_of,
)
from experiments.trial.step import token_losses
from tests.cases import the_rest_in_ci
from tests.experiments.variants import (
    HEADED,
    LANGUAGE,
    LAYERS,
    MIXED,
    PLACES,
    RECURRENT,
    both_sides,
    name_of,
)

LENGTHS = (640, 24)
"""Tokens of the texts: the first is longer than the longest threshold, FIRE's 512."""
ROW = sum(LENGTHS)
VOCABULARY = 60
TOLERANCE = 5e-5
"""Nats. A sum over 664 positions, as of forget gates of a half, is right to 664 · log 2 · 10⁻⁷."""

SIZES = {
    "training.sequence_length": ROW,
    "data.max_length": ROW,
    "model.N": 1,
    "model.d_model": 8,
}


SOME = [
    # The rest are in the decoder of a transformer, and in the contract of positions.
    *PLACES[:6],
    *MIXED[:3],
    # Their thresholds do not go by places.
    *the_rest_in_ci(HEADED, first=2),
]


@pytest.mark.parametrize("changes", SOME, ids=name_of)
def test_a_language_model(changes):
    assert_packed_equals_alone({**LANGUAGE, **changes})


# The encoder sees both sides, and the decoder another text.
@pytest.mark.ci
@pytest.mark.parametrize("changes", [*PLACES, *MIXED], ids=name_of)
def test_a_transformer(changes):
    assert_packed_equals_alone({**LAYERS, **both_sides(changes)})


@pytest.mark.parametrize("changes", the_rest_in_ci(RECURRENT, first=1), ids=name_of)
def test_a_recurrent_model(changes):
    assert_packed_equals_alone({"model.kind": "rnn", **changes})


def assert_packed_equals_alone(changes):
    settings = resolve(default_config(), {**SIZES, **changes})
    program = program_of(settings, VOCABULARY, ROW)
    packed, alone, steps = jax.jit(functools.partial(losses, program))(
        initial_state(program, settings), *batches()
    )
    start = 0
    for text, length in enumerate(LENGTHS):
        own = packed[0, start : start + length]
        np.testing.assert_allclose(own, alone[text, :length], rtol=0, atol=TOLERANCE)
        np.testing.assert_allclose(steps[text, :length], own, rtol=0, atol=TOLERANCE)
        start += length


@functools.cache
def batches():
    """Returns a row of both texts, and a row of each."""
    draw = np.random.default_rng(1).integers
    # A token more comes before or after each text.
    sides = [
        [draw(5, VOCABULARY, n - 1).astype(np.int32) for n in LENGTHS] for _ in "st"
    ]
    texts = corpus(Encoded(*sides))
    packed, alone = np.array([[0, 1]], np.int32), np.array([[0], [1]], np.int32)
    return [assemble(texts, slots, ROW, np) for slots in (packed, alone)]


def losses(program, state, packed, alone):
    """Returns the losses of tokens (E, T): of the packed row, of each text, of its steps."""
    # Of one shape, they are computed by one program.
    together = jax.tree.map(lambda *x: jnp.concatenate(x), packed, alone)
    whole = token_losses(program, state, together)
    return whole[:1], whole[1:], step_losses(program, state, alone)


def step_losses(program, state, texts):
    """Returns the losses (E, T) of texts that a decoder reads token by token."""
    variables = state.variables
    model = build_model(program)

    def call(method, *arguments):
        return model.apply(variables, *arguments, method=method)

    count, length = texts.target_in.shape
    memory = ()
    seen = None
    if program.model.kind != "language":
        seen = (texts.source_segments > 0)[:, None]
        encoded = call("encode", texts.source, contexts(texts)[0])
        memory = call("project_memory", encoded)

    def step(caches, t):
        visible = jnp.broadcast_to(jnp.arange(length) <= t, (count, 1, length))
        at = Decoding(t, visible, seen)
        ctx = Context(step=state.step, memory=memory, decoding=at, cache=caches)
        hidden, ctx = call("decode", texts.target_in[:, t, None], ctx)
        return ctx.cache, hidden[:, 0]

    caches = call("empty_caches", count, length, jnp.float32)
    _, hidden = jax.lax.scan(step, caches, jnp.arange(length))
    log_probs = jax.nn.log_softmax(hidden @ output_matrix(state.params).T)
    labels = texts.target_out.T[..., None]
    return -jnp.take_along_axis(log_probs, labels, axis=-1)[..., 0].T
