"""Positions as values: their hooks, their checks, and which programs they share."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import (
    T5,
    ALiBi,
    Learned,
    NoPositions,
    Positions,
    Relative,
    Rotary,
    Sinusoidal,
    rotary,
    sinusoidal,
)

KEY = jax.random.key(0)


def test_a_table_alone_does_not_act_in_the_layers():
    assert not any(cls().in_layers for cls in (Sinusoidal, Learned, NoPositions))
    assert all(cls().in_layers for cls in (Rotary, ALiBi, T5, Relative))


def test_the_table_of_learned_positions_alone_is_trained():
    assert Learned.trained
    others = (NoPositions, Sinusoidal, Rotary, ALiBi, T5, Relative)
    assert not any(cls.trained for cls in others)


@pytest.mark.parametrize("cls", [NoPositions, Rotary, ALiBi, T5, Relative])
def test_the_table_is_zero_by_default(cls):
    np.testing.assert_array_equal(cls().table(KEY, 5, 4), np.zeros((5, 4)))


def test_the_table_of_sinusoids_has_its_options():
    value = Sinusoidal(base=100.0, layout="halves")
    table = value.table(KEY, 5, 4)
    np.testing.assert_array_equal(table, sinusoidal(5, 4, "halves", 100.0))


def test_values_of_equal_options_are_equal():
    assert Rotary() == Rotary(10_000.0)
    assert hash(T5(16)) == hash(T5(buckets=16))
    assert Sinusoidal() != Learned()


def test_a_fraction_of_a_head_is_turned():
    draw = np.random.default_rng(0).normal
    x = jnp.asarray(draw(size=(2, 5, 3, 8)), jnp.float32)
    at = jnp.arange(5)
    turned = Rotary(fraction=0.25).rotate(x, at)
    np.testing.assert_array_equal(turned[..., :2], rotary(x[..., :2], at))
    np.testing.assert_array_equal(turned[..., 2:], x[..., 2:])


def test_the_bias_has_its_options():
    bias = T5(buckets=8, max_distance=20).bias(KEY, 3, causal=True)
    assert bias.table.shape == (3, 8)
    assert bias.max_distance == 20
    assert not bias.bidirectional
    assert Relative(reach=5).bias(KEY, 3, causal=False).table.shape == (3, 11)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Sinusoidal(), "d_model=9 must be even: sinusoidal positions come as pairs"),
        (Sinusoidal(layout="half"), "unknown layout 'half'; known: interleaved"),
        (Rotary(), "d_k=7 must be even: rotary positions turn pairs"),
        (Rotary(fraction=0.5), "fraction=0.5 of d_k=7 is 3.5, which must be an even"),
        (Rotary(fraction=2.0), "fraction=2.0 must be above 0, and 1 at most"),
        (Rotary(base=0.0), "base=0.0 must be finite and at least 1"),
        (Sinusoidal(base=math.inf), "base=inf must be finite and at least 1"),
        (T5(buckets=7), "buckets=7 must be even"),
        (Relative(reach=0), "reach=0 must be at least 1"),
    ],
)
def test_a_value_that_does_not_fit_is_named(value, message):
    with pytest.raises(ValueError, match=message):
        value.check(9, 7)


def test_ones_own_subclass_acts_in_the_layers():
    @dataclasses.dataclass(frozen=True)
    class Half(Positions):
        def rotate(self, x, positions):
            return x / 2

    assert Half().in_layers
    assert not Positions().in_layers
