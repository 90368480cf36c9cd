"""What recurrences in chunks share: the cut into chunks, and who sees whom.

A sequence consists of runs: the state begins anew, from 0, where a run begins. N tokens;
n chunks of C tokens.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class Runs(NamedTuple):
    """The runs of a chunk's tokens; of all chunks, with a leading axis n."""

    own: Int[Array, "C"]
    """The number of each token's run, which never falls."""
    before: Int[Array, "1"]
    """The number of the run of the last token before the chunk."""

    @property
    def goes_on(self) -> Bool[Array, "C"]:
        """Tells whether a token sees what came before the chunk."""
        return self.own == self.before

    @property
    def stays(self) -> Bool[Array, "C"]:
        """Tells whether a token is seen from after the chunk."""
        return self.own == self.own[-1:]

    @property
    def state_stays(self) -> Bool[Array, "1"]:
        """Tells whether what came before the chunk is seen from after it."""
        return self.before == self.own[-1:]

    def sees(self, own: bool = True) -> Bool[Array, "C C"]:
        """Tells whether token i sees token j: j ≤ i of its run, or, without own, j < i."""
        size = self.own.shape[0]
        behind = jnp.tril(jnp.ones((size, size), bool), 0 if own else -1)
        return behind & (self.own[:, None] == self.own[None])


def cut(
    size: int,
    begins: Bool[Array, "N"] | None,
    *arrays: Float[Array, "N _"],
) -> tuple[Runs, list[Float[Array, "n C _"]]]:
    """Cuts arrays into equal chunks of at most `size` tokens, with zeros after the last token.

    Where a token `begins`, so does a run; None: there is one run.

    Raises:
      ValueError: a size below 1.
    """
    if size < 1:
        raise ValueError(f"chunk={size} must be at least 1")
    length = arrays[0].shape[0]
    count = max(1, -(-length // size))
    size = max(1, -(-length // count))
    more = count * size - length
    chunks = []
    for x in arrays:
        padded = jnp.pad(x, ((0, more), (0, 0)))
        chunks.append(padded.reshape(-1, size, x.shape[-1]))
    if begins is None:
        runs = jnp.zeros(length + more, jnp.int32)
    else:
        # The padding is of the last run: its tokens are 0, and change nothing.
        runs = jnp.cumsum(jnp.pad(begins, (0, more)).astype(jnp.int32))
    own = runs.reshape(-1, size)
    # What is before the first chunk is a state of 0, whose run does not matter.
    before = jnp.concatenate([own[:1, 0], own[:-1, -1]])[:, None]
    return Runs(own, before), chunks


def power_of_2(size: int) -> int:
    """Returns the least power of 2 from `size` on, to which blocks can double."""
    return 1 << (size - 1).bit_length()


def join_blocks(
    diagonal: Float[Array, "_ s s"], below: Float[Array, "p s s"]
) -> Float[Array, "p t t"]:
    """Returns the matrices [[A, 0], [L, B]], A and B of `diagonal`, L of `below`."""
    first, second = diagonal[::2], diagonal[1::2]
    upper = jnp.concatenate([first, jnp.zeros_like(first)], axis=2)
    lower = jnp.concatenate([below, second], axis=2)
    return jnp.concatenate([upper, lower], axis=1)


def scan_chunks(
    step: Callable, state: Array, chunks: Any, length: int
) -> Float[Array, "N V"]:
    """Returns the outputs of `step(state, chunk)` over the chunks, without the padding.

    Derivatives keep the state before each chunk, and make what is inside of it again.
    """
    step = jax.checkpoint(step, prevent_cse=False)
    _, out = jax.lax.scan(step, state, chunks)
    return out.reshape(-1, out.shape[-1])[:length]


def empty_state(
    k: Float[Array, "n C K"], v: Float[Array, "n C V"]
) -> Float[Array, "K V"]:
    """Returns a state (K, V) of zeros that varies over devices as keys and values do."""
    # Like their product, because zeros alone have another type in shard_map.
    return jnp.zeros_like(k[0, 0, :, None] * v[0, 0, None])


def both_ways(
    rule: Callable, arrays: Sequence[Array], begins: Array | None, ends: Array | None
) -> Float[Array, "N V"]:
    """Returns the sum of a rule over the tokens in order and from the last to the first.

    Args:
      rule: a function (*arrays, begins=, is_backwards=) -> (N, V).
      arrays: (N, F) each.
      begins, ends: where runs begin, read in order and from the end.
    """

    def flip(x):
        return None if x is None else jnp.flip(x, 0)

    forwards = rule(*arrays, begins=begins, is_backwards=False)
    backwards = rule(*map(flip, arrays), begins=flip(ends), is_backwards=True)
    return forwards + flip(backwards)


def seen_before(
    bad: Bool[Array, "*B N"], begins: Bool[Array, "*B N"]
) -> Bool[Array, "*B N"]:
    """Tells whether a token of each token's run, itself or before it, is bad."""
    at = jnp.broadcast_to(jnp.arange(bad.shape[-1]), bad.shape)
    axis = bad.ndim - 1
    last_bad = jax.lax.cummax(jnp.where(bad, at, -1), axis)
    start = jax.lax.cummax(jnp.where(begins, at, 0), axis)
    return last_bad >= start
