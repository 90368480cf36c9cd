"""QKNorm, Softcap and Annealed: what they are where they do nothing, and what they refuse.

Their formulas are held to an oracle with all other scores, in tests/attn/nn.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn
from attn import (
    Additive,
    Annealed,
    Context,
    Dot,
    Mask,
    MultiHeadAttention,
    QKNorm,
    ScaledDot,
    Softcap,
    attention,
    config,
)
from attn.context import in_context

N = 5
M = 7
H = 3
K = 11
KEY = jax.random.key(0)


def vectors():
    draw = np.random.default_rng(0).normal
    return draw(size=(N, K)), draw(size=(M, K))


def test_no_score_is_beyond_the_cap():
    q, k = (jnp.asarray(x, jnp.float32) for x in vectors())
    s = Softcap(Dot(), 2.0)(1e20 * q, k)
    np.testing.assert_allclose(jnp.abs(s), 2.0, rtol=1e-6)


@pytest.mark.parametrize("norm", ["rms", "l2"])
def test_the_length_of_a_vector_does_not_count(norm):
    """Not even the gradient's of a vector of zeros, which masked tokens are."""
    q, k = (jnp.asarray(x, jnp.float32) for x in vectors())
    score = QKNorm(norm=norm)
    np.testing.assert_allclose(score(1e3 * q, k), score(q, k), rtol=1e-4, atol=1e-5)
    gradient = jax.grad(lambda q: score(q, k).sum())(q.at[0].set(0))
    assert jnp.isfinite(gradient).all()
    # 1e4² is more than float16 holds.
    half = score(q.astype(jnp.float16) * 1e4, k.astype(jnp.float16))
    np.testing.assert_allclose(half, score(q, k), rtol=0.05, atol=0.02)


def test_scores_around_products_state_whether_they_are_products():
    assert QKNorm().is_product
    assert QKNorm(QKNorm()).is_product
    assert not Softcap().is_product
    assert not QKNorm(Softcap()).is_product
    additive = functools.partial(QKNorm.init, inner=Additive)
    assert not additive(KEY, H, K, K).is_product


def test_normed_products_are_served_by_cudnn():
    draw = np.random.default_rng(1).normal
    q, k, v = (jnp.asarray(draw(size=(2, n, H, K)), jnp.float32) for n in (N, M, M))
    score = QKNorm.init(KEY, H, K, K)
    call = functools.partial(
        attention,
        q,
        k,
        v,
        score=score,
        mask=Mask.causal() & Mask.padding(np.array([4, 7])),
    )
    np.testing.assert_allclose(
        call(implementation="cudnn"),
        call(implementation="reference"),
        rtol=1e-5,
        atol=1e-6,
    )
    with pytest.raises(ValueError, match="its score is a matrix product, and not Soft"):
        attention(q, k, v, score=Softcap(score), implementation="cudnn")


TEMPERATURES = {0: 3.0, 25: 2.375, 100: 0.5, 1000: 0.5, None: 0.5}
"""From 3 to 0.5 over 100 steps."""


@pytest.mark.parametrize("inner", ["dot", "additive"])
@pytest.mark.parametrize("step", TEMPERATURES)
def test_a_temperature_goes_from_one_value_to_another(step, inner):
    """Of scores, as they are called and as kernels prepare them, and inside of others."""
    draw = np.random.default_rng(3).normal
    q, k, v = (jnp.asarray(draw(size=(n, 1, K)), jnp.float32) for n in (N, M, M))
    score = Annealed.init(KEY, 1, K, K, inner=inner, start=3.0, end=0.5, steps=100)
    ctx = Context(step=None if step is None else jnp.int32(step))
    now = in_context(score, ctx)
    own = jax.tree.map(lambda x: x[0] if np.ndim(x) else x, now)
    s = own.inner(q[:, 0], k[:, 0]) / TEMPERATURES[step]
    np.testing.assert_allclose(own(q[:, 0], k[:, 0]), s, rtol=1e-5, atol=1e-5)
    weights = np.exp(s - s.max(-1, keepdims=True))
    expected = weights @ v[:, 0] / weights.sum(-1, keepdims=True)
    for kernel in ("reference", "blocks"):
        out = attention(q, k, v, score=now, implementation=kernel)
        np.testing.assert_allclose(out[:, 0], expected, rtol=1e-4, atol=1e-5)
    around = in_context(Softcap(QKNorm(score)), ctx)
    assert around.inner.inner.step is ctx.step


def test_a_layer_takes_the_temperature_of_its_step():
    """By a step that is data: one program serves all."""
    of = dict(d_model=K, h=H, d_k=K, d_v=K)
    module = MultiHeadAttention(config.Attention(**of, score="annealed"))
    x = jnp.asarray(np.random.default_rng(4).normal(size=(2, N, K)), jnp.float32)
    variables = module.init(KEY, x, Context())
    apply = jax.jit(lambda step: module.apply(variables, x, Context(step=step))[0])
    for step, temperature in ((0, 2.0), (250, 1.75), (1000, 1.0)):
        scaled = functools.partial(ScaledDot, K**-0.5 / temperature)
        plain = config.Attention(**of, score=lambda *_, scaled=scaled: scaled())
        expected, _ = MultiHeadAttention(plain).apply(variables, x, Context())
        np.testing.assert_allclose(
            apply(jnp.int32(step)), expected, rtol=1e-4, atol=1e-6
        )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Softcap.init(KEY, H, K, K, cap=0.0),
            "cap=0.0 must be finite and above",
        ),
        (lambda: Softcap.init(KEY, H, K, K, cap=np.inf), "cap=inf must be finite"),
        (lambda: Annealed.init(KEY, H, K, K, start=0.0), "start=0.0 must be finite"),
        (lambda: Annealed.init(KEY, H, K, K, end=np.inf), "end=inf must be finite"),
        (lambda: Annealed.init(KEY, H, K, K, steps=0), "steps=0 must be at least 1"),
        (lambda: QKNorm.init(KEY, H, K, K, norm="l1"), "unknown norm 'l1' .*: rms, l2"),
        (lambda: QKNorm(norm="max"), "unknown norm 'max' of queries and keys"),
        (lambda: QKNorm.init(KEY, H, K, K, inner="x"), "unknown score 'x'; known: dot"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_attention_looks_at_the_score_inside():
    q = jnp.ones((N, H, K))
    k = jnp.ones((M, H, K + 1))
    with pytest.raises(
        ValueError, match="d_k differs between queries and keys: 11 and"
    ):
        attention(q, k, k, score=Softcap(QKNorm()))
    with pytest.raises(
        TypeError, match="score='additive' must be a value with its para"
    ):
        attention(q, q, q, score=attn.Softcap("additive"))
