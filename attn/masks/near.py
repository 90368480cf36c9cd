"""What recurrence and convolution ask of a mask: which neighbours a position sees.

B batch (any leading axes), N positions, O taps.
"""

import math

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Int

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
