"""attention() against the float64 oracle, its edge cases and its gradients. Sizes are
different primes.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from attn import Bilinear, Mask, attention
from attn.jax_versions import enable_x64
from tests.attn import oracle
from tests.attn.blocks import blocks_of
from tests.attn.cases import (
    CASES,
    MASKS,
    SCORES,
    W_B,
    W_K,
    W_Q,
    W_V,
    B,
    K,
    M,
    N,
    W,
)


@pytest.fixture(scope="module", autouse=True)
def small_blocks():
    """Blocks of 3 queries, so that N = 5 makes two of unequal size, and 4 heads of 6 at once."""
    with blocks_of(3, at_once=4):
        yield


@pytest.fixture(params=["reference", "blocks"])
def kernel(request):
    return request.param


@pytest.mark.parametrize(
    ("mask", "score"),
    [
        pytest.param(*case, marks=() if case in CASES else pytest.mark.ci)
        for case in itertools.product(MASKS, SCORES)
    ],
)
def test_equals_the_oracle(qkv, kernel, mask, score):
    """In float64 throughout, weights too; errors in lower precisions are below."""
    (mask, visible) = MASKS[mask]
    (score, exact) = SCORES[score]
    near = dict(rtol=1e-12, atol=1e-13)
    options = dict(mask=mask, return_lse=True, implementation=kernel)
    options |= dict(return_weights=True) if kernel == "reference" else {}
    with enable_x64(True):
        inputs, score = jax.tree.map(lambda x: jnp.asarray(x, float), (qkv, score))
        out, lse, *weights = attention(*inputs, score=score, **options)
    assert out.dtype == lse.dtype == float
    expected = oracle.each_head(*qkv, visible, exact)
    for x, right in zip((out, lse, *weights), expected, strict=False):
        np.testing.assert_allclose(x, right, **near)


@pytest.mark.parametrize(("left", "right"), [(2, 1), (0, 3), (4, -2), (-3, 5)])
def test_a_window_slides_over_long_inputs(kernel, left, right):
    """Long enough that the blocks in the middle see a part of the keys that touches neither end."""
    draw = np.random.default_rng(4).normal
    qkv = [draw(size=(1, n, 1, K)).astype(np.float32) for n in (23, 29, 29)]
    i, j = np.arange(23)[:, None], np.arange(29)
    visible = ((i - left <= j) & (j <= i + right))[None, None]
    expected, _, _ = oracle.each_head(*qkv, visible)
    out = attention(*qkv, mask=Mask.window(left, right), implementation=kernel)
    np.testing.assert_allclose(out, expected, rtol=3e-5, atol=3e-6)


def test_a_query_that_sees_nothing_gets_zero_and_gives_no_gradient(qkv, kernel):
    mask = Mask.causal(offset=-2)  # queries 0 and 1 see no key

    def f(q, k, v):
        return attention(q, k, v, mask=mask, return_lse=True, implementation=kernel)

    out, lse = f(*qkv)
    assert not out[:, :2].any() and (lse[:, :2] == -jnp.inf).all()
    assert jnp.isfinite(lse[:, 2:]).all()
    gradients = jax.grad(lambda *qkv: f(*qkv)[0][:, :2].sum(), argnums=(0, 1, 2))(*qkv)
    assert all((g == 0).all() for g in gradients)
    whole = jax.grad(lambda *qkv: f(*qkv)[0].sum(), argnums=(0, 1, 2))(*qkv)
    assert all(jnp.isfinite(g).all() for g in whole) and (whole[0][:, :2] == 0).all()


def test_more_hidden_keys_change_nothing_but_rounding(qkv, kernel):
    q, k, v = qkv
    longer = [
        jnp.concatenate([x, 1e4 * jnp.ones((B, 31, *x.shape[2:]))], axis=1)
        for x in (k, v)
    ]
    short, long = (
        attention(q, *kv, mask=Mask.padding(np.full(B, M)), implementation=kernel)
        for kv in ((k, v), longer)
    )
    np.testing.assert_allclose(long, short, rtol=1e-6, atol=1e-6)


def test_dropout_is_the_same_on_every_kernel(qkv):
    options = dict(mask=Mask.causal(1), dropout_rate=0.4, dropout_key=jax.random.key(1))
    out = [
        attention(*qkv, **options, implementation=name)
        for name in ("reference", "blocks")
    ]
    np.testing.assert_allclose(*out, rtol=1e-5, atol=1e-6)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("name", "mask"),
    [("scaled dot", Mask.causal(offset=1)), ("additive", Mask.window(1, 1))],
    ids=["scaled dot, causal", "additive, window"],
)
def test_second_order_gradients_in_float64(qkv, name, mask):
    """Derivatives of the inputs, the bias and the score's own parameters; forward and reverse mode,
    of the kernel that has its own.
    """
    with enable_x64(True):
        q, k, v = (jnp.asarray(np.asarray(x[0, :, :2]), jnp.float64) for x in qkv)
        score = jax.tree.map(lambda x: jnp.asarray(x[:2], jnp.float64), SCORES[name][0])
        bias = jnp.asarray(np.random.default_rng(3).normal(size=(2, N, M)))

        options = dict(mask=mask, implementation="blocks", return_lse=True)

        def f(q, k, v, bias, score):
            return attention(q, k, v, bias=bias, score=score, **options)

        check_grads(f, (q, k, v, bias, score), order=2, modes=("fwd", "rev"))


def textbook(q, k, v, score):
    """As everyone writes it, for one head, in the precision of its inputs but for a
    float32 softmax.
    """
    s = score(q, k).astype(jnp.promote_types(q.dtype, jnp.float32))
    return jnp.einsum("nm,mv->nv", jax.nn.softmax(s, axis=-1).astype(v.dtype), v)


TEXTBOOK_SCORES = {
    "scaled dot": lambda q, k: jnp.einsum("nk,mk->nm", q, k) * q.shape[-1] ** -0.5,
    "bilinear": lambda q, k: jnp.einsum("nk,mk->nm", q @ jnp.asarray(W[0], q.dtype), k),
    "additive": lambda q, k: (
        jnp.tanh(
            (q @ W_Q[0].astype(q.dtype))[:, None]
            + (k @ W_K[0].astype(q.dtype))[None]
            + W_B[0].astype(q.dtype)[None, None]
        )
        @ W_V[0].astype(q.dtype)
    ),
}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("name", TEXTBOOK_SCORES)
def test_error_is_at_most_twice_the_textbook_forms(kernel, name, dtype):
    draw = np.random.default_rng(5).normal
    q, k, v = (jnp.asarray(draw(size=(n, 1, K)), dtype) for n in (59, 61, 61))
    score = jax.tree.map(lambda x: jnp.asarray(x[:1]), SCORES[name][0])
    given = [np.asarray(x[:, 0], np.float64) for x in (q, k, v)]
    expected, _, _ = oracle.attention(*given, np.ones((59, 61)), SCORES[name][1](0))
    ours = attention(q, k, v, score=score, implementation=kernel)[:, 0]
    theirs = textbook(q[:, 0], k[:, 0], v[:, 0], TEXTBOOK_SCORES[name])
    errors = [
        np.abs(np.asarray(x, np.float64) - expected).max() for x in (ours, theirs)
    ]
    assert errors[0] <= 2 * errors[1]


def test_vmap_of_a_gradient_is_the_gradient_of_each(qkv, kernel):
    """Over the examples, and over score parameters: lanes of an experiment."""
    lanes = jnp.stack([W, 2 * W])

    options = dict(mask=Mask.causal(1), implementation=kernel)

    def loss(w, q, k, v):
        return (attention(q, k, v, score=Bilinear(w), **options) ** 2).sum()

    gradients = jax.vmap(jax.grad(loss, argnums=(0, 1, 3)))(lanes, *qkv)
    for lane in range(2):
        alone = jax.grad(loss, argnums=(0, 1, 3))(lanes[lane], *(x[lane] for x in qkv))
        for a, b in zip(gradients, alone, strict=True):
            np.testing.assert_allclose(a[lane], b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_gradient_to_one_argument_alone(qkv, kernel, place):
    """Under a causal mask, whose blocks are run in turns."""

    def loss(*qkv):
        return (attention(*qkv, mask=Mask.causal(), implementation=kernel) ** 2).sum()

    alone = jax.grad(loss, place)(*qkv)
    together = jax.grad(loss, (0, 1, 2))(*qkv)[place]
    np.testing.assert_allclose(alone, together, rtol=1e-5, atol=1e-6)
