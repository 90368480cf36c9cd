"""Recurrence, convolution and linear attention's relatives against loops in float64, alone,
packed, padded, and where a mask hides what is near.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import (
    Convolution,
    DeltaHeads,
    Design,
    GatedDeltaHeads,
    GatedLinearHeads,
    LanguageModel,
    LinearAttention,
    LinearHeads,
    Mask,
    Recurrence,
    Shape,
)
from attn.models.recurrence import CELLS
from attn.models.visibility import dense_mask, neighbours
from tests.attn import numpy_linear, numpy_rnn

D = 6
LENGTHS = (5, 1, 3)
SEGMENTS = jnp.array([1] * 5 + [2] + [3] * 3 + [0] * 2)
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
    shapes = jax.eval_shape(module.init, jax.random.key(0), drawn(1, 2, D), Mask())[
        "params"
    ]
    draw = np.random.default_rng(1)
    return {
        "params": jax.tree.map(
            lambda x: jnp.asarray(draw.normal(size=x.shape), jnp.float32) * 0.6, shapes
        )
    }


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


def both_ways(p, x, cell):
    return numpy_rnn.both_ways(p, cell, x)


def forwards(p, x, cell):
    return numpy_rnn.run(p["forward"], cell, x)


MIXERS = []
for cell in CELLS:
    oracle = functools.partial(both_ways, cell=cell)
    MIXERS.append((Recurrence(D, cell, both_ways=True), oracle))
    MIXERS.append((Recurrence(D, cell), functools.partial(forwards, cell=cell)))
for separable in (True, False):
    around = functools.partial(convolved, offsets=range(-2, 3))
    before = functools.partial(convolved, offsets=range(-4, 1))
    MIXERS.append((Convolution(D, 2, causal=False, separable=separable), around))
    MIXERS.append((Convolution(D, 2, causal=True, separable=separable), before))
HEADS = dict(d_model=D, h=2, d_k=5, d_v=3)
BY_HEAD = functools.partial(GatedLinearHeads, decay="head")
PRODUCT = functools.partial(DeltaHeads, beta_max=2.0, householders=3)
GATED_PRODUCT = functools.partial(GatedDeltaHeads, beta_max=2.0, householders=2)
for cls, oracle, marks in (
    (LinearHeads, numpy_linear.linear, ()),
    (GatedLinearHeads, numpy_linear.gated, ()),
    (BY_HEAD, numpy_linear.gated, pytest.mark.ci),
    # With decays it does all of this and more.
    (DeltaHeads, numpy_linear.delta, pytest.mark.ci),
    (PRODUCT, functools.partial(numpy_linear.delta, beta_max=2), pytest.mark.ci),
    (GatedDeltaHeads, numpy_linear.delta, pytest.mark.ci),
    (GATED_PRODUCT, functools.partial(numpy_linear.delta, beta_max=2), ()),
):
    for causal in (True, False):
        module = cls(**HEADS, causal=causal)
        oracle_of = functools.partial(oracle, causal=causal)
        MIXERS.append(pytest.param(module, oracle_of, marks=marks))


@pytest.mark.parametrize(("module", "oracle"), MIXERS)
def test_a_packed_row_is_its_sentences(module, oracle):
    variables = build(module)
    x = drawn(len(SEGMENTS), D)
    actual = jax.jit(module.apply)(variables, x, PACKED)
    start = 0
    for length in LENGTHS:
        alone = slice(start, start + length)
        expected = oracle(exact(variables), np.asarray(x[alone], np.float64))
        np.testing.assert_allclose(actual[alone], expected, rtol=2e-5, atol=2e-5)
        start += length


@pytest.mark.parametrize(("module", "oracle"), MIXERS)
def test_padding_is_not_seen(module, oracle):
    variables = build(module)
    x = drawn(3, 7, D).at[0, 5:].set(np.nan).at[2, 1:].set(np.inf)
    lengths = [5, 7, 1]
    mask = Mask.padding(jnp.array(lengths))
    actual = jax.jit(module.apply)(variables, x, mask)
    for b, length in enumerate(lengths):
        expected = oracle(exact(variables), np.asarray(x[b, :length], np.float64))
        np.testing.assert_allclose(actual[b, :length], expected, rtol=2e-5, atol=2e-5)


@pytest.mark.ci
@pytest.mark.parametrize(("module", "oracle"), MIXERS)
def test_a_mask_that_hides_the_past_begins_anew(module, oracle):
    """An example of its own each: one sees all, one nothing but itself."""
    variables = build(module)
    x = drawn(2, 4, D)
    both = jnp.stack([jnp.ones((4, 4), bool), jnp.eye(4, dtype=bool)])[:, None]
    actual = module.apply(variables, x, Mask.dense(both))
    for number, parts in enumerate(
        ([slice(0, 4)], [slice(i, i + 1) for i in range(4)])
    ):
        for part in parts:
            expected = oracle(exact(variables), np.asarray(x[number, part], np.float64))
            np.testing.assert_allclose(
                actual[number, part], expected, rtol=2e-5, atol=2e-5
            )


@pytest.mark.parametrize(
    "module",
    [
        Recurrence(D),
        Recurrence(D, "lstm"),
        Convolution(D, 1, causal=True),
        LinearHeads(**HEADS, causal=True),
        BY_HEAD(**HEADS, causal=True),
        GATED_PRODUCT(**HEADS, causal=True),
    ],
)
def test_one_after_the_other_is_all_at_once(module):
    """The caches of two hypotheses, side by side; that they change places is seen in
    the tests of the search.
    """
    variables = build(module)
    x = drawn(3, 2, 5, D)
    expected = jax.jit(module.apply)(variables, x, Mask.causal())
    cache = module.apply(variables, (3,), 2 * 5, jnp.float32, method="empty_cache")
    # What another text has left in the cache is not seen.
    cache = jax.tree.map(jnp.ones_like, cache)
    step = jax.jit(functools.partial(module.apply, method="decode_step"))
    for t in range(5):
        own = jnp.arange(10)[None] % 2 == jnp.arange(2)[:, None]
        own &= jnp.arange(10)[None] < 2 * (t + 1)
        visible = jnp.broadcast_to(own, (3, 2, 10))
        y, cache = step(variables, x[:, :, t], jnp.int32(t), cache, visible)
        np.testing.assert_allclose(y, expected[:, :, t], rtol=1e-5, atol=1e-5)


def test_a_state_is_kept_for_each_hypothesis_and_not_for_each_position():
    design = Design(decoder_mixing=LinearAttention())
    model = LanguageModel(Shape(1, D, D, 2, 5, 3), 7, 100, design)
    tokens = jnp.ones((3, 2), jnp.int32)
    at = jnp.broadcast_to(jnp.arange(2), (3, 2))
    variables = model.init(jax.random.key(0), tokens, at)
    room = functools.partial(model.apply, variables, (3,), 2 * 100, jnp.bfloat16)
    (cache,) = room(2, method="empty_caches")
    assert cache.shape == (3, 2, 2, 5, 4) and cache.dtype == jnp.float32
    (cache,) = room(1, method="empty_caches")
    visible = jnp.ones((3, 2, 200), bool)
    with pytest.raises(ValueError, match="has 1 states, and there are 2 hypotheses"):
        model.apply(
            variables, tokens, jnp.int32(0), (cache,), visible, method="decode_step"
        )


def test_halves_stay_halves():
    """The state is kept in float32; what goes in and comes out is bfloat16."""
    module = GatedLinearHeads(**HEADS, causal=True)
    variables = build(module)
    narrow = jax.tree.map(lambda x: x.astype(jnp.bfloat16), variables)
    x = drawn(9, D)
    y = jax.jit(module.apply)(narrow, x.astype(jnp.bfloat16), Mask.causal())
    assert y.dtype == jnp.bfloat16
    expected = numpy_linear.gated(exact(variables), np.asarray(x, np.float64), True)
    np.testing.assert_allclose(y.astype(jnp.float32), expected, rtol=0.1, atol=0.1)


@pytest.mark.ci
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("cls", [LinearHeads, GatedLinearHeads, GATED_PRODUCT])
def test_hidden_nan_reaches_no_gradient(cls, causal):
    module = cls(**HEADS, causal=causal)
    variables = build(module)
    clean = drawn(7, D)
    mask = Mask.padding(jnp.array(4))

    @jax.jit
    def gradients(variables, x):
        def total(variables, x):
            return (module.apply(variables, x, mask)[:4] ** 2).sum()

        return jax.grad(total, (0, 1))(variables, x)

    expected = gradients(variables, clean)
    actual = gradients(variables, clean.at[5:].set(jnp.nan))
    for a, b in zip(*map(jax.tree.leaves, (actual, expected)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_what_comes_before_a_sentence():
    module = Recurrence(D, "gru")
    variables = build(module)
    x = drawn(len(SEGMENTS), D)
    start = drawn(len(SEGMENTS), D, seed=3)
    actual = module.apply(variables, x, PACKED, start)
    p = exact(variables)
    for first, length in ((0, 5), (5, 1), (6, 3)):
        expected = numpy_rnn.run(
            p["forward"],
            "gru",
            np.asarray(x[first : first + length], np.float64),
            np.asarray(start[first], np.float64),
        )
        np.testing.assert_allclose(
            actual[first : first + length], expected, rtol=2e-5, atol=2e-5
        )


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
    n = len(SEGMENTS)
    everything = np.asarray(dense_mask(mask, (3,), n, n))
    actual = neighbours(mask, (3,), n, offsets)
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


def test_a_mask_of_the_whole_is_its_picture():
    n = len(SEGMENTS)
    for mask in (PACKED, PACKED & Mask.causal(1), Mask.window(2, 1)):
        assert picture(dense_mask(mask, (), n, n)) == mask.picture(n, n)


def test_heads_of_their_own_are_refused():
    with pytest.raises(
        ValueError, match="a mask with an axis for heads is for attention only"
    ):
        neighbours(Mask.dense(jnp.ones((2, 3, 3), bool)), (), 3, (0,))


def test_an_odd_width_is_refused():
    with pytest.raises(ValueError, match="d_model=7 must be even"):
        Recurrence(7, both_ways=True).init(jax.random.key(0), drawn(2, 7), Mask())


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
    ],
)
def test_parameters(module, expected):
    assert sum(x.size for x in jax.tree.leaves(build(module))) == expected


def test_masks_that_do_not_fit_are_refused():
    mask = Mask.dense(np.ones((4, 3), bool))
    with pytest.raises(ValueError, match=r"array of shape \(4, 3\) does not fit"):
        neighbours(mask, (2,), 3, (-1, 0))
    with pytest.raises(ValueError, match=r"array of shape \(4, 3\) does not fit"):
        dense_mask(mask, (2,), 3, 3)
