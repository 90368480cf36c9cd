"""Builds the matrix products of a training step alone: the floor of what a step takes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.system import machine
from launch.bench.harness.program import Adapter, Program
from launch.bench.training.case import Case


def products(case: Case) -> Program:
    """Builds the forward products of the case's Transformer, and both backward ones of each.

    The model has neither softmax, norm, dropout nor ReLU, so its products stay as they are,
    and nothing stands between them. Attention's are of all queries and keys.
    """
    machine.use_compile_cache()
    cotangent = _float(case.pairs, case.tokens, case.vocabulary)

    def forward_and_backward(parameters, inputs, cotangent):
        function = functools.partial(logits, case)
        result, backward = jax.vjp(function, parameters, inputs)
        # The logits too: their product is needed by nothing else here.
        return result, backward(cotangent)

    needed = (*shapes(case), cotangent)
    lowered = jax.jit(forward_and_backward).lower(*needed)
    compiled = lowered.compile()
    # Zeros: products take as long whatever the numbers are.
    arguments = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), needed)

    def run():
        return jax.block_until_ready(compiled(*arguments))

    def sample():
        run()
        return {"flops": np.array([lowered.cost_analysis()["flops"], flops(case)])}

    return Program(run, sample)


def flops(case: Case) -> int:
    """Counts the FLOPs of all products by the closed formula.

    They are 6·P·T·(N·(12·D² + 4·D·d_ff + 6·T·D) + D·Y): P pairs of T + T tokens, D =
    d_model, Y = vocabulary; the backward pass counts twice the forward pass.
    """
    d = case.d_model
    attention = 12 * d**2 + 6 * case.tokens * d
    layers = case.N * (attention + 4 * d * case.d_ff)
    return 6 * case.pairs * case.tokens * (layers + d * case.vocabulary)


def shapes(case: Case):
    """Returns the shapes of the parameters, and of the embedded source and target."""
    d = case.d_model
    attention = {name: _float(d, d) for name in ("q", "k", "v", "o")}
    feed_forward = {"in": _float(d, case.d_ff), "out": _float(case.d_ff, d)}
    encoder = [(attention, feed_forward)] * case.N
    decoder = [(attention, attention, feed_forward)] * case.N
    embeddings = _float(case.vocabulary, d)
    inputs = (_float(case.pairs, case.tokens, d),) * 2
    return (encoder, decoder, embeddings), inputs


def logits(case: Case, parameters, inputs):
    """Computes the products on the way to the logits (pairs, tokens, vocabulary)."""
    encoder, decoder, embeddings = parameters
    x, y = inputs
    for own, feed_forward in encoder:
        x = _feed_forward(feed_forward, _attention(case.h, own, x, x))
    for own, cross, feed_forward in decoder:
        y = _attention(case.h, cross, _attention(case.h, own, y, y), x)
        y = _feed_forward(feed_forward, y)
    return y @ embeddings.T


def _attention(h, weights, x, memory):
    def heads(x):
        return x.reshape(*x.shape[:2], h, -1)

    q = heads(x @ weights["q"])
    k = heads(memory @ weights["k"])
    v = heads(memory @ weights["v"])
    scores = jnp.einsum("bnhd,bmhd->bhnm", q, k)
    mixed = jnp.einsum("bhnm,bmhd->bnhd", scores, v)
    return mixed.reshape(x.shape) @ weights["o"]


def _feed_forward(weights, x):
    return x @ weights["in"] @ weights["out"]


def _float(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


ADAPTERS = {"products": Adapter(products)}
