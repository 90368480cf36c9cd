"""An MLP of one number for all pairs of queries and keys, without an N·M·F tensor.

It is what FIRE adds to the scores (`attn.positions.FireBias`). F units, N queries, M keys;
units come first.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from attn.functions import traced_as
from attn.jax_versions import apply_linear

# A pass reads and writes all N·M sums, so several units share it.
GROUP = 2
"""The number of units summed in one pass."""


def _of_features(x, w, b, v):
    w, b, v = (unit[None, None] for unit in (w, b, v))
    return (v * jnp.maximum(w * x[..., None] + b, 0)).sum(-1)


@jax.custom_jvp
def _relu_sum(
    x: Float[ArrayLike, "N M"],
    w: Float[ArrayLike, "F"],
    b: Float[ArrayLike, "F"],
    v: Float[ArrayLike, "F"],
) -> Float[Array, "N M"]:
    """Computes Σ_f v_f max(0, w_f x + b_f)."""

    def add(s, units):
        for w, b, v in zip(*units, strict=True):
            s = s + v * jnp.maximum(w * x + b, 0)
        return s, None

    return jax.lax.scan(add, _zeros(x, w, b, v), _grouped(w, b, v))[0]


@_relu_sum.defjvp
def _relu_sum_jvp(primals, tangents):
    tangent = apply_linear(functools.partial(_tangent, *primals), *tangents)
    return _relu_sum(*primals), tangent


relu_sum = traced_as(_of_features, _relu_sum)


def _tangent(x, w, b, v, d_x, d_w, d_b, d_v):
    """Computes Σ_f dv_f max(0, y) + v_f [y > 0] (w_f dx + x dw_f + db_f), y = w_f x + b_f."""

    # What a unit makes is made again, and not kept, when this is transposed.
    @functools.partial(jax.checkpoint, prevent_cse=False)
    def add(s, units):
        for w, b, v, d_w, d_b, d_v in zip(*units, strict=True):
            y = w * x + b
            through = v * (w * d_x + x * d_w + d_b)
            s = s + jnp.where(y > 0, through + y * d_v, 0)
        return s

    start = _zeros(x, w, b, v) + _zeros(d_x, d_w, d_b, d_v)
    units = _grouped(w, b, v, d_w, d_b, d_v)
    return jax.lax.scan(lambda s, units: (add(s, units), None), start, units)[0]


def _grouped(*of_units: Any) -> tuple[Array, ...]:
    """Returns arrays (F / GROUP, GROUP); those that fill up the last group add nothing."""

    def grouped(x):
        groups = -(-x.size // GROUP)
        return jnp.pad(x, (0, groups * GROUP - x.size)).reshape(groups, GROUP)

    return tuple(map(grouped, of_units))


def _zeros(x: Any, *of_units: Any) -> Array:
    """Returns zeros (N, M) whose type is that of sums of all these.

    shard_map's types tell over which devices a number varies, and what a scan sums up must
    begin as it ends. Of the sum only the type is used, so it is never computed.
    """
    return jnp.zeros_like(x + sum(unit.sum() for unit in of_units))
