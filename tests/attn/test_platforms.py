"""What is chosen by the platform that a program is compiled for."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import Additive, Mask, attention, platforms
from tests.cases import the_rest_in_ci

B, N, M, H, K = 2, 5, 7, 3, 8
LENGTHS = np.array([4, 0])


@pytest.fixture
def on_gpu(monkeypatch):
    """Traces for a GPU, and notes which implementation of jax.nn is asked for."""
    asked = []
    shortest = []
    own = jax.nn.dot_product_attention

    def noted(*arguments, implementation, **rest):
        asked.append(implementation)
        # cuDNN promises nothing of an example without keys.
        if (lengths := rest["key_value_seq_lengths"]) is not None:
            jax.debug.callback(lambda x: shortest.append(x.min()), lengths)
        return own(*arguments, implementation="xla", **rest)

    monkeypatch.setattr(jax.nn, "dot_product_attention", noted)
    platforms.compile_for("gpu")
    yield asked
    platforms.compile_for(None)
    assert all(length >= 1 for length in shortest)


def inputs(dtype=jnp.bfloat16, width=K):
    draw = np.random.default_rng(0).normal
    return [jnp.asarray(draw(size=(B, n, H, width)), dtype) for n in (N, M, M)]


@pytest.mark.parametrize(
    "mask",
    the_rest_in_ci(
        [Mask.window(2, 0), Mask.padding(LENGTHS), None, Mask.causal()], first=2
    ),
    ids=["local", "padding", "full", "causal"],
)
def test_a_gpu_takes_cudnn_for_plain_products(on_gpu, mask):
    qkv = inputs()

    def total(implementation):
        loss = lambda *qkv: (
            attention(*qkv, mask=mask, implementation=implementation)
            .astype(jnp.float32)
            .sum()
        )
        return jax.value_and_grad(loss, (0, 1, 2))(*qkv)

    ours = total(None)
    assert on_gpu == ["cudnn"]
    # bfloat16 has 8 bits; sums of some 200 numbers of size 1.
    for one, other in zip(
        *map(jax.tree.leaves, (ours, total("reference"))), strict=True
    ):
        np.testing.assert_allclose(
            np.float32(one), np.float32(other), rtol=2**-5, atol=2**-4
        )


@pytest.mark.parametrize(
    "options",
    [
        dict(mask=Mask.window(1, 1)),
        dict(mask=Mask.window(2, 0) & Mask.padding(LENGTHS)),
        dict(mask=Mask.window(-1, 0)),
        dict(mask=Mask.segments(np.zeros((B, N), int), np.zeros((B, M), int))),
        dict(bias=np.zeros((H, N, M), np.float32)),
        dict(return_lse=True),
        dict(score=Additive(*[jnp.ones((H, K, 4))] * 2, jnp.ones((H, 4)), None)),
    ],
    ids=["window", "padded window", "empty", "segments", "bias", "lse", "additive"],
)
def test_what_cudnn_lacks_goes_elsewhere(on_gpu, options):
    attention(*inputs(), **options)
    assert on_gpu == []


def test_heads_one_after_another_keep_their_derivatives(on_gpu, monkeypatch):
    """A GPU's slices have a layout of their own, which must pass through every derivative."""
    monkeypatch.setattr(
        sys.modules["attn.attention"], "heads_at_once", lambda n, m, score: 1
    )
    qkv = inputs(jnp.float32)

    def derivatives(implementation):
        function = lambda *qkv: attention(
            *qkv, mask=Mask.padding(LENGTHS), implementation=implementation
        )
        loss = lambda *qkv: (function(*qkv) ** 2).sum()
        gradient = jax.grad(loss, (0, 1, 2))
        several = [jnp.stack([x, 2 * x]) for x in qkv]
        return (
            jax.jvp(function, qkv, qkv),
            jax.vmap(gradient)(*several),
            jax.jvp(gradient, qkv, qkv),
        )

    actual, expected = map(derivatives, ("blocks", "reference"))
    for one, other in zip(*map(jax.tree.leaves, (actual, expected)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("dtype", "width"), [(jnp.float32, K), (jnp.bfloat16, 7)])
def test_numbers_that_cudnn_lacks_go_elsewhere(on_gpu, dtype, width):
    attention(*inputs(dtype, width))
    assert on_gpu == []


def test_a_process_forgets_what_it_traced_for_another_platform(on_gpu):
    qkv = inputs()
    traced = jax.jit(attention)
    traced(*qkv)
    platforms.compile_for(None)
    traced(*qkv)
    assert on_gpu == ["cudnn"] and platforms.platform() == jax.default_backend()
