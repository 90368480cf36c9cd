"""What may be seen: a mask is a description, not an array.

A `Mask` is a conjunction of parts, built by `Mask.causal()`, `Mask.padding(lengths)`, ... and combined with `&`.
Kernels ask it which of some keys some queries may see, and how far a query reaches at all; nothing of size N·M exists
before that. B batch (any number of leading axes), N queries, M keys, H heads.
"""

import dataclasses
import math
import operator
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Int


def _part(**core_ndim):
    """Registers a part: a pytree whose leaves have `core_ndim` axes for one example, batch axes before them.

    The leaves are `Any`, because JAX also puts other things than arrays into a pytree: in_axes, shapes, None. Fields
    that `core_ndim` does not name are static.
    """

    def decorate(cls):
        cls = dataclasses.dataclass(frozen=True)(cls)
        static = [
            field.name
            for field in dataclasses.fields(cls)
            if field.name not in core_ndim
        ]
        cls = jax.tree_util.register_dataclass(
            cls, data_fields=list(core_ndim), meta_fields=static
        )
        cls.core_ndim = core_ndim
        return cls

    return decorate


@_part()
class Band:
    """i − left ≤ j ≤ i + right, None for no bound: static, so that kernels can leave out the keys that nobody sees."""

    left: int | None
    right: int | None

    def tile(self, i, j):
        visible = jnp.ones((), bool)
        if self.left is not None:
            visible &= i - self.left <= j
        if self.right is not None:
            visible &= j <= i + self.right
        return visible


@_part(offset=0)
class _CausalAt:
    """j ≤ i + offset for an offset that is data, as the place of a decoder's step is."""

    offset: Any  # Int[Array, "*B"]

    def tile(self, i, j):
        return j <= i + self.offset


@_part(lengths=0)
class Padding:
    lengths: Any  # Int[Array, "*B"]

    def tile(self, i, j):
        return j < self.lengths


@_part(q_ids=1, k_ids=1)
class _Segments:
    q_ids: Any  # Int[Array, "*B N"]
    k_ids: Any  # Int[Array, "*B M"]

    def tile(self, i, j):
        return self.q_ids[i] == self.k_ids[j]


@_part(array=3)
class _Dense:
    array: Any  # Bool[Array, "*B H N M"]

    def tile(self, i, j):
        n, m = self.array.shape
        rows = (
            self.array if n == 1 else jnp.take(self.array, i[:, 0], axis=0, mode="clip")
        )
        return (
            rows
            if m == 1
            else jax.lax.dynamic_slice_in_dim(rows, j[0, 0], j.shape[1], axis=1)
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Mask:
    """True where a query may attend to a key, in every one of its parts; `Mask()` hides nothing."""

    parts: tuple = ()

    @classmethod
    def causal(cls, offset: int | Int[ArrayLike, "*B"] = 0) -> "Mask":
        """Query i sees key j when j ≤ i + offset ("Attention Is All You Need", section 3.2.3).

        With an int, kernels spend nothing on the hidden keys; an array (*B) may differ between examples.
        """
        if isinstance(offset, int):
            return cls((Band(None, offset),))
        return cls((_CausalAt(_integers("offset", offset)),))

    @classmethod
    def window(cls, left: int, right: int) -> "Mask":
        """Query i sees key j when i − left ≤ j ≤ i + right (the paper's restricted attention, section 4)."""
        return cls((Band(operator.index(left), operator.index(right)),))

    @classmethod
    def padding(cls, lengths: Int[ArrayLike, "*B"]) -> "Mask":
        """Keys are real below their example's length."""
        return cls((Padding(_integers("lengths", lengths)),))

    @classmethod
    def segments(
        cls, q_ids: Int[ArrayLike, "*B N"], k_ids: Int[ArrayLike, "*B M"]
    ) -> "Mask":
        """A query sees the keys of equal id: several sentences in one row do not see each other."""
        return cls((_Segments(_integers("q_ids", q_ids), _integers("k_ids", k_ids)),))

    @classmethod
    def dense(cls, array: Bool[ArrayLike, "..."]) -> "Mask":
        """Any boolean array broadcastable to (*B, H, N, M), True = may attend."""
        array = jnp.asarray(array)
        if array.dtype != jnp.bool_:
            raise TypeError(
                f"a dense mask must be boolean (True = may attend), not {array.dtype}; "
                "for additive values use bias="
            )
        return cls((_Dense(array),))

    def __and__(self, other: "Mask") -> "Mask":
        return Mask(self.parts + other.parts)

    def tile(self, i: Int[Array, "n"], j: Int[Array, "m"]) -> Bool[Array, "n m"]:
        """Which of the keys j, a run of neighbours, the queries i may see, for one head of one example."""
        visible = jnp.ones((i.shape[0], j.shape[0]), bool)
        for part in self.parts:
            visible &= part.tile(i[:, None], j[None, :])
        return visible

    def reach(self) -> tuple[int | None, int | None]:
        """(left, right): query i sees no key before i − left and none after i + right; None where nothing is known."""
        bands = [part for part in self.parts if isinstance(part, Band)]
        left = [band.left for band in bands if band.left is not None]
        right = [band.right for band in bands if band.right is not None]
        return min(left, default=None), min(right, default=None)

    def picture(self, n: int, m: int) -> str:
        """The mask of n queries (rows) and m keys (columns) as text, for the first example and head.

        >>> print(Mask.causal().picture(3, 4))
        ●···
        ●●··
        ●●●·
        """

        def first(leaf, ndim):
            """Of all examples and heads."""
            core = min(ndim, 2)  # an axis of heads comes with a dense mask only
            leaf = leaf.reshape((1,) * (core - leaf.ndim) + leaf.shape)
            return leaf.reshape(-1, *leaf.shape[leaf.ndim - core :])[0]

        seen = self._replaced(first).tile(jnp.arange(n), jnp.arange(m))
        return "\n".join("".join("●" if cell else "·" for cell in row) for row in seen)

    def flat(self, batch: tuple[int, ...]) -> "Mask":
        """The leaves with one axis for the examples and one for the heads, of length 1 where they share one."""

        def flat(leaf, ndim):
            if ndim < 3:
                leaf = jnp.expand_dims(leaf, leaf.ndim - ndim)
            return spread(leaf, batch, core=min(ndim + 1, 3))

        return self._replaced(flat)

    def _replaced(self, function) -> "Mask":
        """With `function(leaf, core_ndim)` for every leaf."""
        return Mask(
            tuple(
                dataclasses.replace(
                    part,
                    **{
                        name: function(getattr(part, name), ndim)
                        for name, ndim in part.core_ndim.items()
                    },
                )
                for part in self.parts
            )
        )


def spread(x: Array, batch: tuple[int, ...], core: int) -> Array:
    """x (*b, …) of `core` axes after the batch's, with one axis for all of those: of length 1, or the examples."""
    x = x.reshape((1,) * (len(batch) + core - x.ndim) + x.shape)
    lead, rest = x.shape[: len(batch)], x.shape[len(batch) :]
    if math.prod(lead) > 1:
        x, lead = jnp.broadcast_to(x, (*batch, *rest)), batch
    return x.reshape(math.prod(lead), *rest)


def _integers(name, value):
    value = jnp.asarray(value)
    if not jnp.issubdtype(value.dtype, jnp.integer):
        raise TypeError(f"{name} must be integers, not {value.dtype}")
    return value
