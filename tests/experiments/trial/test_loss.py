"""The cross-entropy against float64, and its hand-made gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import platforms
from experiments.objectives.loss import cross_entropy, negative_log_likelihood

T, D, Y = 23, 5, 31


def exact(hidden, embedding, labels, weights, eps):
    logits = np.float64(hidden) @ np.float64(embedding).T
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    q = np.full((T, Y), eps / Y) + (1 - eps) * np.eye(Y)[labels]
    return (weights * -(q * log_p).sum(-1)).sum(), (
        weights * -log_p[np.arange(T), labels]
    ).sum()


@pytest.fixture(params=[2**22, 200], ids=["one chunk", "chunks of a few"])
def problem(request, monkeypatch):
    monkeypatch.setattr(platforms, "logits_at_once", lambda: request.param)
    rng = np.random.default_rng(0)
    weights = (rng.random(T) < 0.7).astype(np.float32)
    return (
        rng.normal(size=(T, D)).astype(np.float32),
        rng.normal(size=(Y, D)).astype(np.float32),
        rng.integers(0, Y, T),
        weights,
    )


@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_equals_the_formula(problem, eps):
    np.testing.assert_allclose(
        cross_entropy(*problem, eps), exact(*problem, eps), rtol=1e-5
    )


@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_gradient_equals_automatic_differentiation(problem, eps):
    hidden, embedding, labels, weights = problem

    def plain(hidden, embedding):
        log_p = jax.nn.log_softmax(hidden @ embedding.T)
        q = eps / Y + (1 - eps) * jax.nn.one_hot(labels, Y)
        return 3 * (weights[:, None] * -(q * log_p)).sum()

    def ours(hidden, embedding):
        return 3 * cross_entropy(hidden, embedding, labels, weights, eps)[0]

    value, gradient = jax.value_and_grad(ours, argnums=(0, 1))(hidden, embedding)
    np.testing.assert_allclose(value, plain(hidden, embedding), rtol=1e-5)
    for a, b in zip(
        gradient, jax.grad(plain, argnums=(0, 1))(hidden, embedding), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_loss_of_each_piece(problem):
    hidden, embedding, labels, weights = problem
    losses = negative_log_likelihood(hidden, embedding, labels)
    assert losses.shape == (T,)
    np.testing.assert_allclose(
        [losses[i] for i in (0, 7, T - 1)],
        [exact(hidden, embedding, labels, np.eye(T)[i], 0)[1] for i in (0, 7, T - 1)],
        rtol=1e-6,
    )
    np.testing.assert_allclose(
        np.float64(losses) @ weights, exact(*problem, 0)[1], rtol=1e-7
    )


def test_sums_of_bfloat16_are_float32(monkeypatch):
    """A sum over 2,000 equal tokens, 4 a chunk: bfloat16 would stop where 4 more change nothing."""
    monkeypatch.setattr(platforms, "logits_at_once", lambda: 4 * Y)
    h = np.linspace(-1, 1, D, dtype=np.float32)
    e = np.zeros((Y, D), np.float32)
    many = np.ones(2000, np.int32)
    (_, nll), pull = jax.vjp(
        lambda e: cross_entropy(
            jnp.tile(jnp.bfloat16(h), (2000, 1)), e, many, many.astype(np.float32), 0.0
        ),
        jnp.bfloat16(e),
    )
    (d_embedding,) = pull((jnp.float32(1), jnp.float32(0)))
    assert nll == pytest.approx(2000 * np.log(Y), rel=1e-5)
    assert d_embedding.dtype == jnp.bfloat16
    np.testing.assert_allclose(
        np.float32(d_embedding[1]), -2000 * (1 - 1 / Y) * h, rtol=0.01
    )


def test_tokens_of_no_weight_may_be_anything(problem):
    hidden, embedding, labels, weights = problem
    other = np.where(weights[:, None] > 0, hidden, 100.0).astype(np.float32)
    for h in (hidden, other):
        gradient = jax.grad(
            lambda h: cross_entropy(h, embedding, labels, weights, 0.1)[0]
        )(jnp.asarray(h))
        assert (gradient[weights == 0] == 0).all() and (
            gradient[weights == 1] != 0
        ).all()
