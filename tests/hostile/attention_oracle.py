"""Random cases by `attn.contract.oracle` in float64, and how far rounding may take a result.

The room for rounding is measured: the oracle is computed again with each input, score and
weight changed at random by what some roundings amount to, a few times: NARROW of the
case's dtype, and WIDE of float32, in which kernels sum, or of float64.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from attn.contract import oracle
from attn.jax_versions import enable_x64

UNITS = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "bfloat16": 2.0**-8,
    "float16": 2.0**-11,
}
TINY = {"float64": 2.0**-1022, "float16": 2.0**-24}
"""Absolute errors where a number is too small; elsewhere float32's, which XLA flushes to 0."""
DRAWS = 3
NARROW = 8
WIDE = 256
SCORES = {
    "dot": oracle.dot,
    "scaled": oracle.scaled_dot,
    "bilinear": oracle.bilinear,
    "low rank": oracle.bilinear,
    "additive": oracle.additive,
}


def visible(parts, data, batch, n, m, h) -> np.ndarray:
    """Returns which keys each query sees, (B, H, N, M).

    Args:
      parts: tuples of a kind and its numbers: ("causal", offset), ("window", left, right),
        ("causal_at", …), ("padding", …), ("segments", …), ("dense", …).
      data: the arrays of each part, a dictionary at its place.
      batch, n, m, h: the sizes.
    """
    i = np.arange(n)[:, None]
    j = np.arange(m)[None]
    seen = np.ones((*batch, h, n, m), bool)

    def of_examples(x):
        return np.broadcast_to(np.asarray(x, np.int64), batch)[..., None, None, None]

    for (kind, *numbers), arrays in zip(parts, data, strict=True):
        if kind == "causal":
            part = j <= i + numbers[0]
        elif kind == "window":
            part = (i - numbers[0] <= j) & (j <= i + numbers[1])
        elif kind == "causal_at":
            part = j <= i + of_examples(arrays["offset"])
        elif kind == "padding":
            part = j < of_examples(arrays["lengths"])
        elif kind == "segments":
            q_ids = np.broadcast_to(arrays["q_ids"], (*batch, n))
            k_ids = np.broadcast_to(arrays["k_ids"], (*batch, m))
            part = (q_ids[..., :, None] == k_ids[..., None, :])[..., None, :, :]
        else:
            part = arrays["array"]
        seen &= part
    return seen.reshape(math.prod(batch), h, n, m)


def bucket(distance: int, buckets: int, bidirectional: bool, max_distance: int) -> int:
    """Returns T5's bucket of the distance j − i (Raffel et al. 2020, section 2.1)."""
    start = 0
    if bidirectional:
        buckets = buckets // 2
        start = buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    small = buckets // 2
    if distance < small:
        return start + distance
    share = math.log(distance / small) / math.log(max_distance / small)
    # A power of two lands on the edge of a bucket, and its logarithm just below.
    step = math.floor(share * (buckets - small) + 1e-9)
    return start + min(buckets - 1, small + step)


