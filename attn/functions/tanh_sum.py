"""v · tanh(a + b) for all pairs of queries and keys, without an N·M·A tensor.

This is the score of additive attention. tanh(x) = (y − 1)/(y + 1) with
y = e^{2x} = e^{2a} e^{2b}: the exponentials are per token, and a pair of tokens costs a
product, and half a division, per feature. e^{2a} is kept as m·2^k, so that it neither
overflows nor loses digits when a and b are large and cancel. A features, N queries,
M keys; features come first.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn.functions import traced_as
from attn.jax_versions import apply_linear
from attn.platforms import features_of_gradient
from attn.pytrees import AnyArray

# A pass reads and writes all N·M sums, so several features share it.
GROUP = 8
"""The number of features summed in one pass over the scores."""
LARGEST = 5000.0
"""Pre-activations are clipped to this size.

Of the sum of larger ones float32 keeps three digits at most.
"""


def _of_features(a, b, v):
    return (jnp.tanh(a.T[:, None] + b.T[None]) * v[None, None]).sum(-1)


@jax.custom_jvp
def _tanh_sum(
    a: Float[AnyArray, "A N"],
    b: Float[AnyArray, "A M"],
    v: Float[AnyArray, "A"],
) -> Float[Array, "N M"]:
    """Computes Σ_f v_f tanh(a_f + b_f), to rounding, for all a and b of size up to 5,000."""
    n = a.shape[1]
    # What fills the last group has v = 0 too, so it adds nothing.
    tables = jax.tree.map(lambda x: _in_groups(x, GROUP), _tables(a, b, v))
    groups = len(tables[0])

    def add(s, t):
        rows = _row(t, tables)
        terms = []
        for f in range(0, GROUP, 2):
            first = jax.tree.map(lambda x, f=f: x[f], rows)
            second = jax.tree.map(lambda x, f=f: x[f + 1], rows)
            terms.append(_two_features(n, first, second))
        return s + functools.reduce(jnp.add, terms), None

    start = _zeros([a], [b], [v])
    return jax.lax.scan(add, start, jnp.arange(groups))[0]


@_tanh_sum.defjvp
def _tanh_sum_jvp(primals, tangents):
    tangent = apply_linear(functools.partial(_tangent, *primals), *tangents)
    return _tanh_sum(*primals), tangent


tanh_sum = traced_as(_of_features, _tanh_sum)


def _tangent(a, b, v, d_a, d_b, d_v):
    """Computes Σ_f v_f (1 − tanh²)(da_f + db_f) + dv_f tanh; linear in the last three."""
    n = a.shape[1]
    m = b.shape[1]
    # Derivatives go through a and b by the rule of `_r`, never through the tables.
    tables = jax.lax.stop_gradient(_tables(a, b, v))
    across = jnp.ones((1, m), v.dtype)

    size = features_of_gradient()

    def grouped(x):
        return _in_groups(x, size)

    tables = jax.tree.map(grouped, tables)

    # The numbers of features are made again, and not kept, when this is transposed.
    @functools.partial(jax.checkpoint, prevent_cse=False)
    def add(s, group):
        t, a, b, w, d_a, d_b, d_v = group
        rows = _row(t, tables)
        terms = []
        for f in range(size):
            row = jax.tree.map(lambda x, f=f: x[f], rows)
            r: Any = _r(row, a[f], b[f])
            # As products, so that their transposes are products too and not sums over an
            # axis; the second with ones that vmap takes for data, or it would transpose r.
            ones = (1 + 0 * row[0][:n])[:, None]
            d_x = jnp.matmul(d_a[f, :, None], across) + jnp.matmul(ones, d_b[f, None])
            from_v = (1 - 2 * r) * jnp.matmul(d_v[f] * ones, across)
            terms += [4 * w[f] * (r - r * r) * d_x, from_v]
        return functools.reduce(jnp.add, terms, s)

    features = tuple(map(grouped, (a, b, v, d_a, d_b, d_v)))
    groups = jnp.arange(len(features[0])), *features
    start = _zeros([a, d_a], [b, d_b], [v, d_v])
    return jax.lax.scan(lambda s, x: (add(s, x), None), start, groups)[0]


def _in_groups(x: Array, size: int) -> Array:
    """Returns rows (A, …) as (groups, size, …), with rows of 0 behind."""
    groups = -(-len(x) // size)
    padded = jnp.pad(x, [(0, groups * size - len(x))] + [(0, 0)] * (x.ndim - 1))
    return padded.reshape(groups, size, *x.shape[1:])


def _zeros(of_queries: Any, of_keys: Any, of_features: Any) -> Array:
    """Returns zeros (N, M) whose type is that of sums of all these.

    shard_map's types tell over which devices a number varies, those of explicit meshes
    how it is sharded, and what a scan sums up must begin as it ends.
    """
    column = sum(x.sum(0)[:, None] for x in of_queries)
    row = sum(x.sum(0)[None] for x in of_keys)
    # Of the sum only the type is used, so it is never computed.
    return jnp.zeros_like(column + row + sum(x.sum() for x in of_features))


@jax.custom_jvp
def _r(row, a, b):
    """Computes 1/(1 + e^{2(a + b)}) for one feature, which is (1 − tanh)/2."""
    return 1 / (1 + _y(a.shape[0], row))


@_r.defjvp
def _r_jvp(primals, tangents):
    r = _r(*primals)
    return r, -2 * (r - r * r) * (tangents[1][:, None] + tangents[2][None])


def _two_features(n: int, row: Any, other: Any) -> Array:
    """Computes v tanh(a + b) of two features together: they share a division."""
    y = _y(n, row)
    z = _y(n, other)
    v = row[0][-1]
    w = other[0][-1]
    numerator = v * ((y - 1) * (z + 1)) + w * ((z - 1) * (y + 1))
    return numerator / ((y + 1) * (z + 1))


def _y(n: int, row: Any) -> Array:
    """Computes e^{2(a + b)} (N, M) from a row of the tables, cut where tanh is ±1."""
    m, k = row
    # At 2^top tanh has rounded to 1, and the product of two such y is still finite.
    formats = {4: (jnp.int32, 23, 127, 30), 8: (jnp.int64, 52, 1023, 56)}
    integer, bits, bias, top = formats[m.dtype.itemsize]
    exponent = jnp.clip(k[:n, None] + k[None, n:] + bias, 1, bias + top)
    # The bits of 2^k are put together: exact, and no exponential for a pair.
    power = jax.lax.bitcast_convert_type(exponent.astype(integer) << bits, m.dtype)
    return (m[:n, None] * m[None, n:-1]) * power


def _tables(a: Any, b: Any, v: Any) -> tuple[Array, Array]:
    """Computes e^{2x} = m·2^k for a and b, each feature a row.

    Returns m with v behind it (A, N + M + 1), and k (A, N + M). 0.7 < m < 1.42, exact to
    rounding by Cody and Waite's reduction of the argument.
    """
    x = 2 * jnp.clip(jnp.concatenate([a, b], axis=1), -LARGEST, LARGEST)
    k = jnp.round(x / math.log(2))
    high = 355 / 512  # ln 2 to nine bits: k·high is exact
    m = jnp.exp((x - k * high) - k * (math.log(2) - high))
    # v stands behind m, so that one product of `_row` brings both.
    return jnp.concatenate([m, v[:, None]], axis=1), k.astype(jnp.int32)


def _row(t: Any, tables: Any) -> Any:
    """Returns row t of each table, as a product of two rows with a one-hot vector.

    XLA's CPU compiler puts a slice into the loop over the pairs of tokens, which it then
    does not vectorise: five times slower. A product stays outside, and of one row there
    would be none. One table holds queries and keys, so that no part of a row can be hoisted.
    """

    def product(x):
        count = min(2, x.shape[0])
        first = jnp.minimum(t, x.shape[0] - count)
        near = jax.lax.dynamic_slice_in_dim(x, first, count)
        hot = (jnp.arange(count) == t - first).astype(x.dtype)
        # By default a GPU or TPU would round the table's numbers to fewer bits.
        row = jnp.matmul(hot, near.reshape(count, -1), precision="highest")
        return row.reshape(x.shape[1:])

    return jax.tree.map(product, tables)
