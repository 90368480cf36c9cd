"""The cheap random bits are random enough for dropout."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn.jax_versions import enable_x64
from attn.random_bits import cheap_key, counter, random_bits

pytestmark = pytest.mark.quick

N = 1 << 16


def draw(key, shape):
    return random_bits(key, counter(shape))


def words(seed, shape=(N,)):
    return np.asarray(draw(jax.random.key(seed), shape))


@pytest.mark.parametrize("seed", range(3))
def test_each_bit_is_fair_and_independent_of_its_neighbours(seed):
    octets = words(seed).view(np.uint8).reshape(N, 4)
    bits = np.unpackbits(octets, axis=1).astype(float)
    # 5 standard errors of a fair coin, over 32 places and then 32·31/2 pairs of them.
    assert np.abs(bits.mean(0) - 0.5).max() < 5 * 0.5 / np.sqrt(N)
    correlation = np.corrcoef(bits.T) - np.eye(32)
    assert np.abs(correlation).max() < 5 / np.sqrt(N)


@pytest.mark.parametrize("lag", [1, 2, 3, 64, 128, 512, 4096])
def test_successive_words_are_uncorrelated(lag):
    x = words(7) / 2**32
    assert abs(np.corrcoef(x[:-lag], x[lag:])[0, 1]) < 5 / np.sqrt(N)


def test_words_fill_their_range_evenly():
    counts, _ = np.histogram(words(11), bins=256, range=(0, 2**32))
    expected = N / 256
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    # 255 degrees of freedom: mean 255, standard deviation 22.6.
    assert 160 < chi_squared < 370


def test_keys_are_independent():
    """Neighbouring keys, as rows, steps and lanes have them, give uncorrelated streams."""
    fold_in = jax.vmap(jax.random.fold_in, (None, 0))
    keys = fold_in(jax.random.key(0), jnp.arange(64))
    streams = np.asarray(jax.vmap(lambda key: draw(key, (4096,)))(keys)) / 2**32
    correlation = np.corrcoef(streams) - np.eye(64)
    assert np.abs(correlation).max() < 5.5 / np.sqrt(4096)


@pytest.mark.parametrize("width", [8, 16, 64])
def test_a_cheap_key_has_words_of_every_width(width):
    """As draws of bfloat16, and of float64 where that is enabled, need them."""
    with enable_x64(True):
        drawn = jax.random.bits(cheap_key(jax.random.key(0)), (2, N), f"uint{width}")
    octets = np.asarray(drawn).view(np.uint8).reshape(2 * N, width // 8)
    bits = np.unpackbits(octets, axis=1).astype(float)
    assert np.abs(bits.mean(0) - 0.5).max() < 5 * 0.5 / np.sqrt(2 * N)
    correlation = np.corrcoef(bits.T) - np.eye(width)
    assert np.abs(correlation).max() < 5 / np.sqrt(2 * N)


def test_cheap_keys_are_independent():
    """Rows of a batch, and in each row the places of dropout, numbered or hashed."""
    size = 1 << 14
    fold_in = jax.vmap(jax.random.fold_in, (None, 0))
    rows = jax.vmap(cheap_key)(fold_in(jax.random.key(0), jnp.arange(6)))
    numbers = [0, 1, 2, 3, 2**31, 2**31 + 1, 0xFFFFFFFF, 0x9E3779B1]
    places = jnp.array(numbers, jnp.uint32)
    keys = jax.vmap(fold_in, (0, None))(rows, places).reshape(-1)
    children = jax.random.split(rows[0], (4, 4)).reshape(-1)
    keys = jnp.concatenate([keys, children])
    streams = np.asarray(jax.vmap(lambda key: draw(key, (size,)))(keys)) / 2**32
    for lag in (0, 1, 128):
        late = streams[:, lag:]
        early = streams[:, : size - lag]
        correlation = np.abs(np.corrcoef(late, early)[:64, 64:])
        if lag == 0:
            correlation = correlation - np.eye(64)
        assert correlation.max() < 5.5 / np.sqrt(size)


def test_cheap_keys_fold_in_order():
    key = cheap_key(jax.random.key(0))

    def folded(*numbers):
        child = functools.reduce(jax.random.fold_in, numbers, key)
        return tuple(jax.random.key_data(child).tolist())

    orders = ((), (1,), (2,), (1, 2), (2, 1), (1, 1), (2, 2))
    assert len({folded(*numbers) for numbers in orders}) == 7


def test_bits_of_a_cheap_key_are_those_of_its_counter():
    key = cheap_key(jax.random.key(0))
    assert jax.random.bits(key, (3,)).tolist() == draw(key, (3,)).tolist()
