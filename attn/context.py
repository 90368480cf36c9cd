"""What a layer reads beside its x: the context of a forward pass.

Layers are functions (x, ctx) -> (x, ctx) on whole batches. B examples, N tokens, M tokens
of a memory, D = d_model, K hypotheses of one text, T entries of a cache.
"""

import dataclasses
import hashlib
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Shaped

from attn.masks import Mask
from attn.pytrees import pytree
from attn.random_bits import cheap_key


@pytree
class Decoding:
    """Where a decoder's step stands: x are K hypotheses of each text, all at position t.

    Their entries in the cache are t·K … t·K + K − 1, so entry e stands at position e // K.
    """

    t: Any
    """The position, Int (), or one for each text, (B,)."""
    visible: Any
    """The entries of the cache that each hypothesis sees, Bool (B, K, T)."""
    memory_visible: Any = None
    """The tokens of the memory that it sees, Bool (B, n, M), n = K or 1."""


@pytree
class Context:
    """What layers read beside x, and what they pass on to those that follow.

    A full pass has a mask; a decoder's step has `decoding` and a `cache` in its place.
    Nothing is dropped without `keys`.
    """

    mask: Any = Mask()
    """The tokens of x that each token of x sees."""
    places: Any = None
    """Which of its text each token is, from 0, Int (B, N); None for 0 … N − 1."""
    step: Any = None
    """The updates of training so far, Int (); None outside training."""
    numbers: Any = dataclasses.field(default_factory=dict)
    """Rates of dropout by name: P_drop, P_attention, P_ff; 0 where one is missing. They
    are data: lanes of one program may differ in them."""
    keys: Any = dataclasses.field(default_factory=dict)
    """Random keys (B,), one for each example, by use: "dropout", "sample", "positions"."""
    memory: Any = None
    """What attention to another text reads: Float (B, M, D), or what it keeps of that while
    decoding."""
    memory_mask: Any = Mask()
    """The tokens of the memory that each token of x sees."""
    shared: Any = dataclasses.field(default_factory=dict)
    """What layers of a stack share, by name; the variant that reads it declares it."""
    layer: Any = 1
    """The number of the layer in its stack, from 1."""
    decoding: Any = None
    """The step of a decoder, a `Decoding`; None in a full pass."""
    cache: Any = None
    """What the layer keeps while decoding, or a tuple of what all layers keep."""
    path: tuple[str, ...] = dataclasses.field(default=(), metadata={"static": True})
    """What stands before a module's own path, where it was taken from its model."""

    def replace(self, **changes: Any) -> "Context":
        """Returns the context with some fields changed."""
        return dataclasses.replace(self, **changes)

    def places_of(self, x: Shaped[Array, "B N ..."]) -> Int[Array, "*b N"]:
        """Returns the places of the tokens of x."""
        if self.decoding is not None:
            t = jnp.expand_dims(jnp.asarray(self.decoding.t), -1)
            return jnp.broadcast_to(t, (*t.shape[:-1], x.shape[1]))
        if self.places is None:
            return jnp.arange(x.shape[1])
        return jnp.asarray(self.places)

    def rate(self, name: str) -> float | Float[ArrayLike, ""]:
        """Returns a number by its name, 0 where it is missing."""
        return self.numbers.get(name, 0.0)

    def key(self, module: nn.Module, use: str) -> Array | None:
        """Returns the module's own keys (B,) for one use, or None where there are none."""
        if use not in self.keys:
            return None
        number = _hash((*self.path, *module.path))
        return jax.vmap(jax.random.fold_in, (0, None))(self.keys[use], number)


def keys_of_rows(key: Array, rows: ArrayLike) -> dict[str, Array]:
    """Returns the keys of a context, each row's by its number, whatever batch it is in."""

    def of_row(row):
        of_row = jax.random.fold_in(key, row)
        # Apart from dropout's, and cheap: on a CPU threefry's dropout would be the largest
        # part of a step.
        sample = jax.random.fold_in(of_row, 1)
        positions = jax.random.fold_in(of_row, 2)
        return {
            "dropout": cheap_key(of_row),
            "sample": cheap_key(sample),
            "positions": cheap_key(positions),
        }

    return jax.vmap(of_row)(jnp.asarray(rows))


def in_context(value: Any, ctx: Context) -> Any:
    """Returns a score or another value as it is at this step of training.

    That is `value.in_context(ctx)` where it has such a method; a score around another, its
    `inner`, has that one so.
    """
    if hasattr(value, "in_context"):
        return value.in_context(ctx)
    if hasattr(value, "inner"):
        return dataclasses.replace(value, inner=in_context(value.inner, ctx))
    return value


def _hash(path) -> jax.Array:
    """Returns the number that Linen folds into a key for a module of this path.

    So the numbers drawn are those of `module.make_rng`, one row at a time.
    """
    digest = hashlib.sha1()
    for name in path:
        digest.update(name.encode())
    # The first key that a module asks for.
    digest.update(b"\x01")
    return jnp.uint32(int.from_bytes(digest.digest()[:4], "big"))
