"""Heads of queries that share keys and values, against the form that repeats them."""

import functools
import math
import sys

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

import attn
from attn import (
    Additive,
    Bilinear,
    Mask,
    ScaledDot,
    argmax_attention,
    attention,
    inspect,
    sampled_attention,
)
from attn.jax_versions import enable_x64
from attn.normalisers import Sink, Softmax
from attn.positions.biases import ALiBiBias

B = 2
N = 5
M = 7
J = 2  # heads of keys and values
G = 3  # heads of queries to each
H = J * G
K = 4
V = 3
KERNELS = ("reference", "blocks")


def inputs(heads=H, h_kv=J, d_v=V, dtype=np.float32):
    draw = np.random.default_rng(0).normal
    shapes = (B, N, heads, K), (B, M, h_kv, K), (B, M, h_kv, d_v)
    return [draw(size=shape).astype(dtype) for shape in shapes]


def repeated(x):
    return jnp.repeat(x, G, axis=-2)


def everything():
    """Returns options that differ between heads wherever they can."""
    draw = np.random.default_rng(1)
    dense = Mask.dense(draw.random((B, H, N, M)) < 0.7)
    return dict(
        normaliser=Sink(jnp.arange(H) * 0.1),
        mask=Mask.causal(offset=3) & Mask.padding(np.array([6, 0])) & dense,
        bias=ALiBiBias(jnp.arange(1, H + 1) * 0.1),
    )


def scores():
    key = jax.random.key(0)
    return {
        "scaled dot": ScaledDot(jnp.arange(1.0, H + 1)),
        "bilinear": Bilinear.init(key, H, K, K),
        "additive": Additive.init(key, H, K, K),
    }


@pytest.mark.parametrize(
    ("kernel", "score", "at_once"),
    [
        ("reference", "bilinear", None),
        ("blocks", "scaled dot", None),
        # Parts of a group, a group, and all heads of an example at a time.
        pytest.param("blocks", "scaled dot", 1, marks=pytest.mark.ci),
        pytest.param("blocks", "additive", 3, marks=pytest.mark.ci),
        pytest.param("blocks", "scaled dot", 6, marks=pytest.mark.ci),
    ],
)
def test_results_and_gradients_are_those_of_repeated_keys(
    kernel, score, at_once, monkeypatch
):
    if at_once:
        module = sys.modules["attn.map_heads"]
        monkeypatch.setattr(module, "heads_at_once", lambda *_: at_once)
        jax.clear_caches()
    rest = everything()
    mask = rest.pop("mask")

    def loss(repeat, q, k, v, score, rest):
        results = attention(
            q,
            repeat(k),
            repeat(v),
            score=score,
            mask=mask,
            dropout_rate=0.3,
            dropout_key=jax.random.key(1),
            return_lse=True,
            return_weights=kernel == "reference" and "after",
            implementation=kernel,
            **rest,
        )
        return (results[0] ** 2).sum() + results[1].sum(), results

    gradient = jax.value_and_grad(
        loss, argnums=(1, 2, 3, 4, 5), has_aux=True, allow_int=True
    )
    gradient = jax.jit(gradient, static_argnums=0)
    with enable_x64():
        arguments = *inputs(dtype=np.float64), scores()[score], rest
        both = [gradient(repeat, *arguments) for repeat in (lambda x: x, repeated)]
    if at_once:
        jax.clear_caches()
    for a, b in zip(*map(jax.tree.leaves, both), strict=True):
        assert a.shape == b.shape
        if a.dtype != jax.dtypes.float0:
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kernel", KERNELS)
def test_keys_are_repeated_nowhere(kernel):
    """Neither forward nor backward is there an array of the size of repeated keys."""
    n, m, h, d = 2, 101, 8, 64
    q, k, v = (jnp.zeros(shape) for shape in ((n, h, d), (m, 1, d), (m, 1, d)))

    def loss(q, k, v):
        mask = Mask.causal(offset=m)
        return attention(q, k, v, mask=mask, implementation=kernel).sum()

    def largest(x):
        # In JAX 0.12 a closed jaxpr is one itself.
        x = getattr(x, "jaxpr", x)
        if not hasattr(x, "eqns"):
            return 0
        sizes = [0]
        for equation in x.eqns:
            sizes += [math.prod(made.aval.shape) for made in equation.outvars]
            sizes += [largest(value) for value in equation.params.values()]
        return max(sizes)

    gradient = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1, 2)))
    assert largest(gradient(q, k, v)) == m * d
    assert largest(gradient(q, *(x.repeat(h, -2) for x in (k, v)))) == m * h * d


