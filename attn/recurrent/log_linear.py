"""Log-linear attention of one head, in O(N log N) time (Guo et al. 2025, arXiv 2506.04761).

The text before token t is cut as a Fenwick tree does, by the ones in the binary t: near tokens
are in short spans, far ones in long, and each span has its state and its weight. N tokens, M
slots for them, C of them in a chunk, n chunks, K = d_k, V = d_v, L levels.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from attn.pytrees import at_least_float32
from attn.recurrent.chunks import power_of_2
from attn.recurrent.gated import CHUNK


def log_linear(
    q: Float[Array, "N K"],
    k: Float[Array, "N K"],
    v: Float[Array, "N V"],
    log_decay: Float[Array, "N 1"],
    scales: Float[Array, "N L"],
    *,
    begins: Bool[Array, "N"] | None = None,
    own: bool = True,
    chunk: int = CHUNK,
) -> Float[Array, "N V"]:
    """Computes o_t = Σ_{s ≤ t} λ_t^(l) q_t·k_s exp(Σ_{s < u ≤ t} log a_u) v_s of one head.

    l, the level of s for t, is the number of binary digits of t xor s, both counted from
    where their run began, and at most L − 1. It takes O(N log N) products: at each level the
    tokens of the second half of a span read one state, of its first half. Runs are laid out
    in slots of powers of 2, so it computes with 2·N to 4·N slots, one run of N tokens with N
    to 2·N. Derivatives keep the arguments alone, and make the rest again.

    Args:
      q, k, v: queries, keys and values.
      log_decay: log a, finite and at most 0.
      scales: λ, a weight for each level.
      begins: where the state begins anew, from 0; at the first token alone unless given.
      own: whether a token sees itself.
      chunk: C, a power of 2; levels above it read states.

    Raises:
      ValueError: another chunk.
    """
    if chunk < 1 or chunk & (chunk - 1):
        raise ValueError(f"chunk={chunk} must be a power of 2, at least 1")
    dtype = at_least_float32(jnp.result_type(q, k, v))
    arrays = [x.astype(dtype) for x in (q, k, v, log_decay, scales)]
    rule = functools.partial(_log_linear, own=own, chunk=chunk)
    return jax.checkpoint(rule)(*arrays, begins)


def _log_linear(q, k, v, log_decay, scales, begins, own, chunk):
    slots, digits, room = _slots(begins, q.shape[0])
    size = min(chunk, room)
    weights = _weights(scales, digits, room, own)

    def laid(x):
        empty = jnp.zeros((room, x.shape[-1]), x.dtype)
        x = empty.at[slots].set(x, unique_indices=True)
        return x.reshape(-1, size, x.shape[-1])

    q, k, v, log_decay, weights = map(laid, (q, k, v, log_decay, weights))
    out = jax.vmap(_within)(q, k, v, log_decay, weights)
    out = out + _between(q, k, v, log_decay, weights)
    return out.reshape(room, -1)[slots]


def log_linear_step(
    state: Float[Array, "W V"],
    q: Float[Array, "K"],
    k: Float[Array, "K"],
    v: Float[Array, "V"],
    log_decay: Float[Array, "1"],
    scales: Float[Array, "L"],
) -> tuple[Float[Array, "W V"], Float[Array, "V"]]:
    """Returns the state after one more token, and its output; W = L·K + 1.

    The state of each level is below that of the level before; the last row has the number
    of tokens so far modulo 2^(L − 2), which says which spans to join. L is at least 2.
    """
    levels = scales.shape[0]
    # A whole count would be wrong in float32 from 2^24 on.
    count = (state[-1, 0].astype(jnp.int32) + 1) % (1 << (levels - 2))
    states = state[:-1].reshape(levels, *k.shape, *v.shape) * jnp.exp(log_decay[0])
    states = states.at[0].set(k[:, None] * v[None])
    out = jnp.einsum("l,k,lkv->v", scales, q, states)
    # As a carry in the binary number of tokens, the spans below a level join in it.
    zeros = jax.lax.population_count((count & -count) - 1)
    level = jnp.minimum(zeros + 1, levels - 1)
    below = (jnp.arange(levels) < level)[:, None, None]
    carried = jnp.where(below, states, 0).sum(0)
    states = jnp.where(below, 0, states).at[level].add(carried)
    last = jnp.full_like(state[-1:], count.astype(state.dtype))
    return jnp.concatenate([states.reshape(-1, v.shape[0]), last]), out


def _slots(
    begins: Bool[Array, "N"] | None, n: int
) -> tuple[Int[Array, "N"], Int[Array, "N"], int]:
    """Returns the tokens' slots, the highest level in each one's run, and how many slots.

    Each run has room for a power of 2, and the longer ones come first. So each begins at a
    multiple of its room, and slots of a run differ in the digits in which its places do.
    """
    at = jnp.arange(n)
    if begins is None:
        return at, jnp.full(n, (n - 1).bit_length()), power_of_2(max(1, n))
    begins = begins | (at == 0)
    run = jnp.cumsum(begins.astype(jnp.int32)) - 1
    place = at - jax.lax.cummax(jnp.where(begins, at, 0))
    lengths = jax.ops.segment_sum(jnp.ones_like(run), run, n)
    digits = _binary_digits(jnp.maximum(lengths - 1, 0))
    rooms = jnp.where(lengths > 0, 1 << digits, 0)
    order = jnp.argsort(-rooms)
    before = jnp.cumsum(rooms[order]) - rooms[order]
    first = jnp.zeros_like(rooms).at[order].set(before, unique_indices=True)
    # A run of n tokens has at most 2·n − 1 slots.
    return first[run] + place, digits[run], power_of_2(max(1, 2 * n - 1))


def _binary_digits(x: Int[Array, "*N"]) -> Int[Array, "*N"]:
    return 32 - jax.lax.clz(x.astype(jnp.int32))


def _weights(
    scales: Float[Array, "N L"], digits: Int[Array, "N"], room: int, own: bool
) -> Float[Array, "N _"]:
    """Returns λ of every level that the slots have, 0 where it leads to another run."""
    levels = np.arange(room.bit_length())
    scales = scales[:, np.minimum(levels, scales.shape[1] - 1)]
    seen = (levels[None] <= digits[:, None]) & (own | (levels[None] > 0))
    return jnp.where(seen, scales, 0)


def _within(
    q: Float[Array, "C K"],
    k: Float[Array, "C K"],
    v: Float[Array, "C V"],
    log_decay: Float[Array, "C 1"],
    weights: Float[Array, "C _"],
) -> Float[Array, "C V"]:
    """Computes what tokens read of those of their own chunk."""
    size = q.shape[0]
    at = np.arange(size)
    # The exponent of a number is how many binary digits it has.
    level = np.frexp(at[:, None] ^ at)[1]
    total = jnp.cumsum(log_decay, axis=0)
    between = jnp.where(np.tri(size, dtype=bool), total - total.T, -jnp.inf)
    scale = sum(
        jnp.where(level == i, weights[:, i : i + 1], 0) for i in range(level.max() + 1)
    )
    return ((q @ k.T) * jnp.exp(between) * scale) @ v


def _between(
    q: Float[Array, "n C K"],
    k: Float[Array, "n C K"],
    v: Float[Array, "n C V"],
    log_decay: Float[Array, "n C 1"],
    weights: Float[Array, "n C _"],
) -> Float[Array, "n C V"]:
    """Computes what tokens read of other chunks: of spans of one chunk, two, four, ..."""
    shape = v.shape
    total = jnp.cumsum(log_decay, axis=1)
    states = jnp.einsum("nck,ncv->nkv", k * jnp.exp(total[:, -1:] - total), v)
    out = jnp.zeros_like(v)
    while len(states) > 1:
        # Spans of s tokens in pairs: the second of each reads the first one's state.
        q, total, weights, out = (
            x.reshape(len(states) // 2, 2, -1, x.shape[-1])
            for x in (q, total, weights, out)
        )
        level = q.shape[2].bit_length()
        late = q[:, 1] * jnp.exp(total[:, 1]) * weights[:, 1, :, level, None]
        out = out.at[:, 1].add(late @ states[::2])
        of_first, of_second = total[:, 0, -1:], total[:, 1, -1:]
        states = jnp.exp(of_second) * states[::2] + states[1::2]
        total = total.at[:, 1].add(of_first)
    return out.reshape(shape)
