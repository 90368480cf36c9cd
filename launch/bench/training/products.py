"""Builds the matrix products of a training step alone: no step of the model is faster."""

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
    # Zeros: products take as long whatever the numbers are.
    parameters, inputs = jax.tree.map(_zeros, shapes(case))
    cotangent = jnp.zeros((case.pairs, case.tokens, case.vocabulary))

    @jax.jit
    def run_once(parameters, inputs, cotangent):
        _, backward = jax.vjp(lambda *given: logits(case, *given), parameters, inputs)
        return backward(cotangent)

    def run():
        return jax.block_until_ready(run_once(parameters, inputs, cotangent))

    def sample():
        leaves = jax.tree.leaves(run())
        return {"finite": np.array([np.isfinite(leaf).all() for leaf in leaves])}

    return Program(run, sample)


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


def _zeros(shape):
    return jnp.zeros(shape.shape, shape.dtype)


ADAPTERS = {"products": Adapter(products)}
