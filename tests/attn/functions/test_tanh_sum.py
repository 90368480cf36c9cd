"""The additive score's product of exponentials: as exact as tanh itself, wherever the
pre-activations lie.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from attn import Additive, attention
from attn.functions import tanh_sum as module
from attn.jax_versions import enable_x64
from tests.attn import oracle

pytestmark = pytest.mark.quick

tanh_sum = jax.jit(module.tanh_sum)

N = 37
M = 53
A = 19


def drawn(spread, features=A):
    draw = np.random.default_rng(0).normal
    return [
        draw(size=shape).astype(np.float32) * scale
        for shape, scale in (
            ((features, N), spread),
            ((features, M), spread),
            ((features,), 1),
        )
    ]


def exact(a, b, v):
    a, b, v = (np.asarray(x, np.float64) for x in (a, b, v))
    return np.einsum("fnm,f->nm", np.tanh(a[:, :, None] + b[:, None]), v)


@jax.jit
def textbook(a, b, v):
    return jnp.einsum("fnm,f->nm", jnp.tanh(a[:, :, None] + b[:, None]), v)


@pytest.mark.parametrize("spread", [0.3, 1, 5, 30, 300])
@pytest.mark.parametrize("features", [1, 8, 19])
def test_error_is_at_most_twice_the_textbook_forms(spread, features):
    arrays = drawn(spread, features)
    of = {f: np.abs(f(*arrays) - exact(*arrays)).max() for f in (tanh_sum, textbook)}
    assert of[tanh_sum] <= 2 * of[textbook]


@functools.partial(jax.jit, static_argnums=0)
def gradients(f, a, b, v, weight):
    return jax.grad(lambda *x: (f(*x) * weight).sum(), (0, 1, 2))(a, b, v)


@pytest.mark.parametrize("spread", [0.3, 1, 5, 30])
def test_gradients_err_at_most_twice_as_much_as_the_textbook_forms(spread):
    a, b, v = drawn(spread)
    weight = np.random.default_rng(1).normal(size=(N, M)).astype(np.float32)
    t = np.tanh(a[:, :, None].astype(np.float64) + b[:, None])
    slope = weight * v[:, None, None] * (1 - t**2)
    expected = slope.sum(2), slope.sum(1), (weight * t).sum((1, 2))
    for ours, theirs, exact in zip(
        *(gradients(f, a, b, v, weight) for f in (tanh_sum, textbook)),
        expected,
        strict=True,
    ):
        errors = [np.abs(x - exact).max() for x in (ours, theirs)]
        assert errors[0] <= 2 * errors[1] + 1e-7 * np.abs(exact).max()


@pytest.mark.parametrize("size", [60.0, 150.0, 2_000.0])
def test_large_pre_activations_that_cancel(size):
    """The digits of a small difference are not lost, and a = −b gives 0 to the rounding of 1."""
    small = np.linspace(-2, 2, M, dtype=np.float32)[None]
    a = np.full((1, N), size, np.float32)
    b = small - np.float32(size)
    expected = np.tanh(np.float64(a[0, 0]) + b[0].astype(np.float64))
    np.testing.assert_allclose(
        tanh_sum(a, b, np.ones(1, np.float32))[0], expected, atol=5e-7
    )
    np.testing.assert_allclose(tanh_sum(a, -a, np.ones(1, np.float32)), 0, atol=6e-8)
    d_a = jax.grad(lambda a: tanh_sum(a, -a[:, :1], np.ones(1, np.float32))[0, 0])(a)
    assert jnp.isfinite(d_a).all()


def test_saturates_without_overflow():
    a = np.array([[-1e30, -4e3, -90, 90, 4e3, 1e30]], np.float32)
    np.testing.assert_allclose(
        tanh_sum(a, a, np.full(1, 1e3, np.float32)), 1e3 * np.sign(a.T + a), atol=1e-3
    )


def test_nan_stays_with_its_token():
    a, b, v = drawn(1)
    a[3, 5] = b[2, 7] = np.nan
    expected = np.zeros((N, M), bool)
    expected[5] = True
    expected[:, 7] = True
    np.testing.assert_array_equal(np.isnan(tanh_sum(a, b, v)), expected)


def test_two_derivatives_in_float64():
    with enable_x64(True):
        a, b, v = (
            jnp.asarray(x[..., :3] if x.ndim > 1 else x, jnp.float64)
            for x in drawn(1, 3)
        )
        for spread in (1, 30):
            np.testing.assert_allclose(
                tanh_sum(spread * a, spread * b, v),
                exact(spread * a, spread * b, v),
                rtol=1e-14,
                atol=1e-15,
            )
        check_grads(tanh_sum, (a, b, v), order=2, modes=("fwd", "rev"))


def test_memory_is_that_of_the_scores():
    """Temporary MiB of value and gradients at 1,024 tokens and 64 features: the
    textbook tensor alone is 256.
    """
    shapes = [jax.ShapeDtypeStruct((1024, 1, 64), jnp.float32)] * 3
    weights = [
        jax.ShapeDtypeStruct((1, *shape), jnp.float32)
        for shape in ((64, 64), (64, 64), (64,))
    ]

    def loss(q, k, v, *parameters):
        return attention(q, k, v, score=Additive(*parameters)).sum()

    compiled = (
        jax.jit(jax.grad(loss, argnums=range(6))).lower(*shapes, *weights).compile()
    )
    assert compiled.memory_analysis().temp_size_in_bytes / 2**20 < 16


@pytest.mark.parametrize("spread", [1, 30])
def test_additive_attention_errs_at_most_twice_as_much_as_the_textbook_form(spread):
    draw = np.random.default_rng(3).normal
    q, k, v = (draw(size=(n, 1, 16)).astype(np.float32) for n in (N, M, M))
    w_q, w_k, w_v = (
        draw(size=(1, *shape)).astype(np.float32) * scale
        for shape, scale in (((16, A), spread / 4), ((16, A), spread / 4), ((A,), 1))
    )
    wide = [x.astype(np.float64) for x in (w_q, w_k, w_v)]
    expected, _, _ = oracle.attention(
        q[:, 0],
        k[:, 0],
        v[:, 0],
        np.ones((N, M)),
        lambda q, k: np.tanh(q @ wide[0][0] + k @ wide[1][0]) @ wide[2][0],
    )
    errors = [
        np.abs(
            attention(q, k, v, score=Additive(w_q, w_k, w_v), implementation=name)[:, 0]
            - expected
        ).max()
        for name in ("blocks", "reference")
    ]
    assert errors[0] <= 2 * errors[1]


@pytest.mark.parametrize("features", [8, 19])
def test_features_that_share_a_pass_have_the_same_gradients(monkeypatch, features):
    """As on a GPU, also where the last pass has fewer; and the second derivative."""
    arguments = [jnp.asarray(x) for x in drawn(2.0, features)]
    weights = np.random.default_rng(1).normal(size=(N, M)).astype(np.float32)

    def derivatives():
        loss = lambda a, b, v: (weights * module.tanh_sum(a, b, v)).sum()
        gradient = jax.grad(loss, (0, 1, 2))
        return jax.jit(lambda *x: jax.jvp(gradient, x, x))(*arguments)

    alone = derivatives()
    monkeypatch.setattr(module, "features_of_gradient", lambda: 8)
    for one, other in zip(*map(jax.tree.leaves, (derivatives(), alone)), strict=True):
        largest = np.abs(other).max()
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-6 * largest)
