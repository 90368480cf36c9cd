"""Positions by the tokens between key and query, PaTH and Wall: against loops in float64."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import attn
from attn import Context, Mask, MultiHeadAttention, attention, config
from attn.contract import check_positions
from attn.heads import Exclusive
from attn.positions import PaTH, Wall, path_products
from tests.attn.nn.modules import CAUSAL, apply, random_variables, steps

in_float64 = pytest.mark.usefixtures("float64")

B, N, H, K, V = 2, 9, 2, 4, 3
D = 6
SEGMENTS = jnp.array([[1] * 4 + [2] * 5, [1] * N])
BOTH = pytest.mark.parametrize("positions", [PaTH(), Wall(gates=0.5)])


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def walked(q, k, w, beta):
    """q_iᵀ H_i ⋯ H_(j+1) k_j, one reflection after the other."""
    s = np.zeros((len(q), len(q)))
    for i in range(len(q)):
        query = q[i]
        for j in range(i, -1, -1):
            s[i, j] = query @ k[j]
            query = query - beta[j] * (query @ w[j]) * w[j]
    return s


def decayed(q, k, log_decay):
    s = np.zeros((len(q), len(q)))
    for i, j in np.ndindex(s.shape):
        if j <= i:
            s[i, j] = (q[i] * k[j] * np.exp(log_decay[j + 1 : i + 1].sum(0))).sum()
    return s


def reflections(n, seed=1):
    w = drawn(n, K, seed=seed)
    w = w / np.linalg.norm(w, axis=-1, keepdims=True)
    return w, 2 * np.random.default_rng(seed).random((n, 1))


@in_float64
@pytest.mark.parametrize(("n", "chunk"), [(1, 64), (7, 64), (7, 3), (24, 4), (130, 64)])
def test_products_of_reflections_are_walked(n, chunk):
    q, k = drawn(2, n, K)
    w, beta = reflections(n)
    actual = jax.jit(path_products, static_argnames="chunk")(q, k, w, beta, chunk=chunk)
    np.testing.assert_allclose(actual, walked(q, k, w, beta[:, 0]), atol=1e-11)


@in_float64
def test_their_gradients_are_those_of_differences():
    q, k = drawn(2, 7, K)
    function = jax.jit(functools.partial(path_products, chunk=3))
    check_grads(
        function, (q, k, *reflections(7)), order=1, modes=["fwd", "rev"], eps=1e-6
    )


@functools.cache
def build(positions, causal=True):
    """Returns a module with random parameters, gates of middling size among them."""
    model = MultiHeadAttention(
        config.Attention(D, H, K, V, positions=positions), causal=causal
    )
    return model, random_variables(model, jnp.zeros((1, 2, D)), Context(), size=0.6)


def exact(positions, variables, x, causal):
    """The definition of one text alone, in float64."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), variables["params"])
    q, k, v = (np.einsum("nd,dhk->hnk", x, p[name]) for name in ("w_q", "w_k", "w_v"))
    own = p[positions.name]
    outputs = []
    for h in range(H):
        if isinstance(positions, PaTH):
            w = x @ own["w_1"] @ own["w_2"][:, h]
            w = w / np.sqrt((w**2).sum(-1, keepdims=True) + 1e-6)
            beta = 2 / (1 + np.exp(-(x @ own["w_beta"][:, h] + own["b"][h])))
            scores = functools.partial(walked, q[h], k[h], w, beta)
            behind = walked(q[h][::-1], k[h][::-1], w[::-1], beta[::-1])[::-1, ::-1]
            s = scores()
        else:
            log_decay = -np.log1p(np.exp(-(x @ own["w"][:, h] + own["b"][h])))
            s = decayed(q[h], k[h], log_decay)
            # The same tokens as from the other side.
            moved = np.roll(log_decay[::-1], 1, axis=0)
            behind = decayed(q[h][::-1], k[h][::-1], moved)[::-1, ::-1]
        n = len(x)
        s = np.where(np.tri(n, dtype=bool), s, -np.inf if causal else behind)
        s = s / np.sqrt(K)
        weights = np.exp(s - s.max(-1, keepdims=True))
        outputs.append(weights @ v[h] / weights.sum(-1, keepdims=True))
    return np.einsum("hnv,hvd->nd", np.array(outputs), p["w_o"])


@BOTH
@pytest.mark.parametrize("causal", [True, False])
def test_texts_side_by_side_are_each_the_definition(positions, causal):
    """A token with NaN in one reaches the tokens of that text alone which look past it."""
    model, variables = build(positions, causal)
    x = drawn(B, N, D, seed=3).astype(np.float32)
    x[0, 4] = np.nan
    mask = Mask.segments(SEGMENTS, SEGMENTS) & (Mask.causal() if causal else Mask())
    actual, _ = apply(model, variables, x, Context(mask))
    assert np.isnan(actual[0, 4:]).all()
    for b, part in ((0, slice(0, 4)), (1, slice(0, N))):
        text = np.asarray(x[b, part], np.float64)
        expected = exact(positions, variables, text, causal)
        np.testing.assert_allclose(actual[b, part], expected, rtol=2e-5, atol=2e-5)


@BOTH
def test_one_after_the_other_is_all_at_once(positions):
    model, variables = build(positions)
    x = drawn(3, 2, 5, D, seed=4).astype(np.float32)
    whole = [apply(model, variables, x[:, i], CAUSAL)[0] for i in range(2)]
    cache = model.empty_cache(3, 10, jnp.float32)
    actual = steps(model, variables, x, cache)
    np.testing.assert_allclose(actual, np.stack(whole, 1), rtol=2e-5, atol=2e-5)


@BOTH
def test_tokens_that_say_nothing_leave_attention_as_it_is(positions):
    q, k, v = (jnp.asarray(drawn(B, N, H, K, seed=i)) for i in range(3))
    ctx = Context(Mask.causal())
    x = jnp.asarray(drawn(B, N, D, seed=4))
    value = positions.in_attention(
        jax.random.key(0), config.Attention(D, H, K, K), causal=True
    )
    # β of 2 σ(−∞), and decays σ(∞).
    silent = {"b": jnp.full_like(value.b, -1e4 if isinstance(positions, PaTH) else 1e4)}
    value = dataclasses.replace(value, **silent)
    tokens, _ = positions.bias_of(value, x, ctx)
    arguments = dict(score=attn.QKNorm(), mask=Mask.causal())
    actual = positions.attend(value, q, k, v, ctx, bias=tokens, **arguments)
    expected = attention(q, k, v, **arguments)
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.ci
@BOTH
def test_it_meets_the_contract(positions):
    failures = [row for row in check_positions(positions) if not row.ok]
    assert not failures


@BOTH
def test_what_it_cannot_do_is_refused(positions):
    def make(**options):
        a = config.Attention(D, H, K, V, positions=positions, **options)
        module = MultiHeadAttention(a, causal=True)
        x = jnp.zeros((1, 3, D))
        return jax.eval_shape(
            lambda: module.init_with_output(jax.random.key(0), x, CAUSAL)
        )

    make(score="qk_norm")
    with pytest.raises(ValueError, match="Additive multiplies nothing: scaled_dot"):
        make(score="additive")
    with pytest.raises(ValueError, match=r"each with its keys.*h_kv=1"):
        make(h_kv=1)
    with pytest.raises(ValueError, match=r"separate heads.*heads=Exclusive"):
        make(heads=Exclusive())
    with pytest.raises(ValueError, match="both make scores"):
        make(residual=attn.ScoreResidual())
