"""Decoding in steps: with masks, with texts at different positions, and over a cache that
keeps the last positions only. Each equals the full pass.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import (
    RNN,
    T5,
    ALiBi,
    Context,
    Convolutional,
    Decoding,
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
    ScoreResidual,
    TalkingHeads,
    Transformer,
    ValueResidual,
    config,
    sample,
)
from attn.heads import Exclusive, IndexedHeads, MultiToken
from attn.masks.near import dense_mask, visible_at
from attn.mixers.log_linear import LogLinear
from attn.mixers.short import Short
from attn.nn.norms import Pre
from attn.positions.path import PaTH
from attn.positions.wall import Wall
from tests.attn.nn.modules import CAUSAL, apply, random_variables, sentences

SIZES = dict(N=1, d_model=10, d_ff=17, h=2, d_k=6, d_v=5)
D = SIZES["d_model"]
VOCABULARY = 23
N = 9
B = 3
WINDOW = Mask.window(2, 0)
# A bias of a table and one of a formula behind the first position are for .ci/run.
RINGS = [
    dict(positions=Rotary()),
    dict(positions=T5(8, 20)),
    dict(positions=Forget()),
    dict(residual=ScoreResidual(), N=2),
    # Weights by the order of keys, be it of those that are equal alone.
    dict(normaliser="stick_breaking"),
    dict(normaliser="stick_breaking", decoder_mixing=Restricted(2)),
    dict(heads=IndexedHeads(k=2, indexers=1, width=4)),
    pytest.param(
        dict(heads=TalkingHeads(), normaliser="stick_breaking"), marks=pytest.mark.ci
    ),
    pytest.param(
        dict(residual=ScoreResidual(), N=2, normaliser="stick_breaking"),
        marks=pytest.mark.ci,
    ),
    pytest.param(dict(d_c=4, normaliser="stick_breaking"), marks=pytest.mark.ci),
    pytest.param(dict(positions=Relative(3)), marks=pytest.mark.ci),
    pytest.param(dict(positions=Fire(5)), marks=pytest.mark.ci),
]


@functools.cache
def build(**options):
    model = LanguageModel(config.LanguageModel(**SIZES | options), VOCABULARY, N)
    tokens = jnp.zeros((1, 2), jnp.int32)
    return model, random_variables(model, tokens, CAUSAL, size=0.3)


def text():
    return jnp.asarray(np.random.default_rng(0).integers(3, VOCABULARY, (B, N)))


@functools.partial(jax.jit, static_argnums=0)
def one_step(model, variables, tokens, t, caches, mask):
    visible = visible_at(mask, (B,), t, N)
    ctx = Context(decoding=Decoding(t, visible), cache=caches)
    hidden, ctx = model.apply(variables, tokens[:, None], ctx, method="decode")
    return hidden[:, 0], ctx.cache


def in_steps(model, variables, mask, order, last=None):
    """Returns the hidden states of steps, text b at position order[s][b] in step s."""
    room = B, N, jnp.float32, 1, last
    caches = model.apply(variables, *room, method="empty_caches")
    # What is not yet written must not count.
    caches = jax.tree.map(lambda x: np.full(x.shape, 1e6, x.dtype), caches)
    tokens = np.asarray(text())
    out = np.full((B, N, D), np.nan)
    for t in order:
        places = np.broadcast_to(t, B)
        now = tokens[np.arange(B), places]
        hidden, caches = one_step(model, variables, now, np.int32(t), caches, mask)
        out[np.arange(B), places] = hidden
    return out


def assert_equals_the_full_pass(model, variables, mask, order, last=None):
    expected = apply(model, variables, text(), Context(mask & Mask.causal()))
    actual = in_steps(model, variables, mask, order, last)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


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
    assert_equals_the_full_pass(*build(), MASKS[name], range(N), last)


MASKED = {
    "convolution": dict(decoder_mixing=Convolutional(2)),
    "short": dict(decoder_mixing=Short(taps=4)),
    "recurrence": dict(decoder_mixing=Recurrent("gru")),
    "linear attention": dict(decoder_mixing=LinearAttention()),
    "log-linear": dict(decoder_mixing=LogLinear()),
    "forget": dict(positions=Forget()),
    "PaTH": dict(positions=PaTH()),
    "Wall": dict(positions=Wall()),
    "multi-token": dict(heads=MultiToken(queries=4, keys=3)),
    "exclusive": dict(heads=Exclusive()),
}


@pytest.mark.parametrize("mask", ["segments", "sinks", "window"])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("short", "PaTH") else pytest.mark.ci)
        for name in MASKED
    ],
)
def test_steps_of_every_kind_keep_to_a_mask(name, mask):
    assert_equals_the_full_pass(*build(**MASKED[name]), MASKS[mask], range(N))


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
OPTIONS = {
    "rotary": dict(positions=Rotary()),
    "sinusoidal, relative decoder": dict(positions=Relative(3)),
    "forget": dict(positions=Forget()),
    "restricted": dict(positions=ALiBi(), decoder_mixing=Restricted(2)),
    "recurrent": dict(decoder_mixing=Recurrent("gru"), norm=Pre()),
    "convolution": dict(decoder_mixing=Convolutional(2)),
    "linear attention": dict(decoder_mixing=LinearAttention()),
    "value residual": dict(residual=ValueResidual(), N=2),
    "score residual": dict(residual=ScoreResidual(), N=2),
}
QUICK = ("rotary", "forget", "restricted")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.ci)
        for name in OPTIONS
    ],
)
def test_texts_may_stand_at_different_positions(name):
    # A state is of one position: it cannot be asked for the same one twice.
    order = [[t, t, t] for t in range(N)] if name == "linear attention" else APART
    assert_equals_the_full_pass(*build(**OPTIONS[name]), Mask.causal(), order)


@pytest.mark.parametrize("cls", [Transformer, RNN])
def test_translations_may_stand_at_different_positions(cls):
    of = config.RNN(d_model=D, N=1) if cls is RNN else config.Transformer(**SIZES)
    model = cls(of, VOCABULARY, N)
    lengths = jnp.array([5, 9, 7])
    whole = sentences(text(), text()[:, ::-1], lengths)
    variables = random_variables(model, *whole, size=0.3)
    expected = apply(model, variables, *whole)
    memory = apply(model, variables, whole[0], whole[2], method="encode")
    memory = apply(model, variables, memory, method="project_memory")
    caches = model.apply(variables, B, N, jnp.float32, method="empty_caches")
    visible = jnp.arange(N)[None, None] < lengths[:, None, None]
    for t in np.array(APART):
        own = visible_at(Mask.causal(), (B,), jnp.asarray(t), N)
        at = Decoding(jnp.asarray(t), own, visible)
        ctx = Context(memory=memory, decoding=at, cache=caches)
        tokens = whole[1][np.arange(B), t][:, None]
        hidden, ctx = apply(model, variables, tokens, ctx, method="decode")
        caches = ctx.cache
        rows = expected[np.arange(B), t]
        np.testing.assert_allclose(hidden[:, 0], rows, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", RINGS, ids=str)
def test_a_ring_of_the_last_positions_equals_the_full_cache(options):
    apart = [[t, max(0, t - 2), t] for t in range(N)] + [[8, 7, 8], [8, 8, 8]]
    assert_equals_the_full_pass(*build(**options), WINDOW, apart, last=3)


def test_a_ring_has_room_for_the_window_alone():
    def entries(*args, **options):
        model, variables = build(**options)
        caches = model.apply(variables, B, *args, method="empty_caches")
        return {keys.shape[-1] for (keys, _), _ in caches}

    assert entries(N, jnp.float32) == entries(N, jnp.float32, 1) == {N}
    assert entries(N, jnp.float32, 1, 3) == {3}
    assert entries(N, jnp.float32, 4, 3) == {12}
    assert entries(N, jnp.float32, 1, 99) == {N}
    assert entries(N, jnp.float32, 4, decoder_mixing=Restricted(2)) == {12}


def test_hypotheses_share_a_ring():
    """Two hypotheses that part and change places, over a ring and over a whole cache."""
    module = MultiHeadAttention(config.Attention(10, 2, 6, 5, positions=Forget()))
    draw = np.random.default_rng(0).normal
    x = jnp.asarray(draw(size=(N, 1, 2, 10)), jnp.float32)
    params = random_variables(module, x[0], Context(), size=0.3)
    # Which hypothesis each one grew from, before every step.
    parents = np.random.default_rng(1).integers(2, size=(N, 2))
    results = []
    for positions in (N, 4):
        cache = module.empty_cache(1, 2 * positions, jnp.float32)
        seen = np.zeros((2, 2 * N), bool)
        outputs = []
        for t in range(N):
            seen = seen[parents[t]]
            seen[[0, 1], [2 * t, 2 * t + 1]] = True
            near = seen & (np.arange(2 * N) // 2 > t - 4)
            at = Decoding(jnp.int32(t), jnp.asarray(near[None]))
            ctx = Context(decoding=at, cache=cache)
            y, ctx = apply(module, params, x[t], ctx)
            cache = ctx.cache
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
        hidden = model.apply(variables, before, Context(WINDOW))
        logits = model.apply(variables, hidden, method="logits")
        return drawn, jax.nn.log_softmax(logits)

    drawn, each = drawn_and_logits(variables, jax.random.key(3))
    tokens, each = map(np.asarray, (drawn.tokens, each))
    for b in range(B):
        size = (tokens[b] > 0).sum()
        expected = each[b, np.arange(size), tokens[b, :size]].sum()
        np.testing.assert_allclose(drawn.log_probs[b], expected, rtol=1e-4)
