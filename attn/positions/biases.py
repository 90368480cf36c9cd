"""Biases on the scores: values that know how far a key stands from a query.

Query i stands at position i + offset, key j at position j; the offset is one number,
0 unless given, and may be traced: with a cache, the query at place t takes
`dataclasses.replace(bias, offset=t)` and `Mask.causal(offset=t)`.

A bias is a pytree whose leaves are one number or have a leading axis H, of length 1 where
the heads share it; the kernels ask it for tiles and never for the whole. One whose arrays
are of examples too has methods `flat` and `check`, as `attn.positions.forget` has it. Rows
may hold several texts: the distance of two tokens of one text is that of their places in
the row, but where a text begins, a bias does not know. One that depends on more than the
distance has a method `in_context(ctx)`, which returns it for the places `ctx.places` (*B,
N) of the queries in their texts, as `attn.positions.functional.FireBias` does.
H heads, r = the distance from which all are alike; n queries and m keys of a tile. One's
own bias is:

    @attn.positions.bias
    class LogBias:
        slopes: Any  # Float[Array, "H"]

        def tile(self, i, j):
            return -self.slopes * jnp.log1p(jnp.abs(j[None] - i[:, None]))
"""

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from attn.positions.base import Positions
from attn.pytrees import T, at_least_float32, pytree

if TYPE_CHECKING:
    from attn.config import Attention


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def bias(cls: type[T]) -> type[T]:
    """Makes a class of parameters a bias: a frozen dataclass of pytree leaves.

    Fields marked as static are no leaves. `tile(i, j)` gives the numbers (n, m) that one
    head adds to its scores of queries i and keys j, both runs of neighbours, for leaves
    without the axis H. The class attribute `trained`, True unless given, states whether a
    model trains its arrays.

    `by_distance(d)` may say that the bias is a function of j − i: it returns what one head
    adds at distances d (w,). Kernels that make their tiles of that need no lookup of pairs.

    `sides(n, m)` may say that under a causal mask the bias is a number for each of n
    queries plus one for each of m keys, which fused kernels can take: it returns both,
    broadcastable to (*B, n, H) and (*B, m, H), or None where that does not hold.
    """
    made: Any = pytree(cls)
    if not hasattr(made, "trained"):
        made.trained = True
    return made


@bias
class RelativeBias:
    """bias[i, j] = table[clip(j − i, −r, r) + r]: a number for each distance up to r.

    These are the clipped distances of Shaw et al. 2018, section 3.2, with a number for
    each head in place of a vector. The gradient is a sum over each diagonal of a tile:
    n + m numbers are scattered, and not n·m.
    """

    trained = True
    table: Any  # Float[Array, "H 2r+1"]
    offset: Any = 0  # Int[Array, ""]

    @classmethod
    def init(cls, key: Array, h: int, reach: int) -> "RelativeBias":
        """Draws the table of h heads and distances up to r = reach from N(0, 0.02²).

        Liu et al. 2021, "Swin Transformer".
        """
        return cls(0.02 * jax.random.normal(key, (h, 2 * reach + 1)))

    def tile(self, i: Int[Array, "n"], j: Int[Array, "m"]) -> Float[Array, "n m"]:
        """Returns what one head adds to the scores of queries i and keys j."""
        # The gradient of table[j − i] would scatter n·m numbers.
        steps = jnp.arange(1 - i.shape[0], j.shape[0])
        return _toeplitz(self.by_distance(j[0] - i[0] + steps), i.shape[0])

    def by_distance(self, distances: Int[Array, "w"]) -> Float[Array, "w"]:
        """Returns what one head adds where j − i are these distances."""
        table = head_parameter("table", self.table, ndim=1)
        if table.shape[0] % 2 == 0:
            raise ValueError(
                f"a table of {table.shape[0]} numbers has no middle: 2r + 1 are needed, "
                "for −r to r"
            )
        r = table.shape[0] // 2
        return table[jnp.clip(distances - self.offset, -r, r) + r]


