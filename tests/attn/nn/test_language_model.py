"""The language model against the float64 oracle, token by token, packed, with remat and
scan.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import (
    ALiBi,
    Context,
    Differential,
    LanguageModel,
    Mask,
    Rotary,
    Sinusoidal,
    config,
    keys_of_rows,
)
from attn.nn.norms import NORMS, PostFinal, Pre
from tests.attn import numpy_transformer
from tests.attn.nn.modules import CAUSAL, apply, random_variables, steps

SIZES = dict(N=2, d_model=10, d_ff=17, h=2, d_k=6, d_v=5)
D = SIZES["d_model"]
VOCABULARY = 23
LENGTH = 15
# Every position and mixer is causal and decodes so in `attn.contract`.
OPTIONS = [
    dict(),
    dict(norm=Pre(), embeddings="separate", positions=Rotary(), biases=True),
    pytest.param(
        dict(norm=PostFinal(), positions=ALiBi(), embedding_scale=1.0),
        marks=pytest.mark.ci,
    ),
]


@functools.cache
def build(**options):
    """Returns a model and random variables, biases and norms too."""
    model = LanguageModel(config.LanguageModel(**SIZES | options), VOCABULARY, LENGTH)
    variables = random_variables(model, jnp.zeros((1, 2), jnp.int32), CAUSAL)
    table = Sinusoidal().table(jax.random.key(0), LENGTH, D)
    return model, variables | dict(positions=dict(target_positions={"table": table}))


def text(count=2, length=9, seed=0):
    draw = np.random.default_rng(seed).integers
    return jnp.asarray(draw(3, VOCABULARY, (count, length)))


def logits(model, variables, tokens, ctx=CAUSAL):
    hidden = apply(model, variables, tokens, ctx)
    return apply(model, variables, hidden, method="logits")


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_logits_equal_the_oracle(norm):
    model, variables = build(norm=NORMS[norm]())
    exact = jax.tree.map(np.float64, variables)
    table = exact["positions"]["target_positions"]["table"]
    actual = logits(model, variables, text())[0]
    expected = numpy_transformer.language_model(
        exact["params"], table, text()[0], norm=norm
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", OPTIONS)
def test_all_in_one_pass_are_one_by_one(options):
    """After each beginning by itself, and token after token over the cache, two texts
    side by side.
    """
    model, variables = build(**options)
    tokens = text()
    expected = apply(model, variables, tokens, CAUSAL)
    for t in (0, 3, 7):
        other = tokens.at[:, t + 1 :].set(2)
        actual = apply(model, variables, other, CAUSAL)[:, : t + 1]
        np.testing.assert_allclose(actual, expected[:, : t + 1], rtol=1e-4, atol=1e-4)
    room = 1, 9, jnp.float32, 2
    caches = model.apply(variables, *room, method="empty_caches")
    (actual,) = steps(model, variables, tokens[None], caches, method="decode")
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def test_packed_texts_do_not_see_each_other():
    model, variables = build()
    first, second = text(length=5)
    row = jnp.concatenate([first[:4], second])[None]
    texts = jnp.array([[1] * 4 + [2] * 5])
    places = jnp.array([[*range(4), *range(5)]])
    mask = Mask.causal() & Mask.segments(texts, texts)
    (actual,) = apply(model, variables, row, Context(mask, places))
    for part, own in ((actual[:4], first[:4]), (actual[4:], second)):
        (expected,) = apply(model, variables, own[None], CAUSAL)
        np.testing.assert_allclose(part, expected, rtol=1e-4, atol=1e-4)


@functools.cache
def loss_and_gradients(rate=0.0, **options):
    """Returns those of layers that differ by their number."""
    model, variables = build(norm=Pre(), heads=Differential())
    other = model.clone(**options)
    numbers = dict.fromkeys(("P_drop", "P_attention", "P_ff"), rate)
    keys = keys_of_rows(jax.random.key(3), jnp.arange(2))

    def loss(variables):
        ctx = CAUSAL.replace(numbers=numbers, keys=keys)
        return (other.apply(variables, text(), ctx) ** 2).sum()

    return jax.jit(jax.value_and_grad(loss))(variables)


@pytest.mark.parametrize(
    ("options", "rate"),
    [
        (dict(remat=True), 0.5),
        pytest.param(dict(scan=True), 0.0, marks=pytest.mark.ci),
        pytest.param(dict(scan=True, remat=True), 0.0, marks=pytest.mark.ci),
    ],
)
def test_remat_and_scan_change_nothing(options, rate):
    """With remat not even what is dropped; a scan's layers draw otherwise."""
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-3),
        loss_and_gradients(rate, **options),
        loss_and_gradients(rate),
    )


def test_a_scan_with_remat_draws_as_without():
    both = [loss_and_gradients(0.5, scan=True, remat=x)[0] for x in (False, True)]
    np.testing.assert_allclose(*both, rtol=1e-4)
    assert not np.isclose(both[0], loss_and_gradients(0.0)[0], rtol=1e-2)


def test_dropout_of_a_row_is_its_own_whatever_batch_it_is_in():
    model, variables = build()
    tokens = text(4)
    key = jax.random.key(5)

    def hidden(rows):
        rows = np.array(rows)
        numbers = dict.fromkeys(("P_drop", "P_attention", "P_ff"), 0.3)
        ctx = CAUSAL.replace(numbers=numbers, keys=keys_of_rows(key, rows))
        return apply(model, variables, tokens[rows], ctx)

    whole = hidden([0, 1, 2, 3])
    np.testing.assert_allclose(hidden([2, 0]), whole[np.array([2, 0])], atol=1e-5)
    same = hidden([1, 1])
    np.testing.assert_array_equal(same[0], same[1])
    tokens = tokens.at[3].set(tokens[1])
    other = hidden([1, 3])
    assert not np.allclose(other[0], other[1])
