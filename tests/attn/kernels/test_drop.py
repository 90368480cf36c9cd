"""Dropout as a value drops at its rate, and the same in tiles as on the whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn.kernels.drop import Drop

pytestmark = pytest.mark.quick

N = 1 << 16


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.9])
def test_drops_at_the_rate_and_keeps_the_mean(rate):
    drop = Drop(jnp.float32(rate), jax.random.key(3))
    y = np.asarray(drop(jnp.ones((256, 256))))
    spread = np.sqrt(rate * (1 - rate) / N)
    assert abs((y == 0).mean() - rate) < 5 * spread + 1e-9
    np.testing.assert_allclose(y[y != 0], 1 / (1 - rate), rtol=1e-6)


def test_the_gradient_follows_the_same_mask():
    drop = Drop(0.3, jax.random.key(5))
    x = jnp.arange(1.0, 101.0)
    gradient = jax.grad(lambda x: drop(x).sum())(x)
    np.testing.assert_allclose(gradient * x, drop(x), rtol=1e-6)


def test_a_tile_is_dropped_as_a_part_of_the_whole():
    drop = Drop(0.5, jax.random.key(5))
    whole = drop(jnp.ones((7, 11)))
    tile = drop.tile(jnp.ones((3, 4)), 2 + jnp.arange(3), 5 + jnp.arange(4), 11)
    np.testing.assert_array_equal(tile, whole[2:5, 5:9])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rate_1_drops_everything(dtype):
    drop = Drop(jnp.float32(1), jax.random.key(5))
    x = jnp.ones(100, dtype)
    value, gradient = jax.value_and_grad(lambda x: drop(x).sum())(x)
    assert value == 0
    np.testing.assert_array_equal(gradient.astype(float), np.zeros(100))


def test_rows_beyond_the_counter_do_not_repeat_earlier_ones():
    """A row i and row i + 2^16 of 2^16 columns have the same 32-bit numbers."""
    drop = Drop(0.5, jax.random.key(5))
    columns = 1 << 16
    ones = jnp.ones((4, columns))

    def rows(start):
        tile = drop.tile(ones, start + jnp.arange(4), jnp.arange(columns), columns)
        return np.asarray(tile) == 0

    first = rows(0)
    for start in (1 << 16, 1 << 17, 3 << 16):
        later = rows(start)
        # The shares of dropped weights, and of those dropped in both, in deviations.
        for share, expected in ((later.mean(), 0.5), ((first & later).mean(), 0.25)):
            deviation = np.sqrt(expected * (1 - expected) / first.size)
            assert abs(share - expected) < 5 * deviation