@bias
class BucketBias:
    """bias[i, j] = table[bucket(j − i)] (T5; Raffel et al. 2020, section 2.1).

    `bucket_of_distance` defines the buckets.
    """

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
    ) -> "BucketBias":
        """Draws the table of h heads, Glorot-uniform over (h, buckets), as in t5x."""
        table = jax.nn.initializers.glorot_uniform()(key, (h, buckets))
        return cls(table, bidirectional=bidirectional, max_distance=max_distance)

    def tile(self, i: Int[Array, "n"], j: Int[Array, "m"]) -> Float[Array, "n m"]:
        """Returns what one head adds to the scores of queries i and keys j."""
        return self._relative.tile(i, j)

    def by_distance(self, distances: Int[Array, "w"]) -> Float[Array, "w"]:
        """Returns what one head adds where j − i are these distances."""
        return self._relative.by_distance(distances)

    @property
    def _relative(self) -> RelativeBias:
        """The same with a number for each distance, so that its gradient is cheap too."""
        table = head_parameter("table", self.table, ndim=1)
        buckets = bucket_of_distance(
            table.shape[0], self.bidirectional, self.max_distance
        )
        return RelativeBias(table[np.array(buckets)], self.offset)


# Cached, because the powers are of large integers and every trace asks again.
@functools.cache
def bucket_of_distance(
    buckets: int,
    bidirectional: bool,
    max_distance: int,
) -> tuple[int, ...]:
    """Returns T5's bucket of each distance j − i from −max_distance to max_distance.

    Beyond, it is that of the nearer end. bucket(d) = d below e, and
    e + ⌊(b − e) · log(d / e) / log(max_distance / e)⌋, at most b − 1, from there on, with
    e = ⌊b / 2⌋. Bidirectional: b = buckets / 2 for the keys up to the query, as many after
    them for those behind it; else b = buckets, and a key behind the query counts as at
    distance 0.

    Raises:
      ValueError: buckets or a max_distance too small for this, an odd number of buckets
        in two directions.
    """
    if bidirectional and buckets % 2:
        raise ValueError(
            f"buckets={buckets} must be even: half of them are for each direction"
        )
    b = buckets // 2 if bidirectional else buckets
    e = b // 2
    if e < 1 or max_distance <= e:
        raise ValueError(
            f"buckets={buckets}, max_distance={max_distance}: a direction needs 2 "
            "buckets, and a max_distance above half their number"
        )

    def bucket(d):
        if d < e:
            return d
        # In integers: the powers of two fall on the edges of buckets, where a logarithm's
        # rounding would decide.
        steps = range(b - e)
        power = d ** (b - e)
        reached = [t for t in steps if power * e**t >= max_distance**t * e ** (b - e)]
        return e + max(reached)

    before = [bucket(d) for d in range(max_distance + 1)]
    behind = [0] * max_distance
    if bidirectional:
        behind = [b + x for x in before[1:]]
    return (*before[::-1], *behind)


@bias
class ALiBiBias:
    """bias[i, j] = −slope · |j − i| (Press et al. 2022, section 3).

    Theirs is under a causal mask only.
    """

    # The paper fixes the slopes. Without an annotation this is no field.
    trained = False
    slopes: Any  # Float[Array, "H"], see `alibi_slopes`
    offset: Any = 0  # Int[Array, ""]

    def tile(self, i: Int[Array, "n"], j: Int[Array, "m"]) -> Float[Array, "n m"]:
        """Returns what one head adds to the scores of queries i and keys j."""
        slope = head_parameter("slopes", self.slopes, ndim=0)
        distance = jnp.abs(j[None] - i[:, None] - self.offset)
        return -slope * distance.astype(slope.dtype)

    def sides(self, n: int, m: int) -> tuple[Array, Array] | None:
        """Returns −slope · (i + offset) and slope · j."""
        # Before an offset that is data, or below 0, keys may stand behind the query.
        if not isinstance(self.offset, int) or self.offset < 0:
            return None
        slopes = jnp.reshape(self.slopes, (1, -1)).astype(jnp.float32)
        i = jnp.arange(n, dtype=slopes.dtype) + self.offset
        j = jnp.arange(m, dtype=slopes.dtype)
        return -slopes * i[:, None], slopes * j[:, None]


def alibi_slopes(h: int) -> Float[np.ndarray, "H"]:
    """Returns the paper's slopes of h heads.

    They are 2^(−8/h), 2^(−16/h), …, 2^(−8) for a power of two. Other numbers take those of
    the power of two below, p, and then every other one of those of 2p.

    Raises:
      ValueError: no head.
    """
    if h < 1:
        raise ValueError(f"h={h} must be at least 1")
    p = 2 ** (h.bit_length() - 1)
    exponents = [*np.arange(1, p + 1) / p, *np.arange(1, 2 * p, 2) / (2 * p)][:h]
    return (2.0 ** (-8 * np.array(exponents))).astype(np.float32)


