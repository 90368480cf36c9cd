"""Dropout in a model: which keys and rates it takes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attn.models.dropout import Dropout

X = jnp.ones((4, 8))


def dropped(rate, key):
    return Dropout(rate).apply({}, X, rngs={"dropout": key})


def test_legacy_keys_drop_like_typed_ones():
    expected = dropped(0.5, jax.random.key(3))
    np.testing.assert_array_equal(dropped(0.5, jax.random.PRNGKey(3)), expected)


def test_rate_1_drops_everything():
    def total(x):
        return Dropout(1.0).apply({}, x, rngs={"dropout": jax.random.key(0)}).sum()

    value, gradient = jax.value_and_grad(total)(X)
    assert value == 0
    np.testing.assert_array_equal(gradient, np.zeros(X.shape))


@pytest.mark.parametrize("rate", [1.5, -0.1, float("nan")])
def test_rates_that_are_no_probability_are_refused(rate):
    with pytest.raises(ValueError, match=f"rate={rate} must be a probability"):
        Dropout(rate).apply({}, X)
