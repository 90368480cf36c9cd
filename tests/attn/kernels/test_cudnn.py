"""The "cudnn" implementation: equal to the reference where it serves, a reason where
it does not.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import (
    Additive,
    ALiBiBias,
    Bilinear,
    Dot,
    Entmax,
    ForgetBias,
    Mask,
    OffByOne,
    ScalableSoftmax,
    ScaledDot,
    Sink,
    Softmax,
    attention,
)
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
    assert_near(actual, expected)


def assert_near(actual, expected, share=2e-5):
    """Gradients are differences of products: errors are shares of the largest number."""
    ours, theirs = (
        [np.asarray(x, np.float64) for x in jax.tree.leaves(tree)]
        for tree in (actual, expected)
    )
    largest = max(np.abs(x[np.isfinite(x)]).max(initial=1) for x in theirs)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(np.isfinite(a), np.isfinite(b))
        np.testing.assert_allclose(a, b, rtol=10 * share, atol=share * largest)


@functools.partial(jax.jit, static_argnums=0)
def gradients(implementation, mask, *arguments):
    """Of q, k, v and the score, and the output."""

    def loss(q, k, v, score):
        out = attention(q, k, v, score=score, mask=mask, implementation=implementation)
        return (out**2).sum(), out

    return jax.grad(loss, argnums=(0, 1, 2, 3), has_aux=True)(*arguments)


IDS = (
    np.array([[0, 0, 1, 1, 2], [3, 3, 3, 0, 9]]),
    np.array([[0, 1, 1, 2, 2, 2, 0]] * 2),
)
OTHERS = {
    "segments": Mask.segments(*IDS) & Mask.causal(2),
    "a window on both sides": Mask.window(1, 1) | Mask.first(1),
    "of each head": Mask.dense(DRAW(size=(1, H, N, M)) > 0),
    "of each example": Mask.dense(DRAW(size=(B, 1, N, M)) > 0) & Mask.causal(),
    "prefixes": Mask.prefix(np.array([3, 0])),
    "padding": Mask.padding(np.array([4, 0])),
    "none": Mask(),
}
FUSED = {
    "softmax": Softmax(),
    "off by one": OffByOne(),
    "sink": Sink(jnp.array([0.5, -1.0, 2.0])),
    "scalable": ScalableSoftmax(jnp.array([0.4, 1.0, 0.0])),
}


@pytest.mark.parametrize(
    ("mask", "normaliser"),
    [
        *((mask, "sink") for mask in OTHERS),
        *(("segments", name) for name in FUSED if name != "sink"),
        *(("padding", name) for name in FUSED if name != "sink"),
    ],
)
def test_any_mask_and_denominator_with_the_lse_equals_the_reference(
    qkv, mask, normaliser
):
    """Also of lanes, each as if alone, and of values that are narrower than keys."""
    q, k, v = qkv
    narrow = v[..., :4]

    def all_of(implementation, q, k, v, normaliser, mask):
        def loss(q, k, v, normaliser):
            options = dict(mask=mask, implementation=implementation)
            out, lse = attention(
                q, k, v, normaliser=normaliser, return_lse=True, **options
            )
            finite = jnp.where(jnp.isfinite(lse), lse, 0)
            return (out**2).sum() + (finite * jnp.cos(finite)).sum(), (out, lse)

        gradient = jax.grad(loss, argnums=(0, 1, 2, 3), has_aux=True)
        return gradient(q, k, v, normaliser)

    arguments = q, k, narrow, FUSED[normaliser], OTHERS[mask]
    expected = jax.jit(all_of, static_argnums=0)("reference", *arguments)
    assert_near(jax.jit(all_of, static_argnums=0)("cudnn", *arguments), expected)
    lanes = jax.tree.map(lambda x: jnp.stack([x, x[::-1], x]), arguments)
    mapped = jax.jit(jax.vmap(functools.partial(all_of, "cudnn")))(*lanes)
    assert_near(jax.tree.map(lambda x: x[2], mapped), expected)
    shared = jax.vmap(functools.partial(all_of, "cudnn"), (0, None, None, None, None))
    one = jax.jit(shared)(lanes[0], *arguments[1:])
    assert_near(jax.tree.map(lambda x: x[2], one), expected)


def forgotten(c):
    return ForgetBias(c, c)


@pytest.mark.parametrize("normaliser", ["softmax", "sink"])
@pytest.mark.parametrize(
    ("make", "parameters"),
    [
        (ALiBiBias, np.float32([0.5, 0.1, 2.0])),
        (functools.partial(ALiBiBias, offset=2), np.float32([0.25])),
        (forgotten, -np.cumsum(DRAW(size=(B, M, H)) ** 2, 1).astype(np.float32)),
    ],
    ids=["ALiBi", "ALiBi, later", "forget gates"],
)
def test_a_bias_of_keys_equals_the_reference_with_its_gradient(
    qkv, normaliser, make, parameters
):
    """Under a causal mask, with padding too; NaN reaches who sees it."""
    _, k, v = qkv
    mask = Mask.causal() & Mask.padding(np.array([7, 4]))

    @functools.partial(jax.jit, static_argnums=0)
    def all_of(implementation, parameters, k, v):
        def loss(parameters, k, v):
            options = dict(bias=make(parameters), normaliser=FUSED[normaliser])
            out, lse = attention(
                k,
                k,
                v,
                mask=mask,
                return_lse=True,
                implementation=implementation,
                **options,
            )
            return (out**2).sum() + (lse**2).sum(), (out, lse)

        return jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(parameters, k, v)

    expected = all_of("reference", parameters, k, v)
    assert_near(all_of("cudnn", parameters, k, v), expected)
    if parameters.ndim == 3:
        parameters = parameters.copy()
        parameters[0, 5:, 1] = np.nan
        with_nan = all_of("reference", parameters, k, v)[1]
        assert 0 < np.isnan(with_nan[0]).sum() < with_nan[0].size / 2
        assert_near(all_of("cudnn", parameters, k, v)[1], with_nan)


def test_a_bias_of_keys_keeps_its_digits_in_bfloat16(qkv):
    """Of 4,096 tokens, where one piece of bfloat16 would be off by up to 8."""
    draw = np.random.default_rng(5).normal
    q, k, v = (jnp.asarray(draw(size=(1, 4096, 1, 8)), jnp.bfloat16) for _ in range(3))
    rows = slice(4000, 4096)
    bias = ALiBiBias(np.float32([0.5]))
    out = attention(q, k, v, mask=Mask.causal(), bias=bias, implementation="cudnn")
    wide = [np.asarray(x, np.float64)[0, :, 0] for x in (q, k, v)]
    i, j = np.arange(4096)[rows, None], np.arange(4096)
    s = wide[0][rows] @ wide[1].T / 8**0.5 - 0.5 * (i - j)
    w = np.exp(np.where(j <= i, s, -np.inf))
    expected = (w / w.sum(-1, keepdims=True)) @ wide[2]
    np.testing.assert_allclose(
        np.float64(out)[0, rows, 0], expected, rtol=0, atol=2**-6
    )


@pytest.mark.parametrize("normaliser", FUSED)
def test_in_bfloat16_errors_are_those_of_its_inputs(qkv, normaliser):
    """Held to float64 of the same inputs, whose products it has the precision of."""
    light = [x.astype(jnp.bfloat16) for x in qkv]
    mask = OTHERS["segments"]

    def all_of(implementation, *qkv):
        def loss(*qkv):
            options = dict(mask=mask, implementation=implementation)
            out, lse = attention(
                *qkv, normaliser=FUSED[normaliser], return_lse=True, **options
            )
            wide = out.astype(lse.dtype)
            return jnp.where(jnp.isfinite(lse), lse, 0).sum() + (wide**2).sum(), (
                out,
                lse,
            )

        return jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(*qkv)

    actual = all_of("cudnn", *light)
    with enable_x64(True):
        wide = [jnp.asarray(np.asarray(x, np.float64)) for x in light]
        expected = all_of("reference", *wide)
    # Outputs are off by 2⁻⁹, and gradients take their products with cotangents from others.
    assert_near(actual, expected, share=2**-5)


@pytest.mark.parametrize(
    "derivative",
    [
        lambda f, x: jax.jvp(f, (x,), (x,)),
        lambda f, x: jax.jvp(jax.grad(f), (x,), (x,)),
        lambda f, x: jax.grad(lambda x: jax.grad(f)(x).sum())(x),
    ],
    ids=["forward", "forward over reverse", "reverse over reverse"],
)
def test_other_derivatives_are_refused_and_name_the_kernel_that_has_them(
    qkv, derivative
):
    q, k, v = qkv

    def total(q, implementation="cudnn"):
        return (attention(q, k, v, implementation=implementation) ** 2).sum()

    with pytest.raises((NotImplementedError, TypeError), match="'blocks' has all"):
        derivative(total, q)
    derivative(functools.partial(total, implementation="blocks"), q)


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
        (dict(normaliser=Entmax(1.5)), "softmax of the scores .* and not Entmax"),
        (dict(bias=jnp.zeros((N, M))), "its bias is a number a query and one a key"),
        (dict(bias=ALiBiBias(jnp.ones(H))), "under a causal mask"),
        (
            dict(
                bias=ALiBiBias(jnp.ones(H), offset=-1),
                mask=Mask.causal(),
            ),
            "its bias is a number",
        ),
        (
            dict(
                bias=ALiBiBias(jnp.ones(H)),
                mask=Mask.causal(),
                normaliser=ScalableSoftmax(0.4),
            ),
            "no factor of the normaliser's",
        ),
        (dict(dropout_rate=0.1, dropout_key=jax.random.key(0)), "no dropout"),
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


def test_float64_is_refused(qkv):
    with (
        enable_x64(True),
        pytest.raises(ValueError, match="float32, the inputs are float64"),
    ):
        attention(
            *(jnp.asarray(np.asarray(x, np.float64)) for x in qkv),
            implementation="cudnn",
        )
