"""Attention by hand: the examples that texts about it work out, to their printed digits."""

import jax.numpy as jnp
import numpy as np
import pytest

from attn import Dot, Mask, ScaledDot, attention, sinusoidal

pytestmark = pytest.mark.quick

I_LOVE_AI = [
    np.array(x, np.float32)[:, None]
    for x in (
        [[2, 0, 1, -1], [-1, 2, 0, 1], [0, -1, 2, 0]],
        [[-1, 0, 2, 1], [1, -1, 0, 2], [2, 1, -1, 0]],
        [[2, 1, 0, 1], [1, 2, 1, 0], [3, 1, 2, 1]],
    )
]


def test_i_love_ai():
    """Three tokens, d_k = d_v = 4, one head."""
    out, weights = attention(*I_LOVE_AI, return_weights=True)
    np.testing.assert_allclose(
        weights[0],
        [[0.10, 0.16, 0.74], [0.63, 0.14, 0.23], [0.80, 0.18, 0.02]],
        atol=0.005,
    )
    # By hand one multiplies the weights as printed; the output itself has 2.57.
    printed = np.round(weights[0, 0], 2) @ I_LOVE_AI[2][:, 0]
    np.testing.assert_allclose(printed, [2.58, 1.16, 1.64, 0.84], atol=1e-6)
    np.testing.assert_allclose(out[0, 0], [2.572, 1.164, 1.637, 0.836], atol=0.0005)


def test_i_love_ai_masked():
    """A token sees itself and those before it: the first one only itself."""
    out, weights = attention(*I_LOVE_AI, mask=Mask.causal(), return_weights=True)
    np.testing.assert_allclose(weights[0, 0], [1, 0, 0])
    np.testing.assert_allclose(out[0, 0], I_LOVE_AI[2][0, 0])
    np.testing.assert_allclose(
        weights[0, 1], np.array([0.63, 0.14, 0]) / 0.77, atol=0.01
    )


def test_fruit():
    """The query "fruit" over {apple: 10, banana: 5, chair: 2} with weights .6, .4 and 0 gives 8."""
    weights = np.array([0.6, 0.4, 0.0])
    values = jnp.array([10.0, 5, 2]).reshape(3, 1, 1)
    scores = np.log(weights, where=weights > 0, out=np.full(3, -np.inf)).astype(
        np.float32
    )
    out, kept = attention(
        jnp.ones((1, 1, 1)),
        jnp.zeros((3, 1, 1)),
        values,
        bias=scores,
        return_weights=True,
    )
    np.testing.assert_allclose(kept[0, 0], weights, rtol=1e-6)
    np.testing.assert_allclose(out[0, 0], [8], rtol=1e-6)


def test_scores_of_unit_variance_have_variance_d_k():
    """And variance 1 after scaling (the paper's section 3.2.1, footnote 4). The LSE of
    a single key is its score.
    """
    draw = np.random.default_rng(0).normal
    for d_k in (4, 64, 512):
        q, k = (
            jnp.asarray(draw(size=(20_000, 1, 1, d_k)), jnp.float32) for _ in range(2)
        )
        for score, variance in ((Dot(), d_k), (ScaledDot(), 1)):
            _, scores = attention(q, k, k, score=score, return_lse=True)
            assert abs(scores.var() / variance - 1) < 0.05


def test_a_step_of_positions_is_a_rotation():
    """PE(pos + k) is PE(pos) with each pair (sin, cos) turned by k·rate, for every pos
    (section 3.5).
    """
    d_model = 16
    k = 7
    table = sinusoidal(50, d_model).astype(np.float64)
    rate = 10_000.0 ** (-np.arange(0, d_model, 2) / d_model)
    turn = np.zeros((d_model, d_model))
    for i, angle in enumerate(k * rate):
        turn[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [
            [np.cos(angle), np.sin(angle)],
            [-np.sin(angle), np.cos(angle)],
        ]
    np.testing.assert_allclose(table[k:], table[:-k] @ turn.T, atol=1e-6)
