"""Decoding in steps: with masks, with texts at different positions, and over a cache that
keeps the last positions only. Each equals the full pass.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attn.models.visibility import dense_mask, kept_positions, visible_at

from attn import (
    T5,
    ALiBi,
    Convolutional,
    Design,
    Fire,
    Forget,
    LanguageModel,
    LinearAttention,
    Mask,
    MultiHeadAttention,
    Recurrent,
    Relative,
    Restricted,
    Rotary,
    Shape,
    sample,
)
from tests.attn.models.random_variables import random_variables

SHAPE = Shape(N=1, d_model=10, d_ff=17, h=2, d_k=6, d_v=5)
VOCABULARY = 23
N = 9
B = 3
WINDOW = Mask.window(2, 0)
# A bias of a table and one of a formula behind the first position are for .ci/run.
POSITIONS = [
    Rotary(),
    T5(8, 20),
    Forget(),
    pytest.param(Relative(3), marks=pytest.mark.ci),
    pytest.param(Fire(5), marks=pytest.mark.ci),
]


@functools.cache
def build(design=Design()):
    model = LanguageModel(SHAPE, VOCABULARY, N, design=design)
    ids = jnp.zeros((1, 2), jnp.int32)
    return model, random_variables(model, ids, ids, size=0.3)


def text():
    return jnp.asarray(np.random.default_rng(0).integers(3, VOCABULARY, (B, N)))


@functools.partial(jax.jit, static_argnums=0)
def full(model, variables, mask):
    places = jnp.broadcast_to(jnp.arange(N), (B, N))
    return model.apply(variables, text(), places, mask)


@functools.partial(jax.jit, static_argnums=0)
def one_step(model, variables, *arguments):
    return model.apply(variables, *arguments, method="step")


def in_steps(model, variables, mask, order, last=None):
    """Returns the hidden states of steps, text b at position order[s][b] in step s."""
    caches = model.apply(
        variables, (B,), N, jnp.float32, 1, last, method="empty_caches"
    )
    # What is not yet written must not count.
    caches = jax.tree.map(lambda x: np.full(x.shape, 1e6, x.dtype), caches)
    tokens = np.asarray(text())
    out = np.full((B, N, SHAPE.d_model), np.nan)
    for t in order:
        places = np.broadcast_to(t, B)
        now = tokens[np.arange(B), places]
        hidden, caches = one_step(model, variables, now, np.int32(t), caches, mask)
        out[np.arange(B), places] = hidden
    return out


MASKS = {
    "causal": Mask.causal(),
    "window": WINDOW,
    "sinks": Mask.window(2, 0) | Mask.first(2),
    "function": Mask.of(lambda i, j: (i - j) % 3 == 0),
    "segments": Mask.segments(*[np.arange(N) // 4 + np.zeros((B, 1), int)] * 2),
}


@pytest.mark.parametrize(
    ("name", "last"), [("segments", None), ("sinks", None), ("window", 3)]
)
def test_a_step_with_a_mask_is_a_row_of_the_full_pass(name, last):
    """At one position for all texts, over a whole cache and over a ring."""
    model, variables = build()
    expected = full(model, variables, MASKS[name] & Mask.causal())
    actual = in_steps(model, variables, MASKS[name], range(N), last)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MASKS)
def test_what_a_step_sees_is_a_row_of_the_mask(name):
    @jax.jit
    def both(mask, t):
        seen = visible_at(mask, (B,), t, N)
        return seen, dense_mask(mask & Mask.causal(), (B,), N, N)

    for t in ([0, 1, 2], [4, 8, 3]):
        seen, whole = both(MASKS[name], np.array(t))
        rows = np.asarray(whole)[np.arange(B), t]
        np.testing.assert_array_equal(seen[:, 0], rows)


# Text 1 is three positions behind, and text 2 begins again before it goes on.
APART = [[0, 0, 0], [1, 0, 1], [2, 0, 0], [3, 0, 1], [4, 1, 2], [5, 2, 3], [6, 3, 4]]
APART += [[7, 4, 5], [8, 5, 6], [8, 6, 7], [8, 7, 8], [8, 8, 8]]
DESIGNS = {
    "rotary": Design(positions=Rotary()),
    "sinusoidal, relative decoder": Design(positions=Relative(3)),
    "forget": Design(positions=Forget()),
    "restricted": Design(positions=ALiBi(), decoder_mixing=Restricted(2)),
    "recurrent": Design(decoder_mixing=Recurrent("gru"), norm="pre"),
    "convolution": Design(decoder_mixing=Convolutional(2)),
    "linear attention": Design(decoder_mixing=LinearAttention()),
}
QUICK = ("rotary", "forget", "restricted")
EVERY_DESIGN = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.ci)
    for name in DESIGNS
]


@pytest.mark.parametrize("name", EVERY_DESIGN)
def test_texts_may_stand_at_different_positions(name):
    model, variables = build(DESIGNS[name])
    expected = full(model, variables, Mask.causal())
    # A state is of one position: it cannot be asked for the same one twice.
    order = [[t, t, t] for t in range(N)] if name in ("linear attention",) else APART
    actual = in_steps(model, variables, Mask.causal(), order)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("positions", POSITIONS, ids=str)
def test_a_ring_of_the_last_positions_equals_the_full_cache(positions):
    model, variables = build(Design(positions=positions))
    expected = full(model, variables, WINDOW)
    apart = [[t, max(0, t - 2), t] for t in range(N)] + [[8, 7, 8], [8, 8, 8]]
    actual = in_steps(model, variables, WINDOW, apart, last=3)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_a_ring_has_room_for_the_window_alone():
    model, variables = build()

    def entries(*args):
        cache = model.apply(variables, (B,), *args, method="empty_caches")
        return {keys.shape[-1] for keys, _ in cache}

    assert entries(N, jnp.float32) == entries(N, jnp.float32, 1) == {N}
    assert entries(N, jnp.float32, 1, 3) == {3}
    assert entries(4 * N, jnp.float32, 4, 3) == {12}
    assert entries(N, jnp.float32, 1, 99) == {N}
    model, variables = build(Design(decoder_mixing=Restricted(2)))
    assert entries(4 * N, jnp.float32, 4) == {12}


def test_hypotheses_share_a_ring():
    """Two hypotheses that part and change places, over a ring and over a whole cache."""
    module = MultiHeadAttention(10, 2, 6, 5, positions=Forget())
    draw = np.random.default_rng(0).normal
    x = jnp.asarray(draw(size=(N, 1, 2, 10)), jnp.float32)
    params = random_variables(module, x[0], x[0], Mask(), size=0.3)
    # Which hypothesis each one grew from, before every step.
    parents = np.random.default_rng(1).integers(2, size=(N, 2))
    step = jax.jit(functools.partial(module.apply, method="decode_step"))
    results = []
    for positions in (N, 4):
        cache = module.empty_cache((1,), 2 * positions, jnp.float32)
        seen = np.zeros((2, 2 * N), bool)
        outputs = []
        for t in range(N):
            seen = seen[parents[t]]
            seen[[0, 1], [2 * t, 2 * t + 1]] = True
            near = seen & (np.arange(2 * N) // 2 > t - 4)
            visible = jnp.asarray(near[None])
            y, cache = step(params, x[t], jnp.int32(t), cache, visible)
            outputs.append(y)
        results.append(jnp.stack(outputs))
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-6)


def test_a_sample_under_a_window_has_its_probability():
    model, variables = build()
    prefix, lengths = jnp.zeros((B, 1), int), jnp.zeros(B, int)

    @jax.jit
    def drawn_and_logits(variables, key):
        options = dict(max_length=N - 1, bos=1, eos=2, mask=WINDOW)
        drawn = sample(model, variables, key, prefix, lengths, **options)
        before = jnp.concatenate([jnp.ones((B, 1), int), drawn.tokens], axis=1)
        places = jnp.broadcast_to(jnp.arange(N), (B, N))
        hidden = model.apply(variables, before, places, WINDOW)
        logits = model.apply(variables, hidden, method="logits")
        return drawn, jax.nn.log_softmax(logits)

    drawn, each = drawn_and_logits(variables, jax.random.key(3))
    tokens, each = map(np.asarray, (drawn.tokens, each))
    for b in range(B):
        size = (tokens[b] > 0).sum()
        expected = each[b, np.arange(size), tokens[b, :size]].sum()
        np.testing.assert_allclose(drawn.log_probs[b], expected, rtol=1e-4)


def test_places_of_a_ring_by_hand():
    assert kept_positions(5, 4).tolist() == [4, 5, 2, 3]
    assert kept_positions(2, 4).tolist() == [0, 1, 2, -1]


def test_what_a_step_sees():
    mask = Mask.padding(np.array([2, 4])) & Mask.window(2, 1)
    visible = visible_at(mask, (2,), jnp.array([1, 3]), 5)
    assert visible.astype(int).tolist() == [[[1, 1, 0, 0, 0]], [[0, 1, 1, 1, 0]]]
    with pytest.raises(ValueError, match="does not fit"):
        visible_at(Mask.dense(np.ones((2, 5, 5), bool)), (3,), jnp.int32(0), 5)
