"""Matrices in 8 bits: the bound of their error, what is left as it is, and a model of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn.io import Int8, dequantise, quantise
from attn.jax_versions import enable_x64


def is_int8(x):
    return isinstance(x, Int8)


@pytest.mark.parametrize("shape", [(32, 32), (64, 4, 16), (2, 37, 29), (1, 5000)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_entry_is_off_by_half_a_step_of_its_block(shape, dtype):
    generator = np.random.default_rng(0)
    # Blocks of unlike sizes, each of which has a scale of its own.
    x = generator.standard_normal(shape) * np.exp(3 * generator.standard_normal(shape))
    x = jnp.asarray(x, dtype)
    small = quantise(x)
    assert small.numbers.dtype == jnp.int8
    actual = dequantise(small)
    assert actual.shape == shape
    assert actual.dtype == dtype
    exact = np.asarray(x, np.float64).reshape(-1)
    error = np.abs(np.asarray(actual, np.float64).reshape(-1) - exact)
    for start in range(0, exact.size, 64):
        block = slice(start, start + 64)
        largest = np.abs(exact[block]).max()
        # Beside half a step the result is rounded, to its own dtype.
        rounding = 2 * float(jnp.finfo(dtype).eps) * largest
        assert error[block].max() <= largest / 254 + rounding


def test_float64_stays_float64():
    exact = np.random.default_rng(3).standard_normal((32, 64)) * 1e200
    with enable_x64():
        actual = np.asarray(dequantise(quantise(jnp.asarray(exact))))
    assert actual.dtype == np.float64
    steps = np.abs(exact).max(-1, keepdims=True) / 127
    assert (np.abs(actual - exact) <= steps * (0.5 + 1e-12)).all()


def test_a_number_takes_eight_and_a_half_bits():
    small = quantise(jnp.ones((128, 64)))
    size = sum(x.nbytes for x in jax.tree.leaves(small))
    assert 8 * size == 8.5 * 128 * 64


def test_small_arrays_vectors_and_integers_stay():
    tree = {
        "vector": jnp.linspace(0, 1, 5000),
        "few": jnp.linspace(0, 1, 1023).reshape(33, 31),
        "integers": jnp.arange(5000).reshape(50, 100),
        "matrix": jnp.linspace(0, 1, 1024).reshape(2, 512),
    }
    small = quantise(tree)
    assert is_int8(small.pop("matrix"))
    for name, x in small.items():
        assert x is tree[name]


def test_zeros_stay_zeros_and_what_is_not_finite_is_seen():
    x = np.zeros((3, 1024), np.float32)
    x[1, 5] = np.nan
    x[2, 5] = np.inf
    actual = dequantise(quantise(jnp.asarray(x)))
    np.testing.assert_array_equal(actual[0], 0)
    for row in (1, 2):
        assert np.isnan(actual[row, :64]).all()
        np.testing.assert_array_equal(actual[row, 64:], 0)


def test_what_is_rounded_stays_where_it_is():
    x = jnp.asarray(np.random.default_rng(1).standard_normal((64, 64)), jnp.float32)
    once = dequantise(quantise(x))
    again = quantise(once)
    np.testing.assert_array_equal(again.numbers, quantise(x).numbers)
    np.testing.assert_allclose(dequantise(again), once, rtol=3e-7)


def test_a_stack_of_models_is_rounded_one_by_one():
    x = np.random.default_rng(2).standard_normal((3, 40, 50)).astype(np.float32)
    stacked = jax.vmap(quantise)(jnp.asarray(x))
    assert stacked.shape == (40, 50)
    for one, exact in zip(jax.vmap(dequantise)(stacked), x, strict=True):
        np.testing.assert_array_equal(one, dequantise(quantise(jnp.asarray(exact))))
