"""What stands between versions of JAX means the same on all of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import jax_versions
from attn.jax_versions import apply_linear, enable_x64, jax_nn_gives_lse


def test_x64_is_on_within_its_context_alone():
    with enable_x64():
        assert jnp.ones(1, np.float64).dtype == np.float64
        with enable_x64(False):
            assert jnp.ones(1).dtype == np.float32
    assert jnp.ones(1).dtype == np.float32


@pytest.mark.parametrize("version", [(0, 7), jax_versions.VERSION])
def test_a_scan_over_tangents_is_transposed(monkeypatch, version):
    """As old versions need it, and as this one does."""
    monkeypatch.setattr(jax_versions, "VERSION", max(version, (0, 7)))

    @jax.custom_jvp
    def product(x, y):
        return x @ y

    @product.defjvp
    def _product_jvp(primals, tangents):
        def tangent(d_x, d_y):
            x, y = primals

            def add(total, row):
                d_x, d_y, x, y = row
                return total + d_x * y + x * d_y, None

            zero = 0 * (d_x.sum() + d_y.sum())
            return jax.lax.scan(add, zero, (d_x, d_y, x, y))[0]

        return product(*primals), apply_linear(tangent, *tangents)

    x, y = jnp.array([1.0, 2.0]), jnp.array([3.0, 5.0])
    d_x, d_y = jax.grad(product, (0, 1))(x, y)
    np.testing.assert_array_equal(d_x, y)
    np.testing.assert_array_equal(d_y, x)


def test_the_lse_of_jax_nn_is_known():
    """From 0.8.1 on."""
    assert jax_nn_gives_lse() == (jax.__version_info__ >= (0, 8, 1))
