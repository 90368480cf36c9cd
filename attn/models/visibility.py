"""The part of a mask that recurrence and convolution need, and their caches for decoding.

B batch (any leading axes), N positions, K hypotheses of one sentence, T entries of a
cache, F features, O taps.
"""

import math

import jax
import jax.numpy as jnp
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
    if any(leaf.shape[1] > 1 for leaf in jax.tree.leaves(flat)):
        raise ValueError("a mask with an axis for heads is for attention only")

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


def ancestors(
    entries: Float[Array, "*B T F"],
    visible: Bool[Array, "*B K T"],
    position: Int[Array, ""],
) -> Float[Array, "*B K F"]:
    """Returns the entry at `position` of each of K hypotheses.

    It is the entry that the hypothesis wrote itself, or the one that it grew from; 0
    before the first position.
    """
    k = visible.shape[-2]
    start = jnp.maximum(position, 0) * k
    # Only the K entries of one position, so that a step does not grow with the cache.
    at_position = jax.lax.dynamic_slice_in_dim(visible, start, k, axis=-1)
    written = jax.lax.dynamic_slice_in_dim(entries, start, k, axis=-2)
    # Of each position a hypothesis sees exactly one entry, so the first is the one.
    index = at_position.argmax(-1)[..., None]
    return jnp.where(position >= 0, jnp.take_along_axis(written, index, axis=-2), 0)


def parents(
    states: Float[Array, "..."],
    visible: Bool[Array, "*B K T"],
    t: Int[Array, ""],
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
    start = jnp.maximum(t - 1, 0) * k
    before = jax.lax.dynamic_slice_in_dim(visible, start, k, axis=-1)
    index = before.argmax(-1)
    index = index.reshape(index.shape + (1,) * (states.ndim - index.ndim))
    first = jax.lax.slice_in_dim(states, 0, k, axis=axis)
    return jnp.where(t > 0, jnp.take_along_axis(first, index, axis=axis), 0)


def write_entries(entries, new, t):
    """Returns a cache with the entries of K hypotheses at position t."""
    start = t * new.shape[-2]
    return jax.lax.dynamic_update_slice_in_dim(entries, new, start, axis=-2)
