"""Builds the calls of attention that are compiled."""

import dataclasses

import jax
import jax.numpy as jnp

from attn import Additive, Bilinear, Dot, Mask, ScaledDot, attention

WINDOW = 64
"""Keys that a window has on each side."""


# Frozen, because cases are the keys of results.
@dataclasses.dataclass(frozen=True)
class AttentionCase:
    """Describes one call of attention, of B 2, H 8, d 64 unless it says otherwise."""

    score: str
    n: int
    mask: str = "full"
    """Or "causal", "window" to both sides, "local" to the left, "padding", "segments",
    "packed", which is segments and causal."""
    direction: str = "forward"
    """Or "gradient": of Σ output, to q, k, v and the parameters of the score."""
    implementation: str | None = "blocks"
    dtype: str = "bfloat16"
    b: int = 2
    h: int = 8
    d: int = 64

    @property
    def name(self) -> str:
        """Returns the name by which --cases picks it."""
        how = self.implementation or "none"
        words = [self.score, self.mask, self.n, self.direction, how, self.dtype]
        if self.d != 64:
            words.append(f"d{self.d}")
        return "-".join(map(str, words))

    def build(self, devices: list[jax.Device]):
        """Returns a jitted function and the shapes of its arguments, on one device."""
        sharding = jax.sharding.SingleDeviceSharding(devices[0])

        def array(*shape, dtype=self.dtype):
            return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

        def output(score, numbers, q, k, v):
            mask = _masks(numbers)[self.mask]()
            how = self.implementation
            return attention(q, k, v, score=score, mask=mask, implementation=how)

        def total(*arguments):
            return output(*arguments).astype(jnp.float32).sum()

        qkv = [array(self.b, self.n, self.h, self.d)] * 3
        arguments = (_score(self, array), _mask_numbers(self, array), *qkv)
        # Of the score, q, k and v; masks have no gradient.
        is_gradient = self.direction == "gradient"
        function = jax.grad(total, (0, 2, 3, 4)) if is_gradient else output
        return jax.jit(function), arguments


def _score(case, array):
    h, d = case.h, case.d

    def parameter(*shape):
        return array(*shape, dtype=jnp.float32)

    if case.score == "additive":
        w = parameter(h, d, d)
        return Additive(w, w, parameter(h, d), None)
    if case.score == "bilinear":
        return Bilinear(parameter(h, d, d))
    return {"dot": Dot(), "scaled_dot": ScaledDot()}[case.score]


def _mask_numbers(case, array):
    """Returns the shapes of what a mask reads: lengths, or numbers of segments."""
    ids = (case.b, case.n)
    shape = {"padding": (case.b,), "segments": ids, "packed": ids}.get(case.mask)
    return None if shape is None else array(*shape, dtype=jnp.int32)


def _masks(numbers):
    return {
        "full": Mask,
        "causal": Mask.causal,
        "window": lambda: Mask.window(WINDOW, WINDOW),
        "local": lambda: Mask.window(WINDOW, 0),
        "padding": lambda: Mask.padding(numbers),
        "segments": lambda: Mask.segments(numbers, numbers),
        "packed": lambda: Mask.segments(numbers, numbers) & Mask.causal(),
    }
