"""The cheap random bits are random enough for dropout."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn.dropout import Drop, cheap_key, mixed_bits

N = 1 << 16


def words(seed, shape=(N,)):
    return np.asarray(mixed_bits(jax.random.key(seed), shape))


@pytest.mark.parametrize("seed", range(3))
def test_each_bit_is_fair_and_independent_of_its_neighbours(seed):
    bits = np.unpackbits(words(seed).view(np.uint8).reshape(N, 4), axis=1).astype(float)
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
    chi_squared = ((counts - N / 256) ** 2 / (N / 256)).sum()
    assert (
        160 < chi_squared < 370
    )  # 255 degrees of freedom: mean 255, standard deviation 22.6


def test_keys_are_independent():
    """Neighbouring keys, as rows, steps and lanes have them: each pair of streams is uncorrelated."""
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), jnp.arange(64))
    streams = np.asarray(jax.vmap(lambda key: mixed_bits(key, (4096,)))(keys)) / 2**32
    correlation = np.corrcoef(streams) - np.eye(64)
    assert np.abs(correlation).max() < 5.5 / np.sqrt(4096)


def test_cheap_keys_are_independent():
    """Rows of a batch, and in each row the places of dropout, numbered one after the other or by large hashes."""
    rows = jax.vmap(cheap_key)(
        jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), jnp.arange(6))
    )
    places = jnp.array(
        [0, 1, 2, 3, 2**31, 2**31 + 1, 0xFFFFFFFF, 0x9E3779B1], jnp.uint32
    )
    keys = jax.vmap(
        lambda row: jax.vmap(lambda place: jax.random.fold_in(row, place))(places)
    )(rows).reshape(-1)
    keys = jnp.concatenate([keys, jax.random.split(rows[0], (4, 4)).reshape(-1)])
    streams = (
        np.asarray(jax.vmap(lambda key: mixed_bits(key, (1 << 14,)))(keys)) / 2**32
    )
    for lag in (0, 1, 128):
        correlation = np.abs(
            np.corrcoef(streams[:, lag:], streams[:, : streams.shape[1] - lag])[
                :64, 64:
            ]
        )
        assert (correlation - (np.eye(64) if lag == 0 else 0)).max() < 5.5 / np.sqrt(
            1 << 14
        )


def test_cheap_keys_fold_in_order():
    key = cheap_key(jax.random.key(0))

    def words(*numbers):
        return jax.random.key_data(
            functools.reduce(jax.random.fold_in, numbers, key)
        ).tolist()

    assert (
        len(
            {
                tuple(words(*numbers))
                for numbers in ((), (1,), (2,), (1, 2), (2, 1), (1, 1), (2, 2))
            }
        )
        == 7
    )
    assert jax.random.bits(key, (3,)).tolist() == mixed_bits(key, (3,)).tolist()
    with pytest.raises(ValueError, match="words of 32 bits, not 16"):
        jax.random.bits(key, (3,), jnp.uint16)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.9])
def test_drops_at_the_rate_and_keeps_the_mean(rate):
    y = np.asarray(Drop(jnp.float32(rate), jax.random.key(3))(jnp.ones((256, 256))))
    assert abs((y == 0).mean() - rate) < 5 * np.sqrt(rate * (1 - rate) / N) + 1e-9
    np.testing.assert_allclose(y[y != 0], 1 / (1 - rate), rtol=1e-6)


def test_same_key_same_mask_and_the_gradient_follows_it():
    drop = Drop(0.3, jax.random.key(5))
    x = jnp.arange(1.0, 101.0)
    gradient = jax.grad(lambda x: drop(x).sum())(x)
    np.testing.assert_allclose(gradient * x, drop(x), rtol=1e-6)
