"""Masks: descriptions of the keys that each query may see, not arrays.

A `Mask` is a conjunction of parts, built by `Mask.causal()`, `Mask.padding(lengths)`, ...
and combined with `&`, `|` and `~`. Kernels ask it which of some keys some queries may see,
and how far a query reaches at all; nothing of size N·M exists before that. B batch (any
number of leading axes), N queries, M keys, H heads.
"""

import dataclasses
import functools
import math
import operator
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Int

from attn.pytrees import pytree

__all__ = ["Mask", "fits", "mask_part", "spread"]

FAR = 2**30
"""No key is so far from a query: a bound from here on is none.

Sums of it and of a position are below 2^31, which 32 bits hold.
"""
AXES: dict[Any, tuple[str, ...]] = {
    0: (),
    1: ("any",),
    2: ("any", "any"),
    3: ("H", "N", "M"),
}
"""The axes of one example, by their number."""


def mask_part(**core: int | str) -> Callable[[Any], Any]:
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
    def decorate(cls: Any) -> Any:
        cls = pytree(cls, children=core)
        cls.core_axes = {name: AXES.get(axes, (axes,)) for name, axes in core.items()}
        cls.core_ndim = {name: len(axes) for name, axes in cls.core_axes.items()}
        return cls

    return decorate