@pytest.mark.parametrize(
    "mask", [Mask(), Mask.window(1, 1) & Mask.padding(np.array([6, 0]))]
)
def test_cudnn_takes_fewer_heads_of_keys(mask):
    q, k, v = inputs(d_v=K)
    score = scores()["bilinear"]

    @functools.partial(jax.jit, static_argnums=0)
    def of(kernel, k, v):
        def loss(q, k, v, score):
            out = attention(q, k, v, score=score, mask=mask, implementation=kernel)
            return (out**2).sum(), out

        return jax.grad(loss, argnums=(0, 1, 2, 3), has_aux=True)(q, k, v, score)

    both = [of(kernel, k, v) for kernel in ("cudnn", "reference")]
    for a, b in zip(*map(jax.tree.leaves, both), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=5e-6 * np.abs(b).max())
    # NaN reaches the queries of its group that see it.
    k[0, -1, 0] = np.nan
    k[1, -1, 1] = np.nan
    actual, expected = (of(kernel, k, v)[1] for kernel in ("cudnn", "reference"))
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    assert np.isnan(expected).any() != bool(mask.parts)


def test_cudnn_refuses_keys_that_a_score_makes_for_each_head():
    @attn.score
    class Scaled:
        """score(q, k) = q · (scale · k)"""

        scale: jax.Array
        is_product = True

        def prepare(self, q, k):
            return attn.Dot(), q, self.scale * k

        def __call__(self, q, k):
            return q @ (self.scale * k).T

    q, k, v = inputs(d_v=K)
    score = Scaled(jnp.arange(1.0, H + 1))
    with pytest.raises(ValueError, match="Scaled makes keys of its own"):
        attention(q, k, v, score=score, implementation="cudnn")
    attention(q, repeated(k), repeated(v), score=score, implementation="cudnn")
    actual = attention(q, k, v, score=score, implementation="blocks")
    expected = attention(q, repeated(k), repeated(v), score=score)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_hard_attention_takes_the_values_of_its_group():
    q, k, v = inputs()
    options = everything() | dict(normaliser=Softmax())
    key = jax.random.key(4)
    softly = functools.partial(argmax_attention, straight_through=True, **options)
    sampled = functools.partial(sampled_attention, key=key, **options)
    for function in (softly, sampled):
        actual = function(q, k, v)
        expected = function(q, repeated(k), repeated(v))
        for a, b in zip(actual, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)
    pull = jax.grad(lambda v: (softly(q, k, v)[0] ** 2).sum())
    expected = jax.grad(lambda v: (softly(q, repeated(k), repeated(v))[0] ** 2).sum())
    np.testing.assert_allclose(pull(v), expected(v), rtol=1e-4, atol=1e-5)


def test_statistics_are_those_of_each_head_of_queries():
    q, k, _ = inputs()
    options = everything() | dict(normaliser=Softmax())
    drop = dict(dropout_rate=0.5, dropout_key=jax.random.key(2))
    for function in (
        inspect.entropy,
        functools.partial(inspect.top_weights, top=2),
        functools.partial(inspect.received, **drop),
        functools.partial(inspect.weight_rows, queries=[3, 0], **drop),
    ):
        actual = jax.tree.leaves(function(q, k, **options))
        expected = jax.tree.leaves(function(q, repeated(k), **options))
        for a, b in zip(actual, expected, strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("h", "h_kv"), [(6, 4), (2, 6), (3, 0)])
def test_heads_that_do_not_divide_are_refused(h, h_kv):
    with pytest.raises(ValueError, match=rf"{h} heads of queries .* {h_kv} of keys"):
        attention(*inputs(h, h_kv))


@pytest.mark.parametrize("at_once", [2, pytest.param(1, marks=pytest.mark.ci)])
def test_an_empty_batch_has_no_heads_to_wait_for(at_once, monkeypatch):
    module = sys.modules["attn.map_heads"]
    monkeypatch.setattr(module, "heads_at_once", lambda *_: at_once)
    q = jnp.zeros((0, 3, 4, 2))
    k = jnp.zeros((0, 3, 2, 2))
    jax.clear_caches()
    out = attention(q, k, k, mask=Mask.causal(), implementation="blocks")
    assert out.shape == q.shape
    jax.clear_caches()
