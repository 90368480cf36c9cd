"""The "cudnn" implementation: equal to the reference where it serves, a reason where
it does not.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import Additive, Bilinear, Dot, Mask, ScaledDot, attention
from attn.jax_versions import enable_x64

pytestmark = pytest.mark.quick

B = 2
N = 5
M = 7
H = 3
K = 11
DRAW = np.random.default_rng(0).normal
SCORES = {
    "one scale": ScaledDot(0.3),
    "dot": Dot(),
    "scale of each head": ScaledDot(jnp.array([0.1, 0.3, 0.5])),
    "bilinear": Bilinear(jnp.asarray(DRAW(size=(H, K, K)), jnp.float32)),
}
ROW = np.arange(N)[:, None]
COLUMN = np.arange(M)[None]
# A mask beside what it lets each query of each example see.
MASKS = {
    "none": (None, np.ones((N, M), bool)),
    "causal": (Mask.causal(), COLUMN <= ROW),
    "window": (Mask.window(1, 2), (ROW - 1 <= COLUMN) & (COLUMN <= ROW + 2)),
    "lengths": (
        Mask.padding(np.array([4, 7])),
        np.array([4, 7])[:, None, None] > COLUMN,
    ),
    "causal, nobody sees": (Mask.causal(offset=-2), COLUMN <= ROW - 2),
    "far right": (
        Mask.window(-6, 9),
        (ROW + 6 <= COLUMN) & (COLUMN <= ROW + 9),
    ),
    "all": (
        Mask.padding(np.array([0, 5]))
        & Mask.padding(np.array([4, 3]))
        & Mask.window(2, 4)
        & Mask.causal(),
        (np.array([0, 3])[:, None, None] > COLUMN)
        & (ROW - 2 <= COLUMN)
        & (COLUMN <= ROW),
    ),
}


@pytest.fixture
def qkv():
    draw = np.random.default_rng(1).normal
    return [jnp.asarray(draw(size=(B, n, H, K)), jnp.float32) for n in (N, M, M)]


@pytest.mark.parametrize(
    ("score", "mask"),
    [
        *(("bilinear", mask) for mask in MASKS),
        *((score, "all") for score in SCORES if score != "bilinear"),
    ],
)
def test_equals_the_reference_with_gradients(qkv, score, mask):
    mask, visible = MASKS[mask]
    visible = np.broadcast_to(visible, (B, N, M))[:, None]
    arguments = *qkv, SCORES[score]
    actual = gradients("cudnn", mask, *arguments)
    # One program of the reference a score.
    expected = gradients("reference", Mask.dense(visible), *arguments)
    for a, b in zip(*map(jax.tree.leaves, (actual, expected)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@functools.partial(jax.jit, static_argnums=0)
def gradients(implementation, mask, *arguments):
    """Of q, k, v and the score, and the output."""

    def loss(q, k, v, score):
        out = attention(q, k, v, score=score, mask=mask, implementation=implementation)
        return (out**2).sum(), out

    return jax.grad(loss, argnums=(0, 1, 2, 3), has_aux=True)(*arguments)


@pytest.mark.parametrize(
    "mask",
    [
        Mask.padding(np.array([4, 6])),
        Mask.window(0, 1) & Mask.padding(np.array([4, 6])),
    ],
)
@pytest.mark.parametrize("where", [1, 2], ids=["key", "value"])
def test_nan_is_seen_by_those_who_see_it(qkv, mask, where):
    bad = list(qkv)
    bad[where] = bad[where].at[0, 4:, 0].set(jnp.nan).at[1, 3, 2, 1].set(jnp.inf)
    out = [
        np.asarray(attention(*bad, mask=mask, implementation=name))
        for name in ("cudnn", "reference")
    ]
    np.testing.assert_allclose(*out, rtol=2e-4, atol=2e-5)
    assert np.isnan(out[0][1]).any() and not np.isnan(out[0][0]).any()


def test_a_query_of_nan_that_sees_nothing_reaches_no_gradient(qkv):
    q, k, v = qkv
    bad = q.at[0, N - 1].set(jnp.nan)
    # The last query of the first example stands behind all its keys.
    mask = Mask.window(0, 0) & Mask.padding(np.array([N - 1, N]))

    def loss(q, k, v):
        return (attention(q, k, v, mask=mask, implementation="cudnn") ** 2).sum()

    gradient = jax.jit(jax.grad(loss, (0, 1, 2)))
    actual = gradient(bad, k, v)
    expected = gradient(q.at[0, N - 1].set(0), k, v)
    jax.tree.map(np.testing.assert_array_equal, actual, expected)
    seen = attention(bad, k, v, implementation="cudnn")
    np.testing.assert_array_equal(np.isnan(seen).all(-1), np.isnan(bad).any(-1))


@pytest.mark.parametrize("name", ["scale of each head", "bilinear"])
def test_what_is_hidden_reaches_no_gradient_of_the_score(qkv, name):
    q, k, v = qkv
    mask = Mask.padding(np.array([4, 7])) & Mask.causal(offset=-1)

    def loss(score, q, k):
        out = attention(q, k, v, score=score, mask=mask, implementation="cudnn")
        return (out**2).sum()

    gradient = jax.jit(jax.grad(loss))
    expected = gradient(SCORES[name], q, k)
    # The first query sees nothing, and nobody sees the last key.
    for poison in (np.nan, np.inf):
        bad = q.at[:, 0].set(poison), k.at[:, -1].set(poison)
        actual = gradient(SCORES[name], *bad)
        both = map(jax.tree.leaves, (actual, expected))
        for ours, theirs in zip(*both, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            dict(
                score=Additive(
                    *(jnp.ones((H, *shape)) for shape in ((K, 2), (K, 2), (2,)))
                )
            ),
            "a matrix product",
        ),
        (
            dict(mask=Mask.dense(np.ones((N, M), bool))),
            "causal with a constant offset, window and padding",
        ),
        (dict(bias=jnp.zeros((N, M))), "−inf in the bias would give NaN"),
        (dict(dropout_rate=0.1, dropout_key=jax.random.key(0)), "no dropout"),
        (dict(return_lse=True), "its LSE has no gradient"),
        (dict(return_weights=True), "does not return weights"),
    ],
)
def test_says_why_it_cannot_serve(qkv, change, reason):
    with pytest.raises(
        ValueError, match=f"implementation='cudnn' cannot serve here: .*{reason}"
    ):
        attention(*qkv, implementation="cudnn", **change)


@pytest.mark.parametrize("dtype", [np.int64, np.int8])
def test_lengths_may_be_of_any_integers(qkv, dtype):
    expected = attention(*qkv, mask=Mask.padding(np.array([4, 6])))
    with enable_x64(True):
        mask = Mask.padding(np.array([4, 6], dtype))
        actual = attention(*qkv, mask=mask, implementation="cudnn")
    np.testing.assert_allclose(actual, expected, rtol=2e-4, atol=2e-5)


def test_an_offset_may_be_of_numpys_integers(qkv):
    expected = attention(*qkv, mask=Mask.causal(1))
    actual = attention(*qkv, mask=Mask.causal(np.int64(1)), implementation="cudnn")
    np.testing.assert_allclose(actual, expected, rtol=2e-4, atol=2e-5)


def test_a_bilinear_score_brings_queries_to_the_width_of_keys(qkv):
    q, k, v = qkv
    score = Bilinear(jnp.asarray(DRAW(size=(H, 4, K)), jnp.float32))
    expected = attention(q[..., :4], k, v, score=score)
    actual = attention(q[..., :4], k, v, score=score, implementation="cudnn")
    np.testing.assert_allclose(actual, expected, rtol=2e-4, atol=2e-5)
    with pytest.raises(ValueError, match="d_v must equal d_k, not 4 and 11"):
        attention(q[..., :4], k, v[..., :4], score=score, implementation="cudnn")


def test_widths_and_float64_are_refused(qkv):
    q, k, v = qkv
    with pytest.raises(ValueError, match="d_v must equal d_k, not 2 and 11"):
        attention(q, k, v[..., :2], implementation="cudnn")
    with (
        enable_x64(True),
        pytest.raises(ValueError, match="float32, the inputs are float64"),
    ):
        attention(
            *(jnp.asarray(np.asarray(x, np.float64)) for x in qkv),
            implementation="cudnn",
        )