@pytree
class Mask:
    """True where a query may attend to a key, in every one of its parts.

    `Mask()` hides nothing.
    """

    parts: tuple = ()

    @classmethod
    def causal(cls, offset: int | Int[ArrayLike, "*B"] = 0) -> "Mask":
        """Lets query i see key j when j ≤ i + offset.

        "Attention Is All You Need", section 3.2.3. With an int, kernels spend nothing on
        the hidden keys, and 2^30 or more is no limit; an array (*B) may differ between
        examples, but not between heads.
        """
        if isinstance(offset, (int, np.integer)):
            return cls((band(None, offset),))
        return cls((CausalAt(_integers("offset", offset)),))

    @classmethod
    def window(cls, left: int | None, right: int | None) -> "Mask":
        """Lets query i see key j when i − left ≤ j ≤ i + right.

        This is the paper's restricted attention, section 4. None, and 2^30 or more, is no
        limit.
        """
        return cls((band(left, right),))

    @classmethod
    def padding(cls, lengths: Int[ArrayLike, "*B"]) -> "Mask":
        """Hides the keys from their example's length on.

        Lengths are (*B): for heads that differ there is `dense`.
        """
        return cls((Padding(_integers("lengths", lengths)),))

    @classmethod
    def first(cls, count: int) -> "Mask":
        """Shows the first `count` keys and hides all others.

        `(Mask.window(w, 0) | Mask.first(s)) & Mask.causal()` is a window with s attention
        sinks (Xiao et al. 2024, StreamingLLM), in O(N · (w + s)) time.
        """
        return cls((First(max(0, operator.index(count))),))

    @classmethod
    def prefix(cls, lengths: Int[ArrayLike, "*B"]) -> "Mask":
        """Lets query i see key j when j ≤ i, or j is below its example's prefix length.

        This is the mask of a prefix language model (Liu et al. 2018; Raffel et al. 2020,
        section 3.2.1).
        """
        return cls.causal() | cls.padding(lengths)

    @classmethod
    def of(cls, function: Callable[[Array, Array], Array]) -> "Mask":
        """Lets query i see key j when `function(i, j)` holds, as in

            Mask.of(lambda i, j: (i - j) % 3 == 0)

        It is called with integers i (n, 1) and j (1, m), and gives booleans broadcastable
        to (n, m). The function is a constant of compiled programs: numbers that it closes
        over are compiled in, those of its module as they are at first, and for arrays
        there is `mask_part`.

        Raises:
          TypeError: a function that closes over an array.
        """
        return cls((Of(Function(function)),))

    @classmethod
    def segments(
        cls,
        q_ids: Int[ArrayLike, "*B N"],
        k_ids: Int[ArrayLike, "*B M"],
    ) -> "Mask":
        """Lets a query see the keys of equal id.

        So several sentences in one row do not see each other.
        """
        return cls((Segments(_integers("q_ids", q_ids), _integers("k_ids", k_ids)),))

    @classmethod
    def dense(cls, array: Bool[ArrayLike, "..."]) -> "Mask":
        """Makes a mask of any boolean array broadcastable to (*B, H, N, M).

        True = may attend.

        Raises:
          TypeError: an array of another dtype.
        """
        array = jnp.asarray(array)
        if array.dtype != jnp.bool_:
            raise TypeError(
                f"a dense mask must be boolean (True = may attend), not {array.dtype}; "
                "for additive values use bias="
            )
        return cls((Dense(array),))

    def __and__(self, other: "Mask") -> "Mask":
        return Mask(self.parts + other.parts)

    def __or__(self, other: "Mask") -> "Mask":
        if not (self.parts and other.parts):
            return Mask()
        return Mask((Either((self, other)),))

    def __invert__(self) -> "Mask":
        match self.parts:
            case (Not(masks=(mask,)),):
                return mask
        return Mask((Not((self,)),))

    def tile(self, i: Int[Array, "n"], j: Int[Array, "m"]) -> Bool[Array, "n m"]:
        """Returns which of the keys j, a run of neighbours, the queries i may see.

        The mask is that of one head of one example.
        """
        visible = self.visible(i[:, None], j[None, :])
        return jnp.broadcast_to(visible, (i.shape[0], j.shape[0]))

    def visible(self, i: Int[Array, "n 1"], j: Int[Array, "1 m"]) -> Bool[Array, "..."]:
        """Returns what `tile` does, broadcastable to (n, m)."""
        visible = jnp.ones((1, 1), bool)
        for part in self.parts:
            visible &= part.tile(i, j)
        return visible

    def check(self, batch: tuple[int, ...], h: int | None, n: int, m: int) -> None:
        """Raises ValueError for an array that does not fit (*B, H, N, M).

        An axis of the batch, and each of a dense mask, may have length 1, which stands for
        all. Heads are not looked at where h is None.
        """
        sizes = {"H": h, "N": n, "M": m}
        for part in self.parts:
            for mask in masks_of(part):
                mask.check(batch, h, n, m)
            for name, axes in part.core_axes.items():
                shape = np.shape(getattr(part, name))
                expected = [sizes.get(axis) for axis in axes]
                if fits(shape, (*batch, *expected), exact=len(axes) == 1):
                    continue
                letters = ", ".join(["*B", *axes])
                full = str((*batch, *expected)).replace("None", "any")
                raise ValueError(
                    f"the mask's {name} of shape {shape} does not fit ({letters}) = {full}"
                )

    @property
    def has_pairs(self) -> bool:
        """Tells whether a part has an array of queries and keys, (N, M), itself."""
        return any(
            any(mask.has_pairs for mask in masks_of(part))
            or any({"N", "M"} <= set(axes) for axes in part.core_axes.values())
            for part in self.parts
        )

    @property
    def is_band(self) -> bool:
        """Tells whether `reach` says all that the mask does."""
        return all(isinstance(part, Band) for part in self.parts)

    def reach(self) -> tuple[int | None, int | None]:
        """Returns (left, right): query i sees no key before i − left or after i + right.

        It is None where nothing is known.
        """
        left, right = zip((None, None), *map(reach_of, self.parts), strict=True)
        # All parts must agree, so the tightest bound is the one that counts.
        return tightest(left), tightest(right)

    def spans(self) -> tuple[int, int | None, int | None]:
        """Returns (first, left, right): as `reach`, but for the first keys.

        Query i sees no key before i − left or after i + right that is not one of the first.
        """
        first, left, right = zip(
            (0, None, None), *map(spans_of, self.parts), strict=True
        )
        # What is seen through the first keys of one part is seen at most.
        return max(first), tightest(left), tightest(right)

    def picture(self, n: int, m: int) -> str:
        """Draws the mask of n queries (rows) and m keys (columns) as text.

        It is that of the first example and head.

            >>> print(Mask.causal().picture(3, 4))
            ●···
            ●●··
            ●●●·
        """

        def first(leaf, ndim):
            core = min(ndim, 2)  # an axis of heads comes with a dense mask only
            leaf = leaf.reshape((1,) * (core - leaf.ndim) + leaf.shape)
            return leaf.reshape(-1, *leaf.shape[leaf.ndim - core :])[0]

        visible = self._map_leaves(first).tile(jnp.arange(n), jnp.arange(m))
        rows = []
        for row in visible:
            rows.append("".join("●" if cell else "·" for cell in row))
        return "\n".join(rows)

    def flat(self, batch: tuple[int, ...]) -> "Mask":
        """Returns the mask with leaves of one axis for examples and one for heads.

        An axis has length 1 where all share one.
        """

        def flat(leaf, ndim):
            # Only a dense part knows heads; others get an axis of length 1 for them.
            if ndim < 3:
                leaf = jnp.expand_dims(leaf, leaf.ndim - ndim)
            return spread(leaf, batch, core=min(ndim + 1, 3))

        return self._map_leaves(flat)

    def _map_leaves(self, function) -> "Mask":
        """Returns the mask with `function(leaf, core_ndim)` for every leaf."""
        parts = []
        for part in self.parts:
            leaves = {
                name: function(getattr(part, name), ndim)
                for name, ndim in part.core_ndim.items()
            }
            if masks := masks_of(part):
                leaves["masks"] = tuple(mask._map_leaves(function) for mask in masks)
            parts.append(dataclasses.replace(part, **leaves))
        return Mask(tuple(parts))


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
        self.key = (function,)
        cells = []
        if isinstance(function, types.MethodType):
            cells = [function.__self__]
            self.key = function.__func__, type(function.__self__), *cells
        elif isinstance(function, types.FunctionType):
            code = function.__code__
            cells = [cell.cell_contents for cell in function.__closure__ or ()]
            defaults = function.__defaults__, *(function.__kwdefaults__ or {}).items()
            # Equal numbers of two types, 1 and True, are not the same program.
            kinds = tuple(map(type, cells))
            self.key = code, id(function.__globals__), defaults, kinds, *cells
        try:
            hash(self.key)
            for cell in cells:
                _check_frozen(cell)
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


