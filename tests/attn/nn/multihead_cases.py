"""Scores with their float64 oracles, and a small MultiHeadAttention of each."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn
from attn import (
    Additive,
    Bilinear,
    Mask,
    MultiHeadAttention,
    QKNorm,
    ScaledDot,
    Softcap,
)
from tests.attn import oracle

B = 2
N = 5
M = 7
H = 3
K = 11
D = 13
A = 19
WIDTH = {"concat": 17, "mean": D}  # d_v
LENGTHS = np.array([4, 7])


@attn.score
class Distance:
    """The one in the docstring of attn.scores."""

    temperature: Any

    def __call__(self, q, k):
        return -self.temperature * ((q[:, None] - k[None]) ** 2).sum(-1)


@attn.score
class Sum:
    """A score made of scores."""

    a: Any
    b: Any

    def __call__(self, q, k):
        return self.a(q, k) + self.b(q, k)


def bilinear(p, i):
    return lambda q, k: q @ p["w"][i] @ k


def additive(p, i):
    return lambda q, k: (
        p["v"][i]
        @ np.tanh(q @ p["w_q"][i] + k @ p["w_k"][i] + (p["b"][i] if "b" in p else 0))
    )


def rms_normed(x, gain):
    return gain * x / np.sqrt((x**2).mean() + 1e-6)


def rms(p, i):
    return lambda q, k: rms_normed(q, p["g_q"][i]) @ rms_normed(k, p["g_k"][i]) / K**0.5


def cosine(p, i):
    return lambda q, k: (
        p["g_q"][i] * q @ k / np.sqrt(((q**2).sum() + 1e-6) * ((k**2).sum() + 1e-6))
    )


def capped_rms_additive(p, i):
    inner = {name.removeprefix("inner.inner."): x for name, x in p.items()}
    gains = [p[f"inner.g_{side}"][i] for side in "qk"]

    def score(q, k):
        s = additive(inner, i)(rms_normed(q, gains[0]), rms_normed(k, gains[1]))
        return 0.7 * np.tanh(s / 0.7)

    return score


# What makes the score, the oracle's score of head i from the parameters p, and how many
# parameters there are.
CASES = {
    "dot": ("dot", lambda p, i: np.dot, 0),
    "scaled dot": ("scaled_dot", lambda p, i: oracle.scaled_dot, 0),
    "scale=0.3": (
        lambda key, h, d_q, d_k: ScaledDot(0.3),
        lambda p, i: lambda q, k: 0.3 * q @ k,
        0,
    ),
    "bilinear": (Bilinear, bilinear, H * K**2),
    "bilinear, low rank": (
        functools.partial(Bilinear.init, rank=2),
        lambda p, i: lambda q, k: q @ p["w"][i] @ p["w_2"][i] @ k,
        H * 2 * K * 2,
    ),
    "additive": (Additive.init, additive, H * (2 * K * K + K)),
    "additive, wide, biased": (
        functools.partial(Additive.init, d_a=A, bias=True),
        additive,
        H * (2 * K * A + 2 * A),
    ),
    "distance": (
        lambda key, h, d_q, d_k: Distance(jnp.ones(h)),
        lambda p, i: lambda q, k: -p["temperature"][i] * ((q - k) ** 2).sum(),
        H,
    ),
    "sum": (
        lambda key, h, d_q, d_k: Sum(
            Bilinear.init(key, h, d_q, d_k), Distance(np.ones(h, np.float32))
        ),
        lambda p, i: (
            lambda q, k: (
                q @ p["a.w"][i] @ k - p["b.temperature"][i] * ((q - k) ** 2).sum()
            )
        ),
        H * (K**2 + 1),
    ),
    "qk norm": (QKNorm, rms, H * 2 * K),
    "cosine": (functools.partial(QKNorm.init, inner="dot", norm="l2"), cosine, H),
    "softcap of qk norm of additive": (
        functools.partial(
            Softcap.init, cap=0.7, inner=functools.partial(QKNorm.init, inner=Additive)
        ),
        capped_rms_additive,
        H * (2 * K + 2 * K * K + K),
    ),
}

# How heads are combined and how they score have nothing to do with each other.
every_score = pytest.mark.parametrize(
    ("name", "combine"),
    [*((name, "concat") for name in CASES), ("scaled dot", "mean")],
)
both_combinations = pytest.mark.parametrize("combine", WIDTH)


@functools.cache
def build(name="scaled dot", combine="concat", **options):
    model = MultiHeadAttention(
        D, H, K, WIDTH[combine], score=CASES[name][0], combine=combine, **options
    )
    # The initial values would give every head the same temperature, and each bias is 0.
    draw = np.random.default_rng(5).normal
    return model, jax.tree.map(
        lambda x: jnp.asarray(0.3 * draw(size=x.shape), x.dtype), shapes(model)
    )


def shapes(model):
    return jax.eval_shape(model.init, jax.random.key(0), *inputs(), Mask())["params"]


def inputs():
    draw = np.random.default_rng(0).normal
    return tuple(jnp.asarray(draw(size=(B, n, D)), jnp.float32) for n in (N, M))


@functools.partial(jax.jit, static_argnums=0)
def _applied(model, params, arguments, **options):
    return model.apply({"params": params}, *arguments, **options)


def applied(model, params, *arguments, **options):
    """Returns what the module gives of the inputs, or of other arguments, compiled."""
    return _applied(model, params, arguments or (*inputs(), Mask()), **options)


def steps(model, params, x):
    """Returns the outputs of the tokens, one step after another, from a cache of rubbish."""
    # Entries that are not yet written must not count.
    empty = model.empty_cache(x.shape[:1], N, x.dtype)
    cache = jax.tree.map(lambda room: np.full(room.shape, 1e6, room.dtype), empty)

    @jax.jit
    def step(x, t, cache):
        visible = jnp.broadcast_to(jnp.arange(N) <= t, (x.shape[0], 1, N))
        variables = {"params": params}
        return model.apply(variables, x, t, cache, visible, method="decode_step")

    outputs = []
    for t in range(N):
        y, cache = step(np.asarray(x)[:, t : t + 1], np.int32(t), cache)
        outputs.append(y)
    return np.concatenate(outputs, 1)
