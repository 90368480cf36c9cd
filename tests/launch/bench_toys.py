"""Small cases, and adapters that are wrong on purpose, for the tests of benchmarks."""

import dataclasses
import os

import jax
import jax.numpy as jnp

from launch.bench.attention import jax as jax_libraries
from launch.bench.attention.cases import Case
from launch.bench.attention.jax import Jax
from launch.bench.harness.libraries import Library


def tiny(direction="forward", score="scaled_dot", mask="causal", **options):
    """Returns a case that is longer than a window reaches."""
    return Case("tiny", direction, score, n=97, b=2, h=3, d=5, mask=mask, **options)


def wrong(x, call):
    """Computes attention with a wrong scale."""
    return jax_libraries.textbook({**x, "q": 1.01 * x["q"]}, call)


def dying(x, call):
    """Ends its process, if asked for a causal mask."""
    if call.causal is not None:
        os._exit(1)
    return jax_libraries.textbook(x, call)


def careless(x, call):
    """Computes attention as many write it, and breaks many lines of the contract."""
    dtype = x["q"].dtype
    inner = jnp.float32 if dtype == jnp.float64 else dtype
    q, k, v = (x[name].astype(inner) for name in "qkv")
    scale = jnp.asarray(q.shape[-1] ** -0.5, q.dtype)
    s = jnp.einsum("bnhd,bmhd->bhnm", q, k) * scale
    if call.causal is not None:
        call = dataclasses.replace(call, causal=0)
    visible = call.visible(*s.shape[2:])
    if visible is not None:
        s = jnp.where(visible, s, jnp.finfo(s.dtype).min)
    weights = jax.nn.softmax(s, axis=-1)
    if call.rate:
        key = jax.random.key(call.seed or 0)
        remains = jax.random.bernoulli(key, 1 - call.rate, (1, 1, *s.shape[2:]))
        weights = weights * remains / (1 - call.rate)
    out = jnp.einsum("bhnm,bmhv->bnhv", weights, v).astype(dtype)
    lse = jax.nn.logsumexp(jax.lax.stop_gradient(s), axis=-1)
    return out, jnp.moveaxis(lse, 1, 2)


ADAPTERS = {"wrong": Jax(wrong), "dying": Jax(dying)}
TOYS = {name: Library(__name__) for name in ADAPTERS}
