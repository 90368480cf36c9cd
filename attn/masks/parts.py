"""The parts of masks: `attn.masks` puts them together.

B batch (any number of leading axes), N queries, M keys, H heads.
"""

import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp

from attn.pytrees import pytree

FAR = 2**30
"""No key is so far from a query: a bound from here on is none.

Sums of it and of a position are below 2^31, which 32 bits hold.
"""
AXES = {0: (), 1: ("any",), 2: ("any", "any"), 3: ("H", "N", "M")}
"""The axes of one example, by their number."""


def mask_part(**core: int | str):
    """Makes a class a part of a mask, as in `Mask((MyPart(...),))`.

    The part has a method `tile(i, j)`: it gives, broadcastable to (n, m), which keys
    j (1, m), a run of neighbours, the queries i (n, 1) may see, for one head of one
    example.

    Args:
      **core: the fields that are arrays, by the number of axes that one example has: 0 or
        1, or 3 for (H, N, M); batch axes come before them, and no others. An axis of
        queries or keys may be named in place of its number: "N" or "M". Other fields are
        static.
    """

    # The fields of arrays are annotated as Any, because JAX also puts other things than
    # arrays into a pytree: in_axes, shapes, None.
    def decorate(cls):
        cls = pytree(cls, children=core)
        cls.core_axes = {name: AXES.get(axes, (axes,)) for name, axes in core.items()}
        cls.core_ndim = {name: len(axes) for name, axes in cls.core_axes.items()}
        return cls

    return decorate


@mask_part()
class Band:
    """i − left ≤ j ≤ i + right, None for no bound.

    It is static, so that kernels can leave out the keys that nobody sees.
    """

    left: int | None
    right: int | None

    def tile(self, i, j):
        """Returns whether key j is within the bounds of query i."""
        visible = jnp.ones((), bool)
        if self.left is not None:
            visible &= i - self.left <= j
        if self.right is not None:
            visible &= j <= i + self.right
        return visible


@mask_part()
class First:
    """The first `count` keys."""

    count: int

    def tile(self, i, j):
        return j < self.count


class Function:
    """A function of i and j, equal to one of the same code that closes over equal values.

    So a lambda that is written anew in every call does not compile anew.
    """

    def __init__(self, function):
        self.function = function
        code = getattr(function, "__code__", None)
        self.key = (function,)
        if code is not None:
            cells = [cell.cell_contents for cell in function.__closure__ or ()]
            defaults = function.__defaults__, *(function.__kwdefaults__ or {}).items()
            # Equal numbers of two types, 1 and True, are not the same program.
            kinds = tuple(map(type, cells))
            self.key = code, id(function.__globals__), defaults, kinds, *cells
        try:
            hash(self.key)
        except TypeError as error:
            raise TypeError(
                f"Mask.of takes a function of i and j alone, and this one holds a value "
                f"that may change: {error}; an array belongs into a part of one's own, "
                "see attn.masks.mask_part"
            ) from None

    def __call__(self, i, j):
        return self.function(i, j)

    def __eq__(self, other):
        return isinstance(other, Function) and self.key == other.key

    def __hash__(self):
        return hash(self.key)


@mask_part()
class Of:
    """The keys for which a function of i and j holds."""

    function: Function

    def tile(self, i, j):
        return self.function(i, j)


def _of_masks(cls):
    """Makes a class with a field `masks`, a tuple of masks, a part of a mask."""
    cls = pytree(cls, children=("masks",))
    # What is known of arrays, the masks within know.
    cls.core_axes = {}
    cls.core_ndim = {}
    return cls


@_of_masks
class Not:
    """The keys that a mask hides."""

    masks: Any  # a tuple of one Mask

    def tile(self, i, j):
        return ~self.masks[0].visible(i, j)


@_of_masks
class Either:
    """The keys that one of several masks shows."""

    masks: Any  # a tuple of Masks

    def tile(self, i, j):
        shown = [mask.visible(i, j) for mask in self.masks]
        return functools.reduce(operator.or_, shown)


@mask_part(offset=0)
class CausalAt:
    """j ≤ i + offset for an offset that is data, as the place of a decoder's step is."""

    offset: Any  # Int[Array, "*B"]

    def tile(self, i, j):
        last = i + self.offset
        # "No limit" is often written as the largest integer, to which nothing can be
        # added.
        overflows = (self.offset > 0) & (last < i)
        return j <= jnp.where(overflows, jnp.iinfo(last.dtype).max, last)


@mask_part(lengths=0)
class Padding:
    """Keys are real below their example's length."""

    lengths: Any  # Int[Array, "*B"]

    def tile(self, i, j):
        """Returns whether key j is real."""
        return j < self.lengths


@mask_part(q_ids="N", k_ids="M")
class Segments:
    q_ids: Any  # Int[Array, "*B N"]
    k_ids: Any  # Int[Array, "*B M"]

    def tile(self, i, j):
        return self.q_ids[i] == self.k_ids[j]


@mask_part(array=3)
class Dense:
    array: Any  # Bool[Array, "*B H N M"]

    def tile(self, i, j):
        n, m = self.array.shape
        rows = self.array
        # An axis of length 1 stands for all queries or keys.
        if n > 1:
            # The last block asks for rows past the end, whose results are cut off.
            rows = jnp.take(self.array, i[:, 0], axis=0, mode="clip")
        if m == 1:
            return rows
        # j is a run of neighbours, so a slice does what would take a gather.
        return jax.lax.dynamic_slice_in_dim(rows, j[0, 0], j.shape[1], axis=1)


def reach_of(part):
    """Returns `Mask.reach` of one part."""
    if isinstance(part, Band):
        return part.left, part.right
    if isinstance(part, Either):
        left, right = zip(*(mask.reach() for mask in part.masks), strict=True)
        return loosest(left), loosest(right)
    return None, None


def spans_of(part):
    """Returns `Mask.spans` of one part."""
    if isinstance(part, First):
        return part.count, -FAR, -FAR
    if isinstance(part, Either):
        spans = [mask.spans() for mask in part.masks]
        first, left, right = zip(*spans, strict=True)
        return max(first), loosest(left), loosest(right)
    return 0, *reach_of(part)


def tightest(bounds):
    return min((bound for bound in bounds if bound is not None), default=None)


def loosest(bounds):
    return None if None in bounds else max(bounds)


def masks_of(part):
    """Returns the masks that a part is made of."""
    return part.masks if isinstance(part, (Not, Either)) else ()


def band(left, right):
    """Returns the band of bounds that may be None, without those that bound nothing."""
    bounds = []
    for bound in (left, right):
        if bound is not None:
            bound = max(operator.index(bound), -FAR)
            bound = None if bound >= FAR else bound
        bounds.append(bound)
    return Band(*bounds)
