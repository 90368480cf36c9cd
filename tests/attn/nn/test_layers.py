"""Dropout, norms, feed-forward networks and position tables: each against numpy."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import Context, Randomised, config, keys_of_rows, sinusoidal
from attn.nn.blocks import Layer
from attn.nn.layers import FEED_FORWARDS, Dropout, Gated, PositionTable
from attn.nn.norms import NORM_KINDS, NORMS, Norm, Pre
from attn.random_bits import cheap_key
from tests.attn import numpy_transformer
from tests.attn.nn.modules import CAUSAL, apply, count, random_variables

X = jnp.ones((2, 4, 8))
D, F, H = 6, 11, 2
SIZES = dict(d_model=D, d_ff=F, h=H, d_k=4, d_v=3)
ERF = np.vectorize(math.erf)
ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * (1 + ERF(x / 2**0.5)) / 2,
    "silu": lambda x: x / (1 + np.exp(-x)),
}


def dropped(rate, keys):
    ctx = Context(numbers={"P_drop": rate}, keys={"dropout": keys})
    return Dropout("P_drop").apply({}, X, ctx)


def test_legacy_keys_drop_like_typed_ones():
    typed = jax.random.split(jax.random.key(3), 2)
    legacy = jax.random.key_data(typed)
    np.testing.assert_array_equal(dropped(0.5, typed), dropped(0.5, legacy))


def test_rate_1_drops_everything():
    def total(x):
        ctx = Context(
            numbers={"P_drop": 1.0}, keys=keys_of_rows(jax.random.key(0), jnp.arange(1))
        )
        return Dropout("P_drop").apply({}, x, ctx).sum()

    value, gradient = jax.value_and_grad(total)(X[:1])
    assert value == 0
    np.testing.assert_array_equal(gradient, np.zeros(X[:1].shape))


@pytest.mark.parametrize("rate", [1.5, -0.1, float("nan")])
def test_rates_that_are_no_probability_are_refused(rate):
    with pytest.raises(ValueError, match=f"P_drop={rate} must be a probability"):
        Dropout("P_drop").apply({}, X, Context(numbers={"P_drop": rate}))


class Inner(nn.Module):
    @nn.compact
    def __call__(self, x, ctx):
        if ctx is None:
            return self.make_rng("dropout")
        return ctx.key(self, "dropout")


class Outer(nn.Module):
    def setup(self):
        self.inner = [Inner(), Inner()]

    def __call__(self, x, ctx=None):
        return [inner(x, ctx) for inner in self.inner]


def test_keys_of_modules_are_those_of_linen_and_of_the_row():
    key = jax.random.key(7)
    rows = [5, 2]
    of_rows = Outer().apply({}, X, Context(keys=keys_of_rows(key, np.array(rows))))
    for b, row in enumerate(rows):
        rngs = {"dropout": cheap_key(jax.random.fold_in(key, row))}
        expected = Outer().apply({}, X, rngs=rngs)
        for actual, linen in zip(of_rows, expected, strict=True):
            data = jax.random.key_data(actual[b]), jax.random.key_data(linen)
            np.testing.assert_array_equal(*data)
    assert not np.array_equal(*map(jax.random.key_data, of_rows))


# Norms and feed-forward networks


def normed(p, x, kind, epsilon):
    if kind == "layer":
        return numpy_transformer.layer_norm(p, x, epsilon)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * p["scale"]


def sub_layer(norm, p, x, f):
    """Computes a sub-layer f with its norms, as the papers have them."""
    of = functools.partial(normed, kind=norm.kind, epsilon=norm.epsilon)
    place = next(name for name, cls in NORMS.items() if isinstance(norm, cls))
    if place == "pre":
        return x + f(of(p["norm"], x))
    if place == "both":
        return x + of(p["norm_inside"], f(of(p["norm"], x)))
    return of(p["norm"], x + f(x))


def linear(p, x):
    return x @ p["kernel"] + p["bias"]


def network(feed_forward, p, x):
    name = next(n for n, cls in FEED_FORWARDS.items() if type(feed_forward) is cls)
    activation = ACTIVATIONS[getattr(feed_forward, "activation", name)]
    hidden = activation(linear(p["w_1"], x))
    if name == "gated":
        hidden = hidden * linear(p["w_3"], x)
    return linear(p["w_2"], hidden)


CASES = [
    *(
        (cls(kind, 1e-2), "relu")
        for cls in NORMS.values()
        for kind in NORM_KINDS
        if not cls.remembers
    ),
    *((Pre(), name) for name in FEED_FORWARDS),
]


@pytest.mark.parametrize(("norm", "name"), CASES, ids=str)
def test_a_layer_equals_numpy(norm, name):
    feed_forward = FEED_FORWARDS[name]()
    block = config.Block(**SIZES, norm=norm, feed_forward=feed_forward)
    layer = Layer(block, causal=True)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 5, D)), jnp.float32)
    variables = random_variables(layer, x, CAUSAL)
    actual, _ = apply(layer, variables, x, CAUSAL)
    p, y = jax.tree.map(np.float64, (variables["params"], x[0]))
    attend = numpy_transformer.multi_head(p["self_attention"], np.tri(5))
    y = sub_layer(norm, p["self_norm"], y, attend)
    of = functools.partial(network, feed_forward, p["feed_forward"])
    y = sub_layer(norm, p["feed_forward_norm"], y, of)
    np.testing.assert_allclose(actual[0], y, rtol=1e-4, atol=1e-5)


def test_the_activation_of_gates_is_an_option():
    feed_forward = Gated("gelu")
    module = feed_forward.build(config.Block(**SIZES))
    x = jnp.asarray(np.random.default_rng(1).normal(size=(1, 5, D)), jnp.float32)
    variables = random_variables(module, x, Context())
    p, y = jax.tree.map(np.float64, (variables["params"], x))
    expected = network(feed_forward, p, y)
    actual = apply(module, variables, x, Context())
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
    assert count(variables) == 3 * D * F + 2 * F + D


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Norm("batch"), "unknown kind 'batch' of norm; known: layer, rms"),
        (lambda: Pre(epsilon=0.0), "epsilon=0.0 must be above 0"),
        (lambda: Gated("none"), "unknown activation 'none'; known: relu, gelu, silu"),
    ],
)
def test_values_that_make_no_sense_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# Position tables


def test_a_model_draws_places_where_keys_are_given():
    table = PositionTable(Randomised(longest=64), 8, 6)
    tokens = jnp.zeros((3, 8), jnp.int32)
    counted = jnp.arange(8)
    variables = table.init(jax.random.key(0), tokens, counted, Context())
    whole = variables["positions"]["table"]
    np.testing.assert_allclose(whole, sinusoidal(64, 6), atol=1e-6)
    plain = table.apply(variables, tokens, counted, Context())
    np.testing.assert_array_equal(plain[0], whole[::8])
    ctx = Context(keys=keys_of_rows(jax.random.key(1), np.array([0, 1, 0])))
    one, other, same = table.apply(variables, tokens, counted, ctx)
    assert (one != other).any() and (one != whole[::8]).any()
    np.testing.assert_array_equal(one, same)
    with pytest.raises(ValueError, match="longest=5 must be at least the 8 positions"):
        Randomised(longest=5).table(jax.random.key(0), 8, 6)
