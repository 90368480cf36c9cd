"""The part of a mask that recurrence and convolution need, and their caches for decoding.

B batch (any leading axes), N positions, K hypotheses of one sentence, T entries of a
cache, F features, O taps.
"""

import math

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from attn.masks import Mask


def neighbours(
    mask: Mask,
    batch: tuple[int, ...],
    n: int,
    offsets: tuple[int, ...],
) -> Bool[Array, "*B N O"]:
    """Tells whether position i may see position i + offset; never beyond the ends.

    Raises:
      ValueError: a mask that differs between heads, of which there are none here, or that
        does not fit the shapes.
    """
    mask.check(batch, None, n, n)
    flat = mask.flat(batch)
    if _heads_of(flat) > 1:
        raise ValueError("a mask with an axis for heads is for attention only")
    return _neighbours(flat, batch, n, offsets)


def places_in_texts(
    mask: Mask,
    batch: tuple[int, ...],
    n: int,
) -> Int[Array, "*B N"]:
    """Returns the place of each position in its text, from 0.

    As for a recurrence, a text begins where a position may not see the one before it; where
    heads have masks of their own, in none of them.

    Raises:
      ValueError: a mask that does not fit the shapes.
    """
    mask.check(batch, None, n, n)
    flat = mask.flat(batch)
    h = _heads_of(flat)

    def as_examples(leaf):
        whole = jnp.broadcast_to(leaf, (math.prod(batch), h, *leaf.shape[2:]))
        return whole.reshape(-1, 1, *leaf.shape[2:])

    if h > 1:
        flat = jax.tree.map(as_examples, flat)
    goes_on = _neighbours(flat, (*batch, h), n, (-1,))[..., 0].any(-2)
    i = jnp.broadcast_to(jnp.arange(n), goes_on.shape)
    return i - jax.lax.cummax(jnp.where(goes_on, 0, i), axis=i.ndim - 1)


def _heads_of(flat):
    return max([leaf.shape[1] for leaf in jax.tree.leaves(flat)], default=1)


def _neighbours(flat, batch, n, offsets):
    """Tells what `neighbours` does of a flat mask without heads."""

    def one_example(mask):
        def sees(i, offset):
            # A mask is asked of keys that exist; the comparison rules out the others.
            j = jnp.clip(i + offset, 0, n - 1)
            return mask.tile(i[None], j[None])[0, 0] & (i + offset == j)

        # Pair by pair, N·O of them: a tile of all keys would be N·N.
        for_each_offset = jax.vmap(sees, (None, 0))
        for_each_position = jax.vmap(for_each_offset, (0, None))
        return for_each_position(jnp.arange(n), jnp.array(offsets))

    visible = _map_examples(one_example, flat, batch)
    return jnp.broadcast_to(visible, (*batch, n, len(offsets)))


def dense_mask(
    mask: Mask,
    batch: tuple[int, ...],
    n: int,
    m: int,
) -> Bool[Array, "*B N M"]:
    """Returns which of m keys each of n queries may see, where all heads see the same.

    Raises:
      ValueError: a mask that does not fit the shapes, or differs between heads.
    """
    mask.check(batch, 1, n, m)

    def one_example(mask):
        return mask.tile(jnp.arange(n), jnp.arange(m))

    visible = _map_examples(one_example, mask.flat(batch), batch)
    return jnp.broadcast_to(visible, (*batch, n, m))


def _map_examples(function, flat, batch):
    """Computes `function(mask)` of each example.

    The result lacks the batch's axes where all share one mask.
    """
    flat = jax.tree.map(lambda leaf: leaf[:, 0], flat)
    if all(len(leaf) == 1 for leaf in jax.tree.leaves(flat)):
        shared = function(jax.tree.map(lambda leaf: leaf[0], flat))
        return shared.reshape((1,) * len(batch) + shared.shape)

    def for_each(leaf):
        return jnp.broadcast_to(leaf, (math.prod(batch), *leaf.shape[1:]))

    results = jax.vmap(function)(jax.tree.map(for_each, flat))
    return results.reshape(*batch, *results.shape[1:])


def visible_at(
    mask: Mask,
    batch: tuple[int, ...],
    t: Int[ArrayLike, "*b"],
    n: int,
) -> Bool[Array, "*B 1 n"]:
    """Returns which of n positions the token at position t sees, none behind its own.

    It is what a step takes for one hypothesis; `t` is one number, or one for each example.

    Raises:
      ValueError: a mask that does not fit n queries and keys, or differs between heads.
    """
    mask.check(batch, 1, n, n)
    count = math.prod(batch)

    def for_each(leaf):
        return jnp.broadcast_to(leaf[:, 0], (count, *leaf.shape[2:]))

    def one_example(mask, t):
        return (mask & Mask.causal()).tile(t[None], jnp.arange(n))

    masks = jax.tree.map(for_each, mask.flat(batch))
    places = jnp.broadcast_to(t, batch).reshape(count)
    return jax.vmap(one_example)(masks, places).reshape(*batch, 1, n)


def for_each_example(function, t):
    """Maps a function of arrays of examples over their batch axes, as many as t has."""
    for _ in range(jnp.ndim(t)):
        function = jax.vmap(function)
    return function


def kept_positions(t: Int[ArrayLike, ""], room: int) -> Int[Array, "P"]:
    """Returns which position stands in each of P = `room` places of a cache at step t.

    A cache is a ring: position p has place p mod P. In places that are still empty the
    numbers are below 0.
    """
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


def ancestors(
    entries: Float[Array, "*B E F"],
    visible: Bool[Array, "*B K T"],
    position: Int[ArrayLike, "*b"],
) -> Float[Array, "*B K F"]:
    """Returns the entry at `position` of each of K hypotheses.

    It is the entry that the hypothesis wrote itself, or the one that it grew from; 0
    before the first position.
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


def write_entries(entries, new, t: Int[ArrayLike, "*b"], axis: int = -2):
    """Returns a cache with the entries of K hypotheses at position t along an axis."""

    def one_example(entries, new, t):
        place = t % (entries.shape[axis] // new.shape[axis])
        start = place * new.shape[axis]
        return jax.lax.dynamic_update_slice_in_dim(entries, new, start, axis)

    return for_each_example(one_example, t)(entries, new, t)
