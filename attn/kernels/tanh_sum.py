"""v · tanh(a + b) for all pairs of queries and keys, the score of additive attention, without an N·M·A tensor.

tanh(x) = (y − 1)/(y + 1) with y = e^{2x} = e^{2a} e^{2b}: the exponentials are per token, and a pair of tokens costs a
product, and half a division, per feature. e^{2a} is kept as m·2^k, so that it neither overflows nor loses digits when a
and b are large and cancel. A features, N queries, M keys; features come first.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

GROUP = 8
"""Features summed in one pass over the scores."""
LARGEST = 5000.0
"""Pre-activations are clipped to this size; of the sum of larger ones float32 keeps three digits at most."""


@jax.custom_jvp
def tanh_sum(
    a: Float[ArrayLike, "A N"], b: Float[ArrayLike, "A M"], v: Float[ArrayLike, "A"]
) -> Float[Array, "N M"]:
    """Σ_f v_f tanh(a_f + b_f). Equal to that to rounding, for all a and b of size up to 5,000."""
    n, features = a.shape[1], v.shape[0]
    groups = -(-features // GROUP)
    fill = (0, groups * GROUP - features)
    tables = jax.tree.map(
        lambda x: jnp.pad(x, (fill, (0, 0))).reshape(groups, GROUP, -1),
        _tables(a, b, v),
    )

    def add(s, t):
        rows = _picked(t, tables)
        pairs = [
            [jax.tree.map(lambda x, f=f: x[f], rows) for f in (f, f + 1)]
            for f in range(0, GROUP, 2)
        ]
        return s + functools.reduce(jnp.add, [_two(n, *pair) for pair in pairs]), None

    return jax.lax.scan(add, jnp.zeros((n, b.shape[1]), v.dtype), jnp.arange(groups))[0]


@tanh_sum.defjvp
def _tanh_sum_jvp(primals, tangents):
    return tanh_sum(*primals), _tangent(*primals, *tangents)


def _tangent(a, b, v, d_a, d_b, d_v):
    """Σ_f v_f (1 − tanh²)(da_f + db_f) + dv_f tanh; linear in the last three."""
    n, m = a.shape[1], b.shape[1]
    tables = jax.lax.stop_gradient(_tables(a, b, v))
    across = jnp.ones((1, m), v.dtype)

    # What is made for a feature is made again, and not kept, when this is transposed.
    @functools.partial(jax.checkpoint, prevent_cse=False)
    def add(s, feature):
        t, a, b, w, d_a, d_b, d_v = feature
        row = _picked(t, tables)
        r = _r(row, a, b)
        # As products, so that their transposes are products too and not sums over an axis; the second with ones that
        # vmap takes for data, or it would transpose r.
        ones = (1 + 0 * row[0][:n])[:, None]
        d_x = jnp.matmul(d_a[:, None], across) + jnp.matmul(ones, d_b[None])
        return (
            s + 4 * w * (r - r * r) * d_x + (1 - 2 * r) * jnp.matmul(d_v * ones, across)
        )

    features = jnp.arange(v.shape[0]), a, b, v, d_a, d_b, d_v
    return jax.lax.scan(
        lambda s, feature: (add(s, feature), None), jnp.zeros((n, m), v.dtype), features
    )[0]


@jax.custom_jvp
def _r(row, a, b):
    """1/(1 + e^{2(a + b)}) for one feature, (1 − tanh)/2."""
    return 1 / (1 + _y(a.shape[0], row))


@_r.defjvp
def _r_jvp(primals, tangents):
    r = _r(*primals)
    return r, -2 * (r - r * r) * (tangents[1][:, None] + tangents[2][None])


def _two(n, row, other):
    """v tanh(a + b) of two features together: they share a division."""
    y, z = _y(n, row), _y(n, other)
    v, w = row[0][-1], other[0][-1]
    return (v * ((y - 1) * (z + 1)) + w * ((z - 1) * (y + 1))) / ((y + 1) * (z + 1))


def _y(n, row):
    """e^{2(a + b)} (N, M) from a row of the tables, cut where tanh is ±1 to rounding."""
    m, k = row
    integer, bits, bias, top = {
        4: (jnp.int32, 23, 127, 30),
        8: (jnp.int64, 52, 1023, 56),
    }[m.dtype.itemsize]
    exponent = jnp.clip(k[:n, None] + k[None, n:] + bias, 1, bias + top).astype(integer)
    return (m[:n, None] * m[None, n:-1]) * jax.lax.bitcast_convert_type(
        exponent << bits, m.dtype
    )


def _tables(a, b, v):
    """e^{2x} = m·2^k for a and b, each feature a row: m and v (A, N + M + 1), and k (A, N + M).

    0.7 < m < 1.42, exact to rounding by Cody and Waite's reduction of the argument.
    """
    x = 2 * jnp.clip(jnp.concatenate([a, b], axis=1), -LARGEST, LARGEST)
    k = jnp.round(x / math.log(2))
    high = 355 / 512  # ln 2 to nine bits: k·high is exact
    m = jnp.exp((x - k * high) - k * (math.log(2) - high))
    return jnp.concatenate([m, v[:, None]], axis=1), k.astype(jnp.int32)


def _picked(t, tables):
    """Row t of each table, as a product with a one-hot vector.

    XLA's CPU compiler puts a slice into the loop over the pairs of tokens, which it then does not vectorise: five times
    slower. A product stays outside. One table holds queries and keys, so that no part of a row can be hoisted.
    """

    def pick(x):
        hot = (jnp.arange(x.shape[0]) == t).astype(x.dtype)
        return jnp.matmul(hot, x.reshape(x.shape[0], -1), precision="highest").reshape(
            x.shape[1:]
        )

    return jax.tree.map(pick, tables)
