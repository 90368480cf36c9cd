"""Recurrence, convolution and linear attention's relatives against loops in float64, alone,
packed, padded, and where a mask hides what is near.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn
from attn import (
    Context,
    Convolution,
    Decoding,
    DeltaHeads,
    GatedDeltaHeads,
    GatedLinearHeads,
    LanguageModel,
    LinearAttention,
    LinearHeads,
    Mask,
    Recurrence,
    config,
)
from attn.config import Block
from attn.masks.near import dense_mask, neighbours
from attn.mixers import (
    KimiDeltaHeads,
    LogLinearHeads,
    Mamba2Heads,
    Mamba3Heads,
    ShortConvolved,
)
from attn.mixers.recurrence import CELLS
from attn.nn.norms import Pre
from tests.attn import numpy_linear, numpy_rnn
from tests.attn.nn.modules import CAUSAL, apply, count, random_variables, steps

D = 6
SEGMENTS = jnp.array([[1] * 5 + [2] + [3] * 3 + [0] * 2])
PACKED = Mask.segments(SEGMENTS, SEGMENTS)


def drawn(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def picture(visible):
    rows = []
    for row in visible:
        rows.append("".join("●" if cell else "·" for cell in row))
    return "\n".join(rows)


@functools.cache
def build(module):
    """With parameters that are all random, biases too."""
    return random_variables(module, drawn(1, 2, D), Context(), size=0.6, seed=1)


def exact(variables):
    return jax.tree.map(lambda x: np.asarray(x, np.float64), variables["params"])


def convolved(p, x, offsets):
    total = np.zeros_like(x)
    for i in range(len(x)):
        for tap, offset in enumerate(offsets):
            if 0 <= i + offset < len(x):
                seen = x[i + offset]
                total[i] += (
                    seen * p["taps"][tap] @ p["kernel"]
                    if "taps" in p
                    else seen @ p["kernel"][tap]
                )
    return total + p["bias"]


def shortened(p, x, offsets, inner, residual):
    total = np.zeros_like(x)
    for i in range(len(x)):
        for tap, offset in enumerate(offsets):
            if 0 <= i + offset < len(x):
                total[i] += x[i + offset] * p["taps"][tap]
    total = x + total if residual else total / (1 + np.exp(-total))
    return inner(p["inner"], total)


def both_ways(p, x, cell):
    return numpy_rnn.both_ways(p, cell, x)


def forwards(p, x, cell):
    return numpy_rnn.run(p["forward"], cell, x)


MIXERS = []
for cell in CELLS:
    oracle = functools.partial(both_ways, cell=cell)
    MIXERS.append((Recurrence(D, cell, both_ways=True), oracle))
    # The forward half of both ways is the same.
    marks = () if cell == "tanh" else pytest.mark.ci
    oracle = functools.partial(forwards, cell=cell)
    MIXERS.append(pytest.param(Recurrence(D, cell), oracle, marks=marks))
for separable in (True, False):
    around = functools.partial(convolved, offsets=range(-2, 3))
    before = functools.partial(convolved, offsets=range(-4, 1))
    MIXERS.append((Convolution(D, 2, causal=False, separable=separable), around))
    MIXERS.append((Convolution(D, 2, causal=True, separable=separable), before))
HEADS = dict(d_model=D, h=2, d_k=5, d_v=3)
BY_HEAD = functools.partial(GatedLinearHeads, decay="head")
PRODUCT = functools.partial(DeltaHeads, beta_max=2.0, householders=3)
GATED_PRODUCT = functools.partial(GatedDeltaHeads, beta_max=2.0, householders=2)
LOG_LINEAR = functools.partial(LogLinearHeads, levels=4)
for cls, oracle, marks in (
    (LinearHeads, numpy_linear.linear, ()),
    (GatedLinearHeads, numpy_linear.gated, ()),
    (BY_HEAD, numpy_linear.gated, pytest.mark.ci),
    # With decays it does all of this and more.
    (DeltaHeads, numpy_linear.delta, pytest.mark.ci),
    (PRODUCT, functools.partial(numpy_linear.delta, beta_max=2), pytest.mark.ci),
    (GatedDeltaHeads, numpy_linear.delta, pytest.mark.ci),
    (GATED_PRODUCT, functools.partial(numpy_linear.delta, beta_max=2), ()),
    (KimiDeltaHeads, numpy_linear.kimi, ()),
    (Mamba2Heads, numpy_linear.mamba2, ()),
    (Mamba3Heads, numpy_linear.mamba3, ()),
    (LOG_LINEAR, numpy_linear.log_linear_mamba2, ()),
):
    for causal in (True, False):
        module = cls(**HEADS, causal=causal)
        oracle_of = functools.partial(oracle, causal=causal)
        MIXERS.append(pytest.param(module, oracle_of, marks=marks))

OF_DELTA = functools.partial(numpy_linear.delta, causal=True)
SHORT = ShortConvolved(DeltaHeads(**HEADS, causal=True), D, 3, True, True, "none")
OF_SHORT = functools.partial(
    shortened, offsets=range(-2, 1), inner=OF_DELTA, residual=True
)
AROUND = ShortConvolved(Recurrence(D, both_ways=True), D, 4, False, False, "silu")
OF_AROUND = functools.partial(
    shortened,
    offsets=range(-2, 2),
    inner=functools.partial(both_ways, cell="gru"),
    residual=False,
)
MIXERS += [(SHORT, OF_SHORT), (AROUND, OF_AROUND)]

# The runs of each text, from and to where; what is in none is padding.
RUNS = (
    [(0, 5), (5, 6), (6, 9)],
    [(0, 7)],
    [(0, 1)],
    [(i, i + 1) for i in range(11)],
    [(0, 11)],
)


def runs_and_mask():
    """Returns texts with NaN and Inf where nobody looks, and a mask of them all.

    What other masks say of neighbours is below: a mixer asks for these alone.
    """
    x = np.array(drawn(len(RUNS), 11, D))
    x[1, 7:] = np.nan
    x[2, 1:] = np.inf
    visible = np.zeros((len(RUNS), 1, 11, 11), bool)
    for b, runs in enumerate(RUNS):
        for start, end in runs:
            visible[b, 0, start:end, start:end] = True
    return x, Mask.dense(jnp.asarray(visible))


@pytest.mark.parametrize(("module", "oracle"), MIXERS)
def test_what_the_mask_puts_together_is_as_if_alone(module, oracle):
    """Packed sentences, padding that is not seen, and a state that begins anew each time."""
    variables = build(module)
    x, mask = runs_and_mask()
    actual, _ = apply(module, variables, x, Context(mask))
    for b, runs in enumerate(RUNS):
        for start, end in runs:
            expected = oracle(exact(variables), np.asarray(x[b, start:end], np.float64))
            part = actual[b, start:end]
            np.testing.assert_allclose(part, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("module", "oracle"),
    [
        (Recurrence(D), functools.partial(forwards, cell="gru")),
        (Recurrence(D, "lstm"), functools.partial(forwards, cell="lstm")),
        (
            Convolution(D, 1, causal=True),
            functools.partial(convolved, offsets=range(-2, 1)),
        ),
        (
            LinearHeads(**HEADS, causal=True),
            functools.partial(numpy_linear.linear, causal=True),
        ),
        (
            BY_HEAD(**HEADS, causal=True),
            functools.partial(numpy_linear.gated, causal=True),
        ),
        (
            GATED_PRODUCT(**HEADS, causal=True),
            functools.partial(numpy_linear.delta, causal=True, beta_max=2),
        ),
        (
            KimiDeltaHeads(**HEADS, causal=True),
            functools.partial(numpy_linear.kimi, causal=True),
        ),
        (
            Mamba2Heads(**HEADS, causal=True),
            functools.partial(numpy_linear.mamba2, causal=True),
        ),
        (
            Mamba3Heads(**HEADS, causal=True),
            functools.partial(numpy_linear.mamba3, causal=True),
        ),
        (
            LOG_LINEAR(**HEADS, causal=True),
            functools.partial(numpy_linear.log_linear_mamba2, causal=True),
        ),
        (SHORT, OF_SHORT),
    ],
)
def test_one_after_the_other_is_all_at_once(module, oracle):
    """The caches of two hypotheses, side by side; that they change places is seen in
    the tests of the search.
    """
    variables = build(module)
    x = drawn(3, 2, 5, D)
    expected = np.zeros(x.shape)
    for at in np.ndindex(3, 2):
        expected[at] = oracle(exact(variables), np.asarray(x[at], np.float64))
    # A cell says what room it needs, and it is bound then.
    empty = functools.partial(type(module).empty_cache, batch=3, entries=10)
    cache = module.apply(variables, method=lambda own: empty(own, dtype=x.dtype))
    actual = steps(module, variables, x, cache)
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-5)


def test_a_state_is_kept_for_each_hypothesis_and_not_for_each_position():
    sizes = dict(N=1, d_model=D, d_ff=D, h=2, d_k=5, d_v=3)
    of = config.LanguageModel(**sizes, decoder_mixing=LinearAttention())
    model = LanguageModel(of, 7, 100)
    tokens = jnp.ones((3, 2), jnp.int32)
    variables = random_variables(model, tokens, CAUSAL)

    def room(hypotheses):
        of = 3, 100, jnp.bfloat16, hypotheses
        return model.apply(variables, *of, method="empty_caches")

    (cache,) = room(2)
    assert cache.shape[2:] == (2, 5, 4) and cache.dtype == jnp.float32
    at = Decoding(jnp.int32(0), jnp.ones((3, 2, 200), bool))
    step = functools.partial(model.apply, method="decode")
    jax.eval_shape(step, variables, tokens, Context(decoding=at, cache=(cache,)))
    ctx = Context(decoding=at, cache=(cache[:, :1],))
    with pytest.raises(ValueError, match="has 1 states, and there are 2 hypotheses"):
        jax.eval_shape(step, variables, tokens, ctx)


def test_halves_stay_halves():
    """The state is kept in float32; what goes in and comes out is bfloat16."""
    module = GatedLinearHeads(**HEADS, causal=True)
    variables = build(module)
    narrow = jax.tree.map(lambda x: x.astype(jnp.bfloat16), variables)
    x = drawn(1, 9, D)
    y, _ = apply(module, narrow, x.astype(jnp.bfloat16), CAUSAL)
    assert y.dtype == jnp.bfloat16
    expected = numpy_linear.gated(exact(variables), np.asarray(x[0], np.float64), True)
    np.testing.assert_allclose(y[0].astype(jnp.float32), expected, rtol=0.1, atol=0.1)


@pytest.mark.ci
@pytest.mark.parametrize("cls", [LinearHeads, GatedLinearHeads, GATED_PRODUCT])
def test_hidden_nan_reaches_no_gradient(cls):
    """Of both directions, of which one reads the hidden tokens first."""
    module = cls(**HEADS, causal=False)
    variables = build(module)
    clean = drawn(1, 7, D)
    ctx = Context(Mask.padding(jnp.array([4])))

    @jax.jit
    def gradients(variables, x):
        def total(variables, x):
            return (module.apply(variables, x, ctx)[0][:, :4] ** 2).sum()

        return jax.grad(total, (0, 1))(variables, x)

    expected = gradients(variables, clean)
    actual = gradients(variables, clean.at[:, 5:].set(jnp.nan))
    for a, b in zip(*map(jax.tree.leaves, (actual, expected)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_what_comes_before_a_sentence():
    module = Recurrence(D, "gru")
    variables = build(module)
    x = drawn(*SEGMENTS.shape, D)
    start = drawn(*SEGMENTS.shape, D, seed=3)
    actual, _ = apply(module, variables, x, Context(PACKED), start)
    p = exact(variables)
    x, start = (np.asarray(y[0], np.float64) for y in (x, start))
    for first, length in ((0, 5), (5, 1), (6, 3)):
        part = slice(first, first + length)
        expected = numpy_rnn.run(p["forward"], "gru", x[part], start[first])
        np.testing.assert_allclose(actual[0, part], expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("mask", "offsets"),
    [
        (PACKED, (-1, 1)),
        (PACKED & Mask.causal(), (-2, 0, 3)),
        (Mask(), (-1, 0, 1)),
        (Mask.window(1, 0), (-2, -1, 1)),
        (Mask.padding(jnp.array([7, 0, 11])), (-1, 0, 4)),
        (
            Mask.dense(
                jnp.asarray(np.random.default_rng(0).random((3, 1, 11, 11)) < 0.5)
            ),
            (-3, 0, 10),
        ),
    ],
)
def test_neighbours_are_what_the_mask_says(mask, offsets):
    n = SEGMENTS.shape[1]

    @jax.jit
    def of(mask):
        return dense_mask(mask, (3,), n, n), neighbours(mask, (3,), n, offsets)

    everything, actual = map(np.asarray, of(mask))
    assert actual.shape == (3, n, len(offsets))
    for b in range(3):
        one = Mask.dense(jnp.asarray(everything[b][None]))
        assert one.picture(n, n) == picture(everything[b])
        for i in range(n):
            for place, offset in enumerate(offsets):
                assert actual[b, i, place] == (
                    0 <= i + offset < n
                    and everything[b, i, min(max(i + offset, 0), n - 1)]
                )


def test_what_mamba_keeps_decays_at_least_a_little():
    """Also where the rate of decay that is learned is none at all."""
    module = Mamba3Heads(**HEADS, causal=True)
    x = jnp.ones((1, 2, D))
    variables = random_variables(module, x, Context())
    variables["params"]["w_rate"] = jnp.full_like(variables["params"]["w_rate"], -1e3)
    *_, log_decay, own, last, _ = module.apply(variables, x, method=module.arrays)
    np.testing.assert_allclose(log_decay, -1e-4 * (own + last), rtol=1e-5)


def test_heads_of_their_own_are_refused():
    with pytest.raises(
        ValueError, match="a mask with an axis for heads is for attention only"
    ):
        neighbours(Mask.dense(jnp.ones((2, 3, 3), bool)), (), 3, (0,))


def test_an_odd_width_is_refused():
    with pytest.raises(ValueError, match="d_model=7 must be even"):
        Recurrence(7, both_ways=True).init(jax.random.key(0), drawn(1, 2, 7), CAUSAL)


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (Recurrence(D), 6 * D**2 + 4 * D),
        (Recurrence(D, both_ways=True), 4.5 * D**2 + 4 * D),
        (Convolution(D, 2), 5 * D**2 + D),
        (Convolution(D, 2, separable=True), 5 * D + D**2 + D),
        (LinearHeads(**HEADS), 2 * D * 16),
        (
            GatedLinearHeads(**HEADS),
            2 * D * 16 + 16 * (D + 2 * 5) + 2 * 5 + (D + 1) * 2 * 3 + 2 * 3,
        ),
        (BY_HEAD(**HEADS), 2 * D * 16 + (D + 1) * 2 + (D + 1) * 2 * 3 + 2 * 3),
        (DeltaHeads(**HEADS), 2 * D * 16 + 2 * D + 3),
        (GatedDeltaHeads(**HEADS), 2 * D * 16 + 2 * D + 3 + (D + 2) * 2 + D * 6),
        (PRODUCT(**HEADS), 2 * D * 16 + 3 * 2 * D + 3 + 2 * 2 * D * 8),
        (
            KimiDeltaHeads(**HEADS),
            2 * D * 16 + 2 * D + 3 + 3 * (D + 2 * 5) + 2 * 6 + 3 * (D + 2 * 3) + 2 * 3,
        ),
        (Mamba2Heads(**HEADS), D * (2 * 5 + 3 * 2 * 3 + 2) + 3 * 2 + 2 * 3),
        (
            Mamba3Heads(**HEADS),
            D * (2 * 5 + 1 + 2 * (3 * 3 + 3)) + 2 * 5 * 3 + 2 * 2,
        ),
        (
            LOG_LINEAR(**HEADS),
            D * (2 * 5 + 3 * 2 * 3 + 2) + 3 * 2 + 2 * 3 + D * 2 * 4,
        ),
        (SHORT, 2 * D * 16 + 2 * D + 3 + 3 * D),
    ],
)
def test_parameters(module, expected):
    assert count(build(module)) == expected


@pytest.mark.parametrize("mixer", [cls() for cls in attn.MIXERS.values()], ids=str)
def test_norms_within_have_the_epsilon_of_the_layer(mixer):
    block = Block(d_model=D, h=2, d_k=4, d_v=4, mixing=mixer, norm=Pre(epsilon=0.25))
    module = mixer.build(block, causal=True)
    assert getattr(module, "norm_epsilon", 0.25) == 0.25
