"""Log-linear attention: a state for each of a few spans of the past, as a layer of heads.

Guo et al. 2025, "Log-linear attention" (arXiv 2506.04761), on Mamba-2's decays. The text
before token t is cut as a Fenwick tree does, by the ones in the binary t: near tokens are in
short spans, far ones in long, and each span has its state and its weight. N tokens, M slots
for them, C of them in a chunk, n chunks, H heads, K = d_k, V = d_v, L levels.
"""

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from attn.mixers.linear import to_heads
from attn.mixers.mamba import Mamba2, Mamba2Heads
from attn.pytrees import at_least_float32
from attn.recurrent.chunks import power_of_2
from attn.recurrent.gated import CHUNK

if TYPE_CHECKING:
    from attn.config import Block


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
    tokens of the second half of a span read one state, of its first half.

    Args:
      q, k, v: queries, keys and values.
      log_decay: log a, finite and at most 0.
      scales: λ, a weight for each level.
      begins: where the state begins anew, from 0; at the first token alone unless given.
      own: whether a token sees itself.
      chunk: C, from which on levels go by states; a power of 2.

    Raises:
      ValueError: another chunk.
    """
    if chunk < 1 or chunk & (chunk - 1):
        raise ValueError(f"chunk={chunk} must be a power of 2, at least 1")
    dtype = at_least_float32(jnp.result_type(q, k, v))
    slots, digits, room = _slots(begins, q.shape[0])
    size = min(chunk, room)
    weights = _weights(scales.astype(dtype), digits, room, own)

    def laid(x):
        empty = jnp.zeros((room, x.shape[-1]), dtype)
        x = empty.at[slots].set(x.astype(dtype), unique_indices=True)
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
    of tokens so far.
    """
    levels = scales.shape[0]
    count = state[-1, 0].astype(jnp.int32) + 1
    states = state[:-1].reshape(levels, *k.shape, *v.shape) * jnp.exp(log_decay[0])
    states = states.at[0].set(k[:, None] * v[None])
    out = jnp.einsum("l,k,lkv->v", scales, q, states)
    # As a carry in the binary number of tokens: the spans below a level become one in it.
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
    """Returns the slots of tokens, the digits of their runs' room, and the number of slots.

    Each run has room for a power of 2, and the longer ones come first. So each begins at a
    multiple of its room, and slots of a run differ in the digits in which its places do.
    """
    at = jnp.arange(n)
    begins = at == 0 if begins is None else begins | (at == 0)
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
    """Returns λ of every level that so many slots have, 0 where it leads to another run."""
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
    level = np.array([[int(i ^ j).bit_length() for j in at] for i in at])
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


class LogLinearHeads(Mamba2Heads):
    """The heads of log-linear attention on Mamba-2 (Guo et al. 2025, section 3.3).

    As `Mamba2Heads`, but y_t = Σ_l λ_t^(l) (S_t^(l))ᵀ q_t + d v_t of `levels` states, see
    `log_linear`, λ = softplus(x W_λ). A decoder's cache has as many states, whatever the
    length. Spans of more than 2^(levels − 2) tokens share the last.

    Parameters beside those of `Mamba2Heads`: d_model·h·levels.
    """

    levels: int = 12

    def setup(self) -> None:
        """Draws what Mamba-2 has, and W_λ."""
        super().setup()
        into_heads = nn.initializers.glorot_uniform(0, (1, 2))
        shape = self.d_model, self.h, self.levels
        self.w_levels = self.param("w_levels", into_heads, shape)

    def arrays(self, x: Float[Array, "B N D"]) -> tuple[Array, ...]:
        """Returns queries, keys, values Δ v, log a and λ, of each head."""
        return *super().arrays(x), nn.softplus(to_heads(x, self.w_levels))

    @staticmethod
    def rule(*arrays: Array, begins: Array, is_backwards: bool) -> Array:
        """Computes the outputs (N, V) of one head from all positions."""
        # In an encoder both directions together see each position once.
        return log_linear(*arrays, begins=begins, own=not is_backwards)

    step = staticmethod(log_linear_step)

    @property
    def state_shape(self) -> tuple[int, int]:
        """The shape of a head's states, and of a row for the number of tokens."""
        return self.levels * self.d_k + 1, self.d_v


@dataclasses.dataclass(frozen=True)
class LogLinear(Mamba2):
    """Mixes by log-linear attention: see `LogLinearHeads`, with the shape's h, d_k and d_v."""

    name: ClassVar[str] = "log_linear"
    levels: int = 12

    def build(self, block: "Block", causal: bool) -> LogLinearHeads:
        """Makes the heads."""
        sizes = block.d_model, block.h, block.d_k, block.d_v
        return LogLinearHeads(*sizes, causal, block.norm.epsilon, levels=self.levels)

    def products(self, n: Any, causal: bool, block: "Block") -> Any:
        """Counts those of the matrices, and of the states that are written and read."""
        of_state = block.h * block.d_k * block.d_v
        directions = 1 if causal else 2
        further = _states_read(n, self.levels) * directions * of_state
        weights = n * block.d_model * block.h * self.levels
        return super().products(n, causal, block) + weights + further

    def check(self, block: "Block") -> None:
        """Raises ValueError for fewer than two levels."""
        if not 2 <= self.levels <= 25:
            raise ValueError(f"levels={self.levels} must be at least 2 and at most 25")


def _states_read(n: Any, levels: int) -> Any:
    """Counts the spans before each of n tokens, beside the token itself."""
    count = np.maximum(n - (1 << (levels - 2)), 0)
    for digit in range(levels - 2):
        # The numbers below n that have a one here.
        half = 1 << digit
        count = count + n // (2 * half) * half + np.maximum(n % (2 * half) - half, 0)
    return count
