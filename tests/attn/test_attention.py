"""attention() against the float64 oracle, its edge cases, and its errors. Sizes are different primes."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from jax.test_util import check_grads

from attn import Dot, Mask, ScaledDot, attention
from tests.attn import oracle

B, N, M, H, K, V = 2, 5, 7, 3, 11, 13


@pytest.fixture
def qkv():
    draw = np.random.default_rng(0).normal
    return [jnp.asarray(draw(size=shape), jnp.float32) for shape in ((B, N, H, K), (B, M, H, K), (B, M, H, V))]


LENGTHS = np.array([4, 7])
Q_IDS, K_IDS = np.array([[1, 1, 2, 2, 0], [1, 2, 3, 3, 3]]), np.array([[1, 1, 2, 2, 2, 0, 0], [3, 3, 2, 2, 1, 1, 1]])
DENSE = np.random.default_rng(1).random((B, H, N, M)) < 0.5
ROW, COLUMN = np.arange(N)[:, None], np.arange(M)[None]

MASKS = {
    "none": (None, np.ones((B, H, N, M), bool)),
    "causal": (Mask.causal(), np.broadcast_to(COLUMN <= ROW, (B, H, N, M))),
    "causal, offset": (Mask.causal(offset=M - N), np.broadcast_to(COLUMN <= ROW + 2, (B, H, N, M))),
    "window": (Mask.window(1, 2), np.broadcast_to((ROW - 1 <= COLUMN) & (COLUMN <= ROW + 2), (B, H, N, M))),
    "padding": (Mask.padding(LENGTHS), np.broadcast_to(LENGTHS[:, None, None, None] > COLUMN, (B, H, N, M))),
    "segments": (Mask.segments(Q_IDS, K_IDS),
                 np.broadcast_to((Q_IDS[:, :, None] == K_IDS[:, None])[:, None], (B, H, N, M))),
    "dense": (Mask.dense(DENSE), DENSE),
    "dense, one head and example": (Mask.dense(DENSE[:1, :1]), np.broadcast_to(DENSE[:1, :1], (B, H, N, M))),
    "causal & padding & dense": (Mask.causal() & Mask.padding(LENGTHS) & Mask.dense(DENSE),
                                 (COLUMN <= ROW) & (LENGTHS[:, None, None, None] > COLUMN) & DENSE),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("score", [ScaledDot(), Dot(), ScaledDot(scale=0.3)], ids=["scaled", "dot", "scale=0.3"])
def test_equals_the_oracle(qkv, name, score):
    mask, visible = MASKS[name]
    scale = {ScaledDot(): K**-0.5, Dot(): 1.0}.get(score, 0.3)
    out, lse, weights = attention(*qkv, score=score, mask=mask, return_lse=True, return_weights=True)
    for b in range(B):
        for h in range(H):
            wanted = oracle.attention(*(x[b, :, h] for x in qkv), visible[b, h], scale)
            found = out[b, :, h], lse[b, :, h], weights[b, h]
            for a, e in zip(found, wanted, strict=True):
                np.testing.assert_allclose(a, e, rtol=2e-5, atol=2e-6)


def test_a_query_that_sees_nothing_gets_zero_and_gives_no_gradient(qkv):
    mask = Mask.causal(offset=-2)  # queries 0 and 1 see no key

    def f(q, k, v):
        return attention(q, k, v, mask=mask, return_lse=True)

    out, lse = f(*qkv)
    assert (out[:, :2] == 0).all() and (lse[:, :2] == -jnp.inf).all() and jnp.isfinite(lse[:, 2:]).all()
    gradients = jax.grad(lambda *qkv: f(*qkv)[0][:, :2].sum(), argnums=(0, 1, 2))(*qkv)
    assert all((g == 0).all() for g in gradients)
    whole = jax.grad(lambda *qkv: f(*qkv)[0].sum(), argnums=(0, 1, 2))(*qkv)
    assert all(jnp.isfinite(g).all() for g in whole) and (whole[0][:, :2] == 0).all()


def test_bias_of_minus_infinity_hides_like_a_mask(qkv):
    bias = jnp.where(DENSE, 0.0, -jnp.inf)
    np.testing.assert_allclose(attention(*qkv, bias=bias), attention(*qkv, mask=Mask.dense(DENSE)), rtol=1e-6)


def test_second_order_gradients_in_float64(qkv):
    with jax.enable_x64(True):
        q, k, v = (jnp.asarray(np.asarray(x[0, :, :2]), jnp.float64) for x in qkv)
        bias = jnp.asarray(np.random.default_rng(3).normal(size=(2, N, M)))
        check_grads(lambda q, k, v, bias: attention(q, k, v, bias=bias, mask=Mask.causal(offset=1)), (q, k, v, bias),
                    order=2, modes=("fwd", "rev"))


def test_bfloat16_has_a_float32_softmax(qkv):
    low = [x.astype(jnp.bfloat16) for x in qkv]
    out, lse = attention(*low, return_lse=True)
    assert out.dtype == jnp.bfloat16 and lse.dtype == jnp.float32
    exact = attention(*(x.astype(jnp.float32) for x in low))
    assert jnp.abs(out.astype(jnp.float32) - exact).max() < 0.02


def test_batch_axes_are_free(qkv):
    whole = attention(*qkv, mask=Mask.padding(LENGTHS))
    one = attention(*(x[0] for x in qkv), mask=Mask.padding(LENGTHS[0]))
    more = attention(*(x[None, :, None] for x in qkv), mask=Mask.padding(LENGTHS[None, :, None]))
    np.testing.assert_allclose(one, whole[0], rtol=1e-6)
    np.testing.assert_allclose(more[0, :, 0], whole, rtol=1e-6)


def test_dropout_is_drawn_for_each_element_head_and_example():
    ones = jnp.ones((2, 64, 2, 1))
    values = jnp.broadcast_to(jnp.eye(64)[None, :, None], (2, 64, 2, 64))  # so that the output is the weights
    out = attention(ones, ones, values, dropout_rate=0.25, dropout_key=jax.random.key(0))
    kept = np.asarray(out.transpose(0, 2, 1, 3) != 0)
    np.testing.assert_allclose(np.asarray(out)[np.asarray(out) != 0], 1 / 64 / 0.75, rtol=1e-5)
    assert abs(kept.mean() - 0.75) < 0.02
    flat = kept.reshape(4, -1)
    assert all(abs(np.corrcoef(flat)[i, j]) < 0.05 for i in range(4) for j in range(i))


@pytest.fixture
def without_type_checks():
    """What a user has: the annotations are checked in these tests only, and would speak before our own errors."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(("change", "message"), [
    (dict(q=(B, N, H)), "same number of axes"),
    (dict(k=(B, M, H, K + 1)), "d_k differs between queries and keys: 11 and 12"),
    (dict(v=(B, M + 1, H, V)), "7 keys, 8 values"),
    (dict(k=(B, M, H + 1, K)), "number of heads"),
])
def test_shapes_that_do_not_fit_are_named(change, message):
    shapes = dict(q=(B, N, H, K), k=(B, M, H, K), v=(B, M, H, V)) | change
    with pytest.raises(ValueError, match=message):
        attention(*(jnp.zeros(shapes[x]) for x in "qkv"))


@pytest.mark.usefixtures("without_type_checks")
def test_other_mistakes_are_named(qkv):
    with pytest.raises(ValueError, match="unknown implementation 'flash'; known: reference"):
        attention(*qkv, implementation="flash")
    with pytest.raises(ValueError, match="needs a dropout_key"):
        attention(*qkv, dropout_rate=0.1)
    with pytest.raises(ValueError, match="dropout_rate is 0"):
        attention(*qkv, dropout_key=jax.random.key(0))
    with pytest.raises(TypeError, match="boolean"):
        Mask.dense(jnp.zeros((N, M)))
    with pytest.raises(TypeError, match="lengths must be integers"):
        Mask.padding(jnp.ones(B))
