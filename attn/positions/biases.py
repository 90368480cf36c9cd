"""What position says: biases on the scores, values that know only how far a key stands from a query.

Query i stands at position i + offset, key j at position j; the offset is one number, 0 unless given, and may be traced:
with a cache, the query at place t takes `dataclasses.replace(bias, offset=t)` and `Mask.causal(offset=t)`.

A bias is a pytree whose leaves are one number or have a leading axis H, of length 1 where the heads share it; the
kernels ask it for tiles and never for the whole. H heads, r = the distance from which all are alike; n queries and
m keys of a tile.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int


def bias(cls):
    """Makes a class of parameters a bias: a frozen dataclass, its fields pytree leaves unless marked as static.

    `tile(i, j)` gives what one head adds to its scores (n, m) of queries i and keys j, both runs of neighbours. Those
    of this file say with `trained` whether their arrays are parameters of a model.
    """
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(cls))


@bias
class RelativeTable:
    """bias[i, j] = table[clip(j − i, −r, r) + r]: a number for each distance up to r.

    The clipped distances of Shaw et al. 2018, section 3.2, with a number for each head in place of a vector.
    Its gradient is a sum over each diagonal of a tile: n + m numbers are scattered, and not n·m.
    """

    trained = True
    table: Any  # Float[Array, "H 2r+1"]
    offset: Any = 0  # Int[Array, ""]

    @classmethod
    def init(cls, key: Array, h: int, reach: int):
        """For h heads and distances up to r = reach, from N(0, 0.02²) (Liu et al. 2021, "Swin Transformer")."""
        return cls(0.02 * jax.random.normal(key, (h, 2 * reach + 1)))

    def tile(self, i: Int[Array, "n"], j: Int[Array, "m"]) -> Float[Array, "n m"]:
        table = _of_one_head("table", self.table, ndim=1)
        if table.shape[0] % 2 == 0:
            raise ValueError(
                f"a table of {table.shape[0]} numbers has no middle: 2r + 1 are needed, for −r to r"
            )
        r = table.shape[0] // 2
        # Not table[j − i]: the gradient of that would scatter n·m numbers.
        diagonals = j[0] - i[0] - self.offset + jnp.arange(1 - i.shape[0], j.shape[0])
        return _toeplitz(table[jnp.clip(diagonals, -r, r) + r], i.shape[0])


@bias
class T5Buckets:
    """bias[i, j] = table[bucket(j − i)] (Raffel et al. 2020, section 2.1), see `t5_buckets`."""

    trained = True
    table: Any  # Float[Array, "H buckets"]
    offset: Any = 0  # Int[Array, ""]
    bidirectional: bool = dataclasses.field(default=True, metadata={"static": True})
    max_distance: int = dataclasses.field(default=128, metadata={"static": True})

    @classmethod
    def init(
        cls,
        key: Array,
        h: int,
        buckets: int = 32,
        bidirectional: bool = True,
        max_distance: int = 128,
    ):
        """For h heads, Glorot-uniform over (h, buckets), as in t5x."""
        table = jax.nn.initializers.glorot_uniform()(key, (h, buckets))
        return cls(table, bidirectional=bidirectional, max_distance=max_distance)

    def tile(self, i: Int[Array, "n"], j: Int[Array, "m"]) -> Float[Array, "n m"]:
        table = _of_one_head("table", self.table, ndim=1)
        buckets = t5_buckets(table.shape[0], self.bidirectional, self.max_distance)
        return RelativeTable(table[np.array(buckets)], self.offset).tile(i, j)


@functools.cache
def t5_buckets(buckets: int, bidirectional: bool, max_distance: int) -> tuple[int, ...]:
    """The bucket of each distance j − i from −max_distance to max_distance; beyond, it is that of the nearer end.

    bucket(d) = d below e, and e + ⌊(b − e) · log(d / e) / log(max_distance / e)⌋, at most b − 1, from there on, with
    e = ⌊b / 2⌋. Bidirectional: b = buckets / 2 for the keys up to the query, as many after them for those behind it;
    else b = buckets, and a key behind the query counts as at distance 0.

    Raises:
      ValueError: buckets or a max_distance too small for this, an odd number of buckets in two directions.
    """
    if bidirectional and buckets % 2:
        raise ValueError(
            f"buckets={buckets} must be even: half of them are for each direction"
        )
    b = buckets // 2 if bidirectional else buckets
    e = b // 2
    if e < 1 or max_distance <= e:
        raise ValueError(
            f"buckets={buckets}, max_distance={max_distance}: a direction needs 2 buckets, and a "
            "max_distance above half their number"
        )

    def bucket(d):
        if d < e:
            return d
        # In integers: the powers of two fall on the edges of buckets, where a logarithm's rounding would decide.
        return e + max(
            t
            for t in range(b - e)
            if d ** (b - e) * e**t >= max_distance**t * e ** (b - e)
        )

    before = [bucket(d) for d in range(max_distance + 1)]
    behind = [b + x for x in before[1:]] if bidirectional else [0] * max_distance
    return (*before[::-1], *behind)


@bias
class ALiBi:
    """bias[i, j] = −slope · |j − i| (Press et al. 2022, section 3; there under a causal mask only)."""

    trained = False
    slopes: Any  # Float[Array, "H"], see `alibi_slopes`
    offset: Any = 0  # Int[Array, ""]

    def tile(self, i: Int[Array, "n"], j: Int[Array, "m"]) -> Float[Array, "n m"]:
        slope = _of_one_head("slopes", self.slopes, ndim=0)
        return -slope * jnp.abs(j[None] - i[:, None] - self.offset).astype(slope.dtype)


def alibi_slopes(h: int) -> Float[np.ndarray, "H"]:
    """The paper's slopes of h heads: 2^(−8/h), 2^(−16/h), …, 2^(−8) for a power of two.

    Other numbers take those of the power of two below, p, and then every other one of those of 2p.
    """
    if h < 1:
        raise ValueError(f"h={h} must be at least 1")
    p = 2 ** (h.bit_length() - 1)
    exponents = [*np.arange(1, p + 1) / p, *np.arange(1, 2 * p, 2) / (2 * p)][:h]
    return (2.0 ** (-8 * np.array(exponents))).astype(np.float32)


def for_query(
    bias, h: int, position: Int[ArrayLike, ""], m: int
) -> Float[Array, "H m"]:
    """What h heads add to the scores of one query at `position` and m keys: a row, for a decoder with a cache."""
    leaves, tree = jax.tree.flatten(dataclasses.replace(bias, offset=position))
    leaves = [jnp.broadcast_to(leaf, (h, *jnp.shape(leaf)[1:])) for leaf in leaves]
    return jax.vmap(
        lambda *own: tree.unflatten(own).tile(jnp.arange(1), jnp.arange(m))[0]
    )(*leaves)


def _of_one_head(name, parameter, ndim):
    """In float32 at least: a diagonal's gradient is a sum of many."""
    parameter = jnp.asarray(parameter)
    if parameter.ndim != ndim:
        raise ValueError(
            f"a head's share of {name} must have {ndim} axes, not shape {parameter.shape}; before them "
            "comes one for the heads, of length 1 where they share it"
        )
    return parameter.astype(jnp.promote_types(parameter.dtype, jnp.float32))


def _toeplitz(diagonals: Float[Array, "w"], n: int) -> Float[Array, "n m"]:
    """(a, b) ↦ diagonals[b − a + n − 1]: one row made four, each shifted, and those again until there are n.

    Made of slices, so that its gradient is made of sums of rows: no gather and no scatter of n·m numbers.
    """
    levels = ((n - 1).bit_length() + 1) // 2
    x = jnp.pad(diagonals, (0, 4**levels - n))[
        None
    ]  # only the rows that are cut off reach the padding
    for shift in (4**level for level in reversed(range(levels))):
        width = x.shape[1] - 3 * shift
        # Side by side and not stacked: with that XLA takes a fifth longer for the gradient of attention on a CPU.
        x = jnp.concatenate(
            [x[:, c * shift : c * shift + width] for c in (3, 2, 1, 0)], axis=1
        )
        x = x.reshape(-1, width)[-((n - 1) // shift + 1) :]
    return x
