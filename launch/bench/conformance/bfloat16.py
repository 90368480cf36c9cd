"""Probes a library's precision inside, where its inputs are bfloat16, as `probes` does."""

import ml_dtypes
import numpy as np

from launch.bench.attention import oracle
from launch.bench.attention.call import Call
from launch.bench.attention.normalisers import NORMALISERS
from launch.bench.attention.oracle import error


def _sharp():
    """Returns (x, a full mask) with scores that bfloat16 cannot tell apart.

    They are near 64 and differ by less than bfloat16 resolves there, and come from
    numbers that bfloat16 holds exactly.
    """
    generator = np.random.default_rng(4)
    b = h = 2
    n = 16
    m = k = 32
    signs = generator.choice([-1.0, 1.0], size=(b, 1, h, k))
    base = signs * (64 * k**-0.5) ** 0.5
    x = {
        "q": base + generator.normal(size=(b, n, h, k), scale=0.3),
        "k": base + generator.normal(size=(b, m, h, k), scale=0.1),
        "v": generator.normal(size=(b, m, h, k)),
    }
    # Exact in bfloat16, so that rounding the inputs adds no error.
    for name, array in x.items():
        x[name] = array.astype(ml_dtypes.bfloat16).astype(np.float64)
    return x, np.ones((b, h, n, m), bool)


def weights(library):
    """Compares the error of the output with that of weights in float32."""
    x, seen = _sharp()
    out, _, (dtype, _) = library.value(x, Call(), dtype="bfloat16")
    if dtype != "bfloat16":
        return f"returns {dtype}"
    expected = oracle.attention(x, seen, normaliser=library.normaliser)[0]
    in_float32 = _float32_weights(x, library.normaliser)
    # Where the form is exact by chance, it is held to half a step of bfloat16.
    times = error(out, expected) / (error(in_float32, expected) or 2**-9)
    # Twice is what attn's own kernels are allowed beside the textbook form.
    return None if times <= 2 else f"{times:.0f} times the error of float32 weights"


def _float32_weights(x, normaliser):
    """Returns attention with float32 inside, and bfloat16 weights and output."""
    q, k, v = (a.astype(np.float32) for a in x.values())
    s = np.einsum("bnhd,bmhd->bhnm", q, k) * np.float32(q.shape[-1] ** -0.5)
    exact, _, _ = NORMALISERS[normaliser](s.reshape(-1, s.shape[-1]))
    weights = _rounded(exact.reshape(s.shape)).astype(np.float32)
    return _rounded(np.einsum("bhnm,bmhv->bnhv", weights, v)).astype(np.float64)


def _rounded(array):
    return array.astype(ml_dtypes.bfloat16)


def lse(library):
    """Looks at the dtype and the error of the LSE of bfloat16 inputs."""
    x, seen = _sharp()
    _, found, (_, dtype) = library.value(x, Call(lse=True), dtype="bfloat16")
    expected = oracle.attention(x, seen, normaliser=library.normaliser)[1]
    largest = np.abs(found - expected).max()
    # bfloat16 has steps of a 128th, so this tells one rounded there from float32: 0.01 at 70.
    if dtype == "float32" and largest < 1.4e-4 * expected.max():
        return None
    return f"returns {dtype}, off by {largest:.1e} at {found.max():.0f}"
