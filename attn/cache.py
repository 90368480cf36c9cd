"""The caches of decoding: entries of positions and hypotheses, written and read.

B batch (any leading axes), K hypotheses of one text, T entries of a cache, of which it may
keep E, F features.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int


def for_each_example(function: Callable, t: Any) -> Callable:
    """Maps a function of arrays of examples over their batch axes, as many as t has."""
    for _ in range(jnp.ndim(t)):
        function = jax.vmap(function)
    return function


def kept_positions(t: Int[ArrayLike, ""], room: int) -> Int[Array, "P"]:
    """Returns which position stands in each of P = `room` places of a cache at step t.

    A cache is a ring: position p has place p mod P. In places that are still empty the
    numbers are below 0.
    """
    t = jnp.asarray(t)
    return t - (t - jnp.arange(room)) % room


def kept_visible(
    visible: Bool[Array, "*B K T"],
    t: Int[ArrayLike, "*b"],
    entries: int,
) -> Bool[Array, "*B K E"]:
    """Returns which of the E = `entries` that a cache keeps each of K hypotheses sees."""
    if entries == visible.shape[-1]:
        return visible
    k = visible.shape[-2]

    def one_example(visible, t):
        positions = kept_positions(t, entries // k)
        # Of each position there are K entries, side by side.
        entry = (positions[:, None] * k + jnp.arange(k)[None]).reshape(-1)
        is_there = (entry >= 0) & (entry < visible.shape[-1])
        seen = jnp.take(visible, entry, axis=-1, mode="clip")
        return seen & is_there.reshape((1,) * (visible.ndim - 1) + (-1,))

    return for_each_example(one_example, t)(visible, t)


def oldest(ctx: Any, entries: int) -> Int[Array, "*b"] | None:
    """Returns which of so many entries, a ring, is the first of its text.

    None where a cache keeps all entries.
    """
    *_, k, whole = ctx.decoding.visible.shape
    if entries == whole:
        return None
    return (jnp.asarray(ctx.decoding.t) + 1) % (entries // k) * k


def begin_at(x: Array, first: Int[Array, "*b"], axis: int = -1) -> Array:
    """Returns what stands along an axis from `first` on, and behind it what stands before."""

    def one_example(x, first):
        return jnp.roll(x, -first, axis)

    return for_each_example(one_example, first)(x, first)


def check_keeps_all(ctx: Any, entries: int, why: str) -> None:
    """Raises ValueError where so many entries of a cache, a ring, are less than a whole text."""
    whole = ctx.decoding.visible.shape[-1]
    if entries < whole:
        raise ValueError(
            f"{why}, and a ring of {entries} of {whole} entries does not keep all of it"
        )


def sees(
    visible: Bool[Array, "*B K T"], position: Int[ArrayLike, "*b"]
) -> Bool[Array, "*B K"]:
    """Returns whether each of K hypotheses sees something at `position`; none before the first."""
    k = visible.shape[-2]

    def one_example(visible, position):
        start = jnp.maximum(position, 0)
        at_position = jax.lax.dynamic_slice_in_dim(visible, start * k, k, axis=-1)
        return at_position.any(-1) & (position >= 0)

    return for_each_example(one_example, position)(visible, position)


def lineage(ctx: Any) -> Bool[Array, "B K T"]:
    """Returns which entries of a cache each of K hypotheses grew from, hidden ones too.

    Of several hypotheses that is known of what they see alone.
    """
    t, visible = jnp.asarray(ctx.decoding.t), ctx.decoding.visible
    if visible.shape[-2] > 1:
        return visible
    t = t.reshape(*t.shape, *(1,) * (visible.ndim - t.ndim))
    return jax.lax.broadcasted_iota(jnp.int32, visible.shape, visible.ndim - 1) <= t


def ancestors(
    entries: Float[Array, "*B E F"],
    visible: Bool[Array, "*B K T"],
    position: Int[ArrayLike, "*b"],
) -> Float[Array, "*B K F"]:
    """Returns the entry at `position` of each of K hypotheses.

    It is the entry that the hypothesis wrote itself, or the one that it grew from; 0
    before the first position. Of one hypothesis it is there though a mask hides it.
    """
    k = visible.shape[-2]

    def one_example(entries, visible, position):
        start = jnp.maximum(position, 0)
        place = start % (entries.shape[-2] // k)
        # Only the K entries of one position, so that a step does not grow with the cache.
        at_position = jax.lax.dynamic_slice_in_dim(visible, start * k, k, axis=-1)
        written = jax.lax.dynamic_slice_in_dim(entries, place * k, k, axis=-2)
        # Of each position a hypothesis sees exactly one entry, so the first is the one.
        index = at_position.argmax(-1)[..., None]
        return jnp.where(position >= 0, jnp.take_along_axis(written, index, axis=-2), 0)

    return for_each_example(one_example, position)(entries, visible, position)


def parents(
    states: Float[Array, "..."],
    visible: Bool[Array, "*B K T"],
    t: Int[ArrayLike, "*b"],
) -> Float[Array, "..."]:
    """Returns the state (*B, K, …) that each of K hypotheses at position t continues.

    It is 0 at the first position. Of `states` (*B, E, …), E at least K, the first K are
    those after position t − 1.

    Raises:
      ValueError: fewer states than hypotheses.
    """
    k = visible.shape[-2]
    axis = visible.ndim - 2
    if states.shape[axis] < k:
        raise ValueError(
            f"the cache has {states.shape[axis]} states, and there are {k} hypotheses: "
            "make it by empty_caches(…, hypotheses)"
        )

    def one_example(states, visible, t):
        start = jnp.maximum(t - 1, 0) * k
        before = jax.lax.dynamic_slice_in_dim(visible, start, k, axis=-1)
        index = before.argmax(-1)
        axis = index.ndim - 1
        index = index.reshape(index.shape + (1,) * (states.ndim - index.ndim))
        first = jax.lax.slice_in_dim(states, 0, k, axis=axis)
        return jnp.where(t > 0, jnp.take_along_axis(first, index, axis=axis), 0)

    return for_each_example(one_example, t)(states, visible, t)


def write_entries(
    entries: Array, new: Array, t: Int[ArrayLike, "*b"], axis: int = -2
) -> Array:
    """Returns a cache with the entries of K hypotheses at position t along an axis."""

    def one_example(entries, new, t):
        place = t % (entries.shape[axis] // new.shape[axis])
        start = place * new.shape[axis]
        return jax.lax.dynamic_update_slice_in_dim(entries, new, start, axis)

    return for_each_example(one_example, t)(entries, new, t)
