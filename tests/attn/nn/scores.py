"""Scores with their float64 oracles, of one query and one key of a head."""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np

import attn
from attn import Additive, Annealed, Bilinear, QKNorm, ScaledDot, Softcap
from tests.attn import oracle

H = 3
K = 11
A = 19


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
    # Outside training the temperature is the last one.
    "annealed": (
        functools.partial(Annealed.init, inner="dot", start=3.0, end=0.5),
        lambda p, i: lambda q, k: q @ k / 0.5,
        0,
    ),
}
