"""rotary() against complex multiplication in float64, and what it is for: scores that
know distances only.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import positions
from attn.jax_versions import enable_x64
from attn.positions.rotary import rotary_rates, scaled_rates

rotary = jax.jit(positions.rotary, static_argnames="base")
B = 2
N = 5
H = 3
K = 14
POSITIONS = np.array([[0, 1, 2, 3, 4], [997, 13, 0, 5, 101]])


def turned(x, positions, base=10_000.0):
    """x_2i + √−1 · x_2i+1 times e^(√−1 · position · base^(−2i/K)), pair by pair."""
    x = np.asarray(x, np.float64)
    out = np.empty_like(x)
    for index in np.ndindex(*x.shape[:-1]):
        for i in range(x.shape[-1] // 2):
            angle = positions[index[:-1]] * base ** (-2 * i / x.shape[-1])
            z = complex(*x[index][2 * i : 2 * i + 2]) * np.exp(1j * angle)
            out[index][2 * i : 2 * i + 2] = z.real, z.imag
    return out


@pytest.fixture
def x():
    return jnp.asarray(np.random.default_rng(0).normal(size=(B, N, H, K)), jnp.float32)


@pytest.mark.parametrize("base", [10_000.0, 7.0])
def test_equals_complex_multiplication(x, base):
    np.testing.assert_allclose(
        rotary(x, jnp.asarray(POSITIONS), base), turned(x, POSITIONS, base), atol=3e-4
    )
    near = POSITIONS % 7  # float32 angles are right to position · 1e-7
    np.testing.assert_allclose(
        rotary(x, jnp.asarray(near), base), turned(x, near, base), atol=3e-6
    )
    with enable_x64(True):
        exact = rotary(
            jnp.asarray(np.asarray(x, np.float64)), jnp.asarray(POSITIONS), base
        )
        np.testing.assert_allclose(exact, turned(x, POSITIONS, base), atol=1e-12)


def test_positions_may_be_shared_by_the_examples(x):
    shared = rotary(x, jnp.asarray(POSITIONS[1]))
    np.testing.assert_array_equal(
        shared, rotary(x, jnp.asarray(np.stack([POSITIONS[1]] * B)))
    )
    np.testing.assert_array_equal(shared[0], rotary(x[0], jnp.asarray(POSITIONS[1])))
    np.testing.assert_array_equal(shared, rotary(x[None], jnp.asarray(POSITIONS[1]))[0])


def test_scores_depend_on_the_distance_only():
    q, k = np.random.default_rng(1).normal(size=(2, 1, 1, K)).astype(np.float32)

    def score(i, j):
        turn = lambda x, position: rotary(jnp.asarray(x), jnp.array([position]))[0, 0]
        return float(turn(q, i) @ turn(k, j))

    for distance in (-3, 0, 5):
        at = [score(i, i - distance) for i in (5, 11, 47)]
        np.testing.assert_allclose(at, at[0], atol=5e-5)
    assert abs(score(5, 8) - score(8, 5)) > 1e-2  # the side counts too


def test_norms_are_kept_and_position_0_turns_nothing(x):
    pairs = lambda x: np.linalg.norm(np.asarray(x).reshape(B, N, H, -1, 2), axis=-1)
    np.testing.assert_allclose(
        pairs(rotary(x, jnp.asarray(POSITIONS))), pairs(x), rtol=1e-5
    )
    np.testing.assert_array_equal(rotary(x, jnp.zeros(N, int)), x)


def test_bfloat16_is_turned_in_float32(x):
    low = x.astype(jnp.bfloat16)
    out = rotary(low, jnp.asarray(POSITIONS))
    assert out.dtype == jnp.bfloat16
    np.testing.assert_array_equal(
        out,
        rotary(low.astype(jnp.float32), jnp.asarray(POSITIONS)).astype(jnp.bfloat16),
    )


def by_hand(scaling, i, d_k, factor, length=64):
    """The rate of pair i, from the papers' formulas."""
    rate = 10_000 ** (-2 * i / d_k)
    if scaling == "linear":
        return rate / factor
    if scaling == "ntk":
        return (10_000 * factor ** (d_k / (d_k - 2))) ** (-2 * i / d_k)
    turns = length / (2 * np.pi / rate)
    gamma = min(1, max(0, (turns - 1) / 31))
    return (1 - gamma) * rate / factor + gamma * rate


@pytest.mark.parametrize("scaling", positions.SCALINGS)
def test_scaled_rates_are_the_papers(x, scaling):
    value = positions.Rotary(scaling=scaling, factor=4.0, length=64)
    rates = [by_hand(scaling, i, K, 4.0) for i in range(K // 2)]
    np.testing.assert_allclose(
        scaled_rates(K, 10_000.0, scaling, 4.0, 64), rates, rtol=1e-12
    )
    expected = np.asarray(x, np.float64)
    pairs = expected[..., ::2] + 1j * expected[..., 1::2]
    near = POSITIONS % 7
    pairs = pairs * np.exp(1j * near[..., None, None] * np.array(rates))
    if scaling == "yarn":
        pairs = pairs * (0.1 * np.log(4) + 1)
    actual = value.rotate(x, jnp.asarray(near))
    np.testing.assert_allclose(actual[..., ::2], pairs.real, atol=3e-6)
    np.testing.assert_allclose(actual[..., 1::2], pairs.imag, atol=3e-6)


@pytest.mark.parametrize("scaling", positions.SCALINGS)
def test_a_factor_of_1_is_no_scaling(x, scaling):
    value = positions.Rotary(scaling=scaling, factor=1.0)
    np.testing.assert_array_equal(
        value.rotate(x, jnp.arange(N)), positions.Rotary().rotate(x, jnp.arange(N))
    )
    np.testing.assert_allclose(
        scaled_rates(K, 7.0, scaling, 1.0, 64),
        rotary_rates(K, 7.0),
        rtol=1e-12,
    )


def test_what_scalings_slow_down():
    """ntk and yarn keep the fastest pair, and slow down the slowest by the factor."""
    for scaling in ("ntk", "yarn"):
        slower = scaled_rates(K, 1e4, scaling, 8.0, 256)
        ratio = slower / rotary_rates(K, 1e4)
        np.testing.assert_allclose(ratio[[0, -1]], [1, 1 / 8], rtol=1e-12)
        assert (np.diff(ratio) <= 1e-12).all()


def test_an_odd_width_is_named(x):
    with pytest.raises(ValueError, match="d_k=13 must be even"):
        rotary(x[..., :13], jnp.arange(N))