def _check_frozen(value):
    """Raises TypeError for an object whose attributes may change: it is equal to itself alone."""
    is_code = callable(value) or isinstance(value, types.ModuleType)
    if (
        not is_code
        and type(value).__hash__ is object.__hash__
        and getattr(value, "__dict__", None)
    ):
        raise TypeError(
            f"{type(value).__name__} has attributes, and is no frozen dataclass"
        )


@mask_part()
class Of:
    """The keys for which a function of i and j holds."""

    function: Function

    def tile(self, i, j):
        return self.function(i, j)


def _of_masks(cls: Any) -> Any:
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


def reach_of(part: Any) -> tuple[int | None, int | None]:
    """Returns `Mask.reach` of one part."""
    if isinstance(part, Band):
        return part.left, part.right
    if isinstance(part, Either):
        left, right = zip(*(mask.reach() for mask in part.masks), strict=True)
        return loosest(left), loosest(right)
    return None, None


def spans_of(part: Any) -> tuple[int, int | None, int | None]:
    """Returns `Mask.spans` of one part."""
    if isinstance(part, First):
        return part.count, -FAR, -FAR
    if isinstance(part, Either):
        spans = [mask.spans() for mask in part.masks]
        first, left, right = zip(*spans, strict=True)
        return max(first), loosest(left), loosest(right)
    return 0, *reach_of(part)


def tightest(bounds: Iterable[int | None]) -> int | None:
    return min((bound for bound in bounds if bound is not None), default=None)


def loosest(bounds: Sequence[Any]) -> int | None:
    return None if None in bounds else max(bounds)


def masks_of(part: Any) -> tuple[Any, ...]:
    """Returns the masks that a part is made of."""
    return part.masks if isinstance(part, (Not, Either)) else ()


def band(left: Any, right: Any) -> Any:
    """Returns the band of bounds that may be None, without those that bound nothing."""
    bounds = []
    for bound in (left, right):
        if bound is not None:
            bound = max(operator.index(bound), -FAR)
            bound = None if bound >= FAR else bound
        bounds.append(bound)
    return Band(*bounds)


def fits(
    shape: tuple[int, ...],
    whole: tuple[int | None, ...],
    exact: bool = False,
) -> bool:
    """Tells whether an array broadcasts to the shape `whole`, where None is any length.

    An `exact` last axis is there, and of its full length even where that of the array is 1.
    """
    if len(shape) > len(whole) or (exact and not shape):
        return False
    if exact and whole[-1] is not None and shape[-1] != whole[-1]:
        return False
    pairs = zip(reversed(shape), reversed(whole), strict=False)
    return all(size == full or size == 1 or full is None for size, full in pairs)


def spread(x: Array, batch: tuple[int, ...], core: int) -> Array:
    """Returns x (*b, …), with `core` axes after the batch's, with one axis for those.

    Its length is 1, or the number of examples.
    """
    x = x.reshape((1,) * (len(batch) + core - x.ndim) + x.shape)
    lead = x.shape[: len(batch)]
    rest = x.shape[len(batch) :]
    # What all examples share stays one array, in place of a copy for each.
    if math.prod(lead) > 1:
        x = jnp.broadcast_to(x, (*batch, *rest))
        lead = batch
    return x.reshape(math.prod(lead), *rest)


def _integers(name: str, value: Any) -> Array:
    value = jnp.asarray(value)
    if not jnp.issubdtype(value.dtype, jnp.integer):
        raise TypeError(f"{name} must be integers, not {value.dtype}")
    return value
