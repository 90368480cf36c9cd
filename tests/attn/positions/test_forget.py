"""Forget gates against float64 numpy, in every kernel and in a model of attention."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import (
    ALiBiBias,
    Context,
    Forget,
    ForgetBias,
    ForgetGates,
    Mask,
    MultiHeadAttention,
    argmax_attention,
    attention,
    config,
    inspect,
)
from attn.jax_versions import enable_x64
from tests.attn import oracle
from tests.attn.blocks import blocks_of

B = 2
N = 11
H = 3
K = 5
D = 7
DRAW = np.random.default_rng(0).normal
CAUSAL = Mask.causal()


def qkv(dtype=jnp.float32):
    draw = np.random.default_rng(1).normal
    return [jnp.asarray(draw(size=(B, N, H, K)), dtype) for _ in range(3)]


def log_gates():
    return np.log(1 / (1 + np.exp(-np.random.default_rng(2).normal(size=(B, N, H)))))


def dense(logs):
    """Returns Σ log f of the gates after the earlier of i and j, (B, H, N, N), in loops."""
    out = np.zeros((B, H, N, N))
    for b, h, i, j in np.ndindex(out.shape):
        out[b, h, i, j] = logs[b, min(i, j) + 1 : max(i, j) + 1, h].sum()
    return out


def bias_of(logs):
    c = jnp.cumsum(jnp.asarray(logs), axis=-2)
    return ForgetBias(c, c)


@pytest.mark.parametrize(
    ("name", "mask"),
    [
        ("blocks", CAUSAL),
        pytest.param("blocks", Mask.window(2, 3), marks=pytest.mark.ci),
        pytest.param("reference", CAUSAL, marks=pytest.mark.ci),
    ],
    ids=["blocks, causal", "blocks, window", "reference, causal"],
)
def test_equals_the_oracle_with_its_gradients(name, mask):
    with enable_x64(True), blocks_of(4):
        inputs = qkv(jnp.float64)
        weight = jnp.asarray(DRAW(size=(B, N, H, K)))

        def loss(bias, implementation=name):
            options = dict(mask=mask, implementation=implementation, return_lse=True)
            out, lse = attention(*inputs, bias=bias, **options)
            return (out * weight).sum() + lse.sum(), (out, lse)

        @jax.jit
        @functools.partial(jax.grad, has_aux=True)
        def of_logs(logs):
            return loss(bias_of(logs))

        @jax.jit
        @jax.grad
        def of_dense(bias):
            return loss(bias, "reference")[0]

        logs = log_gates()
        gradient, (out, lse) = of_logs(logs)
        bias = dense(logs)
        visible = np.asarray(mask.tile(jnp.arange(N), jnp.arange(N)))
        visible = np.broadcast_to(visible, bias.shape)
        exact = oracle.each_head(*inputs, visible, bias=bias)
        np.testing.assert_allclose(out, exact[0], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(lse, exact[1], rtol=1e-10, atol=1e-12)
        each = np.asarray(of_dense(bias))
        expected = np.zeros((B, N, H))
        for b, h, i, j in np.ndindex(bias.shape):
            part = slice(min(i, j) + 1, max(i, j) + 1)
            expected[b, part, h] += each[b, h, i, j]
        np.testing.assert_allclose(gradient, expected, rtol=1e-9, atol=1e-11)


def test_gates_of_1_are_softmax_and_constant_ones_are_alibi():
    inputs = qkv()
    slopes = jnp.array([0.5, 0.1, 2.0])
    constant = jnp.broadcast_to(-slopes, (B, N, H))
    for logs, bias in ((jnp.zeros((B, N, H)), None), (constant, ALiBiBias(slopes))):
        for mask in (CAUSAL, None):
            actual = attention(*inputs, bias=bias_of(logs), mask=mask)
            expected = attention(*inputs, bias=bias, mask=mask)
            np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_a_hidden_gate_counts_and_a_later_one_does_not():
    """A gate between a query and a key counts, whatever the mask says of its token."""
    inputs, logs = qkv(), log_gates()
    out = attention(*inputs, bias=bias_of(logs), mask=CAUSAL)
    later = logs.copy()
    later[:, 6] = -9
    changed = attention(*inputs, bias=bias_of(later), mask=CAUSAL)
    np.testing.assert_allclose(changed[:, :6], out[:, :6], rtol=1e-5)
    assert np.abs(changed[:, 6:] - out[:, 6:]).max() > 1e-2


def test_statistics_and_hard_attention_take_it():
    q, k, v = qkv()
    value, array = bias_of(log_gates()), jnp.asarray(dense(log_gates()), jnp.float32)
    for one, other in (
        (argmax_attention(q, k, v, mask=CAUSAL, bias=b)[1] for b in (value, array)),
        (inspect.entropy(q, k, mask=CAUSAL, bias=b) for b in (value, array)),
        (inspect.weight_rows(q, k, [1, 7], bias=b) for b in (value, array)),
    ):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_a_model_has_the_gates_of_its_tokens():
    of = config.Attention(D, H, K, K)
    module = MultiHeadAttention(dataclasses.replace(of, positions=Forget()))
    x = jnp.asarray(DRAW(size=(B, N, D)), jnp.float32)
    ctx = Context(CAUSAL)
    variables = jax.jit(module.init)(jax.random.key(0), x, ctx)
    shapes = jax.tree.map(jnp.shape, variables["params"]["forget"])
    assert shapes == {"w": (D, H), "b": (H,)}
    assert (variables["params"]["forget"]["b"] == 0).all()
    forget = {"w": DRAW(size=(D, H)), "b": DRAW(size=H)}
    params = variables["params"] | {"forget": jax.tree.map(jnp.float32, forget)}
    logs = -np.log1p(np.exp(-(np.asarray(x, np.float64) @ forget["w"] + forget["b"])))
    bias = jnp.asarray(dense(logs), jnp.float32)
    q, k, v = (jnp.einsum("bnd,dhk->bnhk", x, params[f"w_{y}"]) for y in "qkv")
    heads = attention(q, k, v, mask=CAUSAL, bias=bias)
    expected = jnp.einsum("bnhk,hkd->bnd", heads, params["w_o"])
    actual, _ = jax.jit(module.apply)({"params": params}, x, ctx)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_the_sums_are_in_float32_at_least():
    gates = ForgetGates.init(jax.random.key(0), D, H)
    low = jax.tree.map(lambda x: x.astype(jnp.bfloat16), gates)
    bias = low.bias(jnp.ones((B, N, D), jnp.bfloat16))
    assert bias.of_keys.dtype == jnp.float32


def test_memory_is_that_of_two_vectors():
    """8,192 queries and keys have 256 MiB of scores."""
    x = jax.ShapeDtypeStruct((8192, 1, 16), jnp.float32)
    c = jax.ShapeDtypeStruct((8192, 1), jnp.float32)

    def loss(c, q, k, v):
        bias = ForgetBias(c, c)
        return attention(q, k, v, bias=bias, implementation="blocks").sum()

    compiled = jax.jit(jax.grad(loss)).lower(c, x, x, x).compile()
    assert compiled.memory_analysis().temp_size_in_bytes / 2**20 < 30


def test_tokens_of_something_else_are_refused():
    q, k, v = qkv()
    longer = [jnp.concatenate([x, x[:, :1]], axis=1) for x in (k, v)]
    message = r"of_keys of shape \(2, 11, 3\) must be .* = \(2, 12, 3\)"
    with pytest.raises(ValueError, match=message):
        attention(q, *longer, bias=bias_of(log_gates()))
