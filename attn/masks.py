"""What may be seen: a mask is a description, not an array.

A `Mask` is a conjunction of parts, built by `Mask.causal()`, `Mask.padding(lengths)`, ... and combined with `&`.
Kernels ask it which of some keys some queries may see; nothing of size N·M exists before that.
B batch (any number of leading axes), N queries, M keys, H heads.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Int


def _part(**core_ndim):
    """Registers a part: a pytree whose leaves have `core_ndim` axes for one example, batch axes before them.

    The fields are `Any`, because JAX also puts other things than arrays into a pytree: in_axes, shapes, None.
    """

    def decorate(cls):
        cls = jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(cls))
        cls.core_ndim = core_ndim
        return cls

    return decorate


@_part(offset=0)
class _Causal:
    offset: Any  # Int[Array, "*B"]

    def tile(self, i, j):
        return j <= i + self.offset


@_part(left=0, right=0)
class _Window:
    left: Any  # Int[Array, "*B"]
    right: Any  # Int[Array, "*B"]

    def tile(self, i, j):
        return (i - self.left <= j) & (j <= i + self.right)


@_part(lengths=0)
class _Padding:
    lengths: Any  # Int[Array, "*B"]

    def tile(self, i, j):
        return (j < self.lengths) & (i == i)


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
        return self.array[i, j]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Mask:
    """True where a query may attend to a key, in every one of its parts; `Mask()` hides nothing."""

    parts: tuple = ()

    @classmethod
    def causal(cls, offset: int | Int[ArrayLike, "*B"] = 0) -> "Mask":
        """Query i sees key j when j ≤ i + offset ("Attention Is All You Need", section 3.2.3)."""
        return cls((_Causal(_integers("offset", offset)),))

    @classmethod
    def window(cls, left: int, right: int) -> "Mask":
        """Query i sees key j when i − left ≤ j ≤ i + right (the paper's restricted attention, section 4)."""
        return cls((_Window(_integers("left", left), _integers("right", right)),))

    @classmethod
    def padding(cls, lengths: Int[ArrayLike, "*B"]) -> "Mask":
        """Keys are real below their example's length."""
        return cls((_Padding(_integers("lengths", lengths)),))

    @classmethod
    def segments(cls, q_ids: Int[ArrayLike, "*B N"], k_ids: Int[ArrayLike, "*B M"]) -> "Mask":
        """A query sees the keys of equal id: several sentences in one row do not see each other."""
        return cls((_Segments(_integers("q_ids", q_ids), _integers("k_ids", k_ids)),))

    @classmethod
    def dense(cls, array: Bool[ArrayLike, "..."]) -> "Mask":
        """Any boolean array broadcastable to (*B, H, N, M), True = may attend."""
        array = jnp.asarray(array)
        if array.dtype != jnp.bool_:
            raise TypeError(f"a dense mask must be boolean (True = may attend), not {array.dtype}; "
                            "for additive values use bias=")
        return cls((_Dense(array),))

    def __and__(self, other: "Mask") -> "Mask":
        return Mask(self.parts + other.parts)

    def tile(self, i: Int[ArrayLike, "n"], j: Int[ArrayLike, "m"]) -> Bool[Array, "n m"]:
        """Which of the keys j the queries i may see, for one head of one example."""
        visible = jnp.ones((i.shape[0], j.shape[0]), bool)
        for part in self.parts:
            visible &= part.tile(i[:, None], j[None, :])
        return visible

    def broadcast(self, batch: tuple[int, ...], h: int, n: int, m: int) -> "Mask":
        """The same mask with every leaf's batch axes written out, for vmap to walk over."""
        cores = {0: (), 3: (h, n, m)}

        def spread(part, name):
            leaf, ndim = getattr(part, name), part.core_ndim[name]
            core = cores.get(ndim, leaf.shape[-1:])
            return jnp.broadcast_to(leaf, batch + core)

        return Mask(tuple(type(p)(**{name: spread(p, name) for name in p.core_ndim}) for p in self.parts))

    def heads(self) -> "Mask":
        """in_axes for vmap over heads: only dense parts tell heads apart."""
        return Mask(tuple(type(p)(**{name: 0 if ndim == 3 else None for name, ndim in p.core_ndim.items()})
                          for p in self.parts))


def _integers(name, value):
    value = jnp.asarray(value)
    if not jnp.issubdtype(value.dtype, jnp.integer):
        raise TypeError(f"{name} must be integers, not {value.dtype}")
    return value