def _bias(structure, array):
    """Returns the bias (B, H, N, M), differentiable in its array; 0 where there is none."""
    if structure.bias is None:
        return 0.0
    kind, *options, offset = structure.bias
    n, m, h = structure.n, structure.m, structure.h
    if kind == "dense":
        full = jnp.broadcast_to(array, (*structure.batch, h, n, m))
        return full.reshape(math.prod(structure.batch), h, n, m)
    distance = np.arange(m)[None] - np.arange(n)[:, None] - int(offset)
    if kind == "alibi":
        return -array[None, :, None, None] * np.abs(distance)[None, None]
    width = array.shape[1]
    if kind == "relative":
        place = np.clip(distance, -(width // 2), width // 2) + width // 2
    else:
        flat = [bucket(int(d), width, *options) for d in distance.ravel()]
        place = np.array(flat, np.int64).reshape(n, m)
    return array[None, :, place]


def _results(structure, trained, seen, noise):
    """Returns out (*B, N, H, V), lse (*B, N, H) and weights (*B, H, N, M) by name."""
    batch = structure.batch

    def heads_first(name):
        x = trained[name].reshape(math.prod(batch), *trained[name].shape[-3:])
        x = jnp.moveaxis(x, -2, 1)
        return x if name == "q" else jnp.repeat(x, structure.group, axis=1)

    kind, *options = structure.score
    static = [x for x in options if isinstance(x, float)]
    q, k, v = (heads_first(name) for name in "qkv")
    s = SCORES[kind](q, k, *static, **trained["score"])
    bias = _bias(structure, trained["bias"])

    def weigh(s):
        # Such a factor changes the gradient too.
        s = s * (1 + noise[0])
        weights, lse = oracle.softmax(s)
        # Adds nothing but a gradient: that of softmax is a difference, which may cancel.
        s = jnp.where(jnp.isfinite(s), s, 0)
        nothing = s - jax.lax.stop_gradient(s)
        extra = noise[2] * jax.lax.stop_gradient(weights) * nothing
        # Backward, kernels make the weights of the LSE again.
        size = 1 + jnp.where(jnp.isfinite(lse), jnp.abs(lse), 0)[..., None]
        return weights * (1 + noise[1] * jax.lax.stop_gradient(size)) + extra, lse

    out, lse, weights = oracle.attention(s, v, seen, bias, weigh)
    shape = (*batch, structure.n, structure.h)
    return {
        "out": jnp.moveaxis(out, 1, 2).reshape(*shape, out.shape[-1]),
        "lse": jnp.moveaxis(lse, 1, 2).reshape(shape),
        "weights": weights.reshape(*batch, *weights.shape[1:]),
    }


@functools.partial(jax.jit, static_argnums=0)
def _with_gradients(structure, trained, cotangents, seen, noise):
    def loss(trained):
        results = _results(structure, trained, seen, noise)
        total = 0.0
        for name, g in cotangents.items():
            # A query that sees nothing has LSE −inf whatever the rest is.
            value = results[name]
            total += (jnp.where(jnp.isfinite(value), value, 0) * g).sum()
        return total, results

    gradients, results = jax.grad(loss, has_aux=True)(trained)
    scores = gradients.pop("score")
    results |= {f"d {name}": x for name, x in gradients.items() if x is not None}
    return results | {f"d score.{name}": x for name, x in scores.items()}


def attention(structure, data):
    """Computes the results and gradients of a case.

    Args:
      structure: has batch, n, m, h, score (its kind first), mask, bias and dtype.
      data: arrays by name: q, k and v as attn takes them, "score" and "bias" by name,
        "mask" a dictionary for each part, and the cotangents g_out, g_lse, g_weights.

    Returns:
      {name: (value, error)} of out, lse, weights and "d q", "d k", "d v", "d score.…",
      "d bias", where rounding may err by `error`; and which queries (B, H, N) see a key or
      value that is not finite, whose results must not be finite either.
    """
    sizes = (structure.batch, structure.n, structure.m, structure.h)
    seen = visible(structure.mask, data["mask"], *sizes)
    trained = {name: data[name] for name in ("q", "k", "v", "score", "bias")}
    trained = jax.tree.map(lambda x: np.asarray(x, np.float64), trained)
    tainted = _tainted(structure, trained, seen)
    for name in "qkv":
        trained[name] = np.where(np.isfinite(trained[name]), trained[name], 0)
    names = {"g_out": "out", "g_lse": "lse", "g_weights": "weights"}
    cotangents = {
        to: np.asarray(data[name], np.float64)
        for name, to in names.items()
        if name in data
    }
    unit = min(UNITS[structure.dtype], UNITS["float32"])
    room = NARROW * UNITS[structure.dtype] + WIDE * unit
    rng = np.random.default_rng(0)

    def noise(shape):
        return room * rng.uniform(-1, 1, shape)

    def moved(x):
        return x * (1 + noise(x.shape))

    pairs = (3, *seen.shape)
    with enable_x64(True):
        arguments = (trained, cotangents)
        exact = _with_gradients(structure, *arguments, seen, np.zeros(pairs))
        exact = jax.device_get(exact)
        spread = {name: np.zeros(()) for name in exact}
        for _ in range(DRAWS):
            arguments = jax.tree.map(moved, (trained, cotangents))
            again = _with_gradients(structure, *arguments, seen, noise(pairs))
            for name, x in jax.device_get(again).items():
                change = np.abs(_finite(x) - _finite(exact[name]))
                spread[name] = np.maximum(spread[name], change.max(initial=0))
    # An LSE that is rounded by more than scores differ tells nothing of the weights.
    largest = np.abs(_finite(exact["lse"])).max(initial=0)
    is_known = unit * largest < 1e-3
    results = {}
    for name, value in exact.items():
        size = np.abs(_finite(value)).max(initial=0)
        error = spread[name] + room * size
        if name.startswith("d ") and not is_known:
            error = np.inf
        results[name] = (value, error + TINY.get(structure.dtype, 2.0**-126))
    return results, tainted


def _finite(x):
    return np.where(np.isfinite(x), x, 0)


def _tainted(structure, trained, seen):
    bad = np.zeros((math.prod(structure.batch), structure.h, structure.m), bool)
    for name in "kv":
        x = trained[name].reshape(math.prod(structure.batch), *trained[name].shape[-3:])
        of_keys = ~np.isfinite(x).all(-1)
        bad |= np.moveaxis(of_keys, -1, 1).repeat(structure.group, axis=1)
    return (seen & bad[:, :, None]).any(-1)
