"""Positions as values: their hooks, their checks, and which programs they share."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import (
    POSITIONS,
    T5,
    ALiBi,
    CoPE,
    Fire,
    Forget,
    Kerple,
    Learned,
    NoPositions,
    Positions,
    Randomised,
    Relative,
    Rotary,
    Sinusoidal,
    config,
    rotary,
    sinusoidal,
)

KEY = jax.random.key(0)


def test_a_table_alone_does_not_act_in_the_layers():
    assert not any(cls().in_layers for cls in (Sinusoidal, Learned, NoPositions))
    inside = (Rotary, ALiBi, T5, Relative, Kerple, Fire, Forget, CoPE)
    assert all(cls().in_layers for cls in inside)


def test_what_fills_a_table_and_no_more_is_data():
    is_data = {cls for cls in POSITIONS.values() if cls().is_data}
    assert is_data == {Sinusoidal, Learned, NoPositions}
    assert not Randomised().in_layers


@pytest.mark.parametrize("cls", [NoPositions, Rotary, ALiBi, T5, Relative])
def test_the_table_is_zero_by_default(cls):
    np.testing.assert_array_equal(cls().table(KEY, 5, 4), np.zeros((5, 4)))


def test_the_table_of_sinusoids_has_its_options():
    value = Sinusoidal(base=100.0, layout="halves")
    table = value.table(KEY, 5, 4)
    np.testing.assert_array_equal(table, sinusoidal(5, 4, "halves", 100.0))


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
        (Kerple("root"), "unknown kernel 'root'; known: log, power"),
        (Fire(width=0), "width=0 must be at least 1"),
        (Fire(threshold=0.0), "threshold=0.0 must be finite and above 0"),
        (Rotary(scaling="dynamic"), "unknown scaling 'dynamic'; known: linear, ntk"),
        (Rotary(factor=0.5), "factor=0.5 must be finite and at least 1"),
        (Rotary(length=0), "length=0 must be at least 1"),
        (Randomised(longest=0), "d_model=9 must be even"),
    ],
)
def test_a_value_that_does_not_fit_is_named(value, message):
    with pytest.raises(ValueError, match=message):
        value.check(config.Attention(d_model=9, d_k=7))


def test_places_are_drawn_in_training_and_at_equal_distances_otherwise():
    value = Randomised(longest=100)
    counted = jnp.broadcast_to(jnp.arange(7), (300, 7))
    drawn = np.asarray(value.places(counted, 20, jax.random.key(0)))
    assert (np.diff(drawn) > 0).all()
    # As often each, so that every row of the table is trained, and by its own draw.
    assert np.bincount(drawn.ravel(), minlength=100).min() > 5
    assert len({tuple(row) for row in drawn.tolist()}) == 300
    mean = drawn.mean(0)
    # The k-th smallest of n out of L.
    np.testing.assert_allclose(mean, 101 * np.arange(1, 8) / 8 - 1, atol=5)
    np.testing.assert_array_equal(value.places(jnp.arange(7), 20), 5 * np.arange(7))
    last = value.places(jnp.array([19]), 20)
    assert last == 95 and len(value.table(KEY, 20, 4)) == 100
    packed = jnp.array([[0, 1, 2, 0, 1]])
    (row,) = np.asarray(value.places(packed, 20, jax.random.key(1)))
    assert (row[:2] == row[3:]).all() and row[0] < row[1] < row[2]


def test_ones_own_subclass_acts_in_the_layers():
    @dataclasses.dataclass(frozen=True)
    class Half(Positions):
        def rotate(self, x, positions):
            return x / 2

    assert Half().in_layers
    assert not Positions().in_layers
