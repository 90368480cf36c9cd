"""Builds the calls of attention that are compiled."""

import jax
import jax.numpy as jnp

from attn import Additive, Bilinear, Dot, Mask, ScaledDot, attention
from launch.bench.compile.case import AttentionCase

WINDOW = 64
"""Keys that a window has on each side."""


def build(case: AttentionCase, devices: list[jax.Device]):
    """Returns a jitted function and the shapes of its arguments, on the first device."""
    sharding = jax.sharding.SingleDeviceSharding(devices[0])

    def array(*shape, dtype=case.dtype):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    qkv = [array(case.b, case.n, case.h, case.d)] * 3
    score = _score(case, lambda *shape: array(*shape, dtype=jnp.float32))
    mask = _mask_arguments(case, array)

    def output(score, mask, q, k, v):
        return attention(
            q,
            k,
            v,
            score=score,
            mask=_mask(case, mask),
            implementation=case.implementation,
        )

    def total(*arguments):
        return output(*arguments).astype(jnp.float32).sum()

    # Of the score, q, k and v; masks have no gradient.
    function = jax.grad(total, (0, 2, 3, 4)) if _is_gradient(case) else output
    return jax.jit(function), (score, mask, *qkv)


def _is_gradient(case):
    return case.direction == "gradient"


def _score(case, array):
    h = case.h
    d = case.d
    if case.score == "additive":
        return Additive(array(h, d, d), array(h, d, d), array(h, d), None)
    if case.score == "bilinear":
        return Bilinear(array(h, d, d))
    return {"dot": Dot(), "scaled_dot": ScaledDot()}[case.score]


def _mask_arguments(case, array):
    """Returns the shapes of what a mask reads: lengths, or numbers of segments."""
    if case.mask == "padding":
        return array(case.b, dtype=jnp.int32)
    if case.mask == "segments":
        return array(case.b, case.n, dtype=jnp.int32)
    return None


def _mask(case, numbers):
    if case.mask == "causal":
        return Mask.causal()
    if case.mask == "window":
        return Mask.window(WINDOW, WINDOW)
    if case.mask == "local":
        return Mask.window(WINDOW, 0)
    if case.mask == "padding":
        return Mask.padding(numbers)
    if case.mask == "segments":
        return Mask.segments(numbers, numbers)
    return None