def bias_row(
    bias: Any, h: int, position: Int[ArrayLike, ""], m: int
) -> Float[Array, "H m"]:
    """Returns what h heads add to the scores of the query at `position` and m keys.

    It is the row that a decoder with a cache needs.
    """
    return bias_of_heads(bias, h, jnp.arange(1) + position, jnp.arange(m))[:, 0]


def bias_of_heads(
    bias: Any, h: int, i: Int[Array, "n"], j: Int[Array, "m"]
) -> Float[Array, "H n m"]:
    """Returns what each of h heads adds to the scores of queries i and keys j."""
    leaves, tree = jax.tree.flatten(bias)

    def is_number(leaf):
        return jnp.ndim(leaf) == 0

    def one_head(*leaves):
        return tree.unflatten(leaves).tile(i, j)

    axes = []
    for place, leaf in enumerate(leaves):
        axes.append(None if is_number(leaf) else 0)
        if not is_number(leaf):
            leaves[place] = jnp.broadcast_to(leaf, (h, *leaf.shape[1:]))
    return jax.vmap(one_head, in_axes=axes, axis_size=h)(*leaves)


def head_parameter(name: str, parameter: Any, ndim: int) -> Array:
    """Returns a head's parameter in float32 at least.

    A diagonal's gradient is a sum of many.
    """
    parameter = jnp.asarray(parameter)
    if parameter.ndim != ndim:
        raise ValueError(
            f"a head's share of {name} must have {ndim} axes, not shape "
            f"{parameter.shape}; before them comes one for the heads, of length 1 where "
            "they share it"
        )
    return parameter.astype(at_least_float32(parameter.dtype))


def _toeplitz(diagonals: Float[Array, "w"], n: int) -> Float[Array, "n m"]:
    """Computes (a, b) ↦ diagonals[b − a + n − 1].

    One row is made four, each shifted, and those again until there are n. It is built of
    slices, so that its gradient is built of sums of rows: no gather and no scatter of n·m
    numbers.
    """
    levels = ((n - 1).bit_length() + 1) // 2
    # Only the rows that are cut off reach the padding.
    x = jnp.pad(diagonals, (0, 4**levels - n))[None]
    for level in reversed(range(levels)):
        shift = 4**level
        width = x.shape[1] - 3 * shift
        # Side by side and not stacked: with that XLA takes a fifth longer for the
        # gradient of attention on a CPU.
        shifted = [x[:, c * shift : c * shift + width] for c in (3, 2, 1, 0)]
        x = jnp.concatenate(shifted, axis=1)
        x = x.reshape(-1, width)[-((n - 1) // shift + 1) :]
    return x


@dataclasses.dataclass(frozen=True)
class ALiBi(Positions):
    """Subtracts slope · distance from the scores (Press et al. 2022), see `ALiBiBias`."""

    def bias(self, key: Array, h: int, causal: bool) -> ALiBiBias:
        """Makes the bias with the paper's slopes; the key is not used."""
        return ALiBiBias(jnp.asarray(alibi_slopes(h)))


@dataclasses.dataclass(frozen=True)
class T5(Positions):
    """Adds a trained number for each bucket of distances to the scores of each head.

    Raffel et al. 2020, see `BucketBias`; each layer has its own.
    """

    buckets: int = 32
    max_distance: int = 128

    def bias(self, key: Array, h: int, causal: bool) -> BucketBias:
        """Draws the numbers; without causality half of the buckets are for later keys."""
        return BucketBias.init(key, h, self.buckets, not causal, self.max_distance)

    def check(self, a: "Attention") -> None:
        """Raises ValueError for buckets that do not make a bias in both directions."""
        # Two directions are the stricter case, and an encoder may have the same value.
        bucket_of_distance(self.buckets, True, self.max_distance)


@dataclasses.dataclass(frozen=True)
class Relative(Positions):
    """Adds a trained number for each distance up to `reach` to the scores of each head.

    See `RelativeBias`; each layer has its own. Shaw et al. 2018 found no gain beyond 16.
    """

    reach: int = 16

    def bias(self, key: Array, h: int, causal: bool) -> RelativeBias:
        """Draws the numbers."""
        return RelativeBias.init(key, h, self.reach)

    def check(self, a: "Attention") -> None:
        """Raises ValueError for a reach below 1."""
        if self.reach < 1:
            raise ValueError(f"reach={self.reach} must be at least 1")
