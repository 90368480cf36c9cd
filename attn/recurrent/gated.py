"""Linear attention with and without gates, of one head, in O(N) time and memory.

    S_t = diag(a_t) S_t−1 + k_t v_tᵀ,   o_t = S_tᵀ q_t

It is computed in chunks (Yang et al. 2023, "Gated linear attention", section 4): tokens
of one chunk meet in a product of queries and keys, and all before it in the state. N
tokens, C of them in a chunk, K = d_k, V = d_v.
"""

import functools
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attn.pytrees import at_least_float32
from attn.recurrent.chunks import (
    cut,
    empty_state,
    join_blocks,
    power_of_2,
    scan_chunks,
)

CHUNK = 64
"""Tokens in a chunk."""


def gated_linear(
    q: Float[Array, "N K"],
    k: Float[Array, "N K"],
    v: Float[Array, "N V"],
    log_decay: Float[Array, "N F"] | None = None,
    *,
    begins: Bool[Array, "N"] | None = None,
    own: bool = True,
    chunk: int = CHUNK,
) -> Float[Array, "N V"]:
    """Computes o_i = Σ_{j ≤ i} (Σ_d q_id k_jd exp(Σ_{j < l ≤ i} log a_ld)) v_j.

    No exponent is above 0, whatever the decays, and nothing is divided by a product of
    decays. All is in float32 at least.

    Args:
      q, k, v: queries, keys and values.
      log_decay: log a, finite and at most 0, for each feature of a key (F = K) or one for
        all (F = 1); None for a = 1.
      begins: where the state begins anew, from 0; at the first token alone unless given.
      own: whether a token sees itself. Without, it is still read into the state.
      chunk: C.
    """
    dtype = at_least_float32(jnp.result_type(q, k, v))
    q, k, v = (x.astype(dtype) for x in (q, k, v))
    arrays = [q, k, v]
    if log_decay is not None:
        arrays.append(log_decay.astype(dtype))
    runs, chunks = cut(chunk, begins, *arrays)
    step = functools.partial(_of_chunk, own=own)
    state = empty_state(chunks[1], chunks[2])
    return scan_chunks(step, state, (runs, *chunks), q.shape[0])


def gated_linear_step(
    state: Float[Array, "K V"],
    q: Float[Array, "K"],
    k: Float[Array, "K"],
    v: Float[Array, "V"],
    log_decay: Float[Array, "F"] | None = None,
) -> tuple[Float[Array, "K V"], Float[Array, "V"]]:
    """Returns the state after one more token, and its output."""
    if log_decay is not None:
        state = jnp.exp(log_decay)[:, None] * state
    state = state + k[:, None] * v[None]
    return state, q @ state


def _of_chunk(state: Array, chunk: Any, own: bool) -> tuple[Array, Array]:
    """Returns the state after a chunk, and its outputs (C, V)."""
    runs, q, k, v, *decays = chunk
    sees = runs.sees(own)
    if not decays:
        weights = jnp.where(sees, q @ k.T, 0)
    else:
        total = jnp.cumsum(decays[0], axis=0)
        weights = decayed_products(q, k, total, sees)
        q = q * jnp.exp(total)
        k = k * jnp.exp(total[-1:] - total)
    out = weights @ v + jnp.where(runs.goes_on[:, None], q, 0) @ state
    if decays:
        state = jnp.exp(total[-1])[:, None] * state
    state = jnp.where(runs.state_stays[:, None], state, 0)
    return state + jnp.where(runs.stays[:, None], k, 0).T @ v, out


def decayed_products(
    q: Float[Array, "C K"],
    k: Float[Array, "C K"],
    total: Float[Array, "C F"],
    sees: Bool[Array, "C C"],
) -> Float[Array, "C C"]:
    """Computes Σ_d q_id k_jd exp(total_id − total_jd), 0 where i does not see j.

    `total` holds the logs of the decays, summed up to each token.
    """
    if total.shape[-1] == 1:
        # Hidden before the exponential: backwards in time the exponent may be large.
        between = jnp.where(sees, total - total.T, -jnp.inf)
        return (q @ k.T) * jnp.exp(between)
    return jnp.where(sees, _products_of_vectors(q, k, total), 0)


def _products_of_vectors(q: Array, k: Array, total: Array) -> Array:
    """Computes the same for j ≤ i with a decay for each feature, and 0 for j > i.

    From blocks of s to blocks of 2·s: queries of the second half and keys of the first
    meet at the border between them, and exp(total_i − border) · exp(border − total_j) is
    the decay. So these are products of matrices, and no exponent is above 0.
    """
    size = q.shape[0]
    padded = power_of_2(size)
    more = ((0, padded - size), (0, 0))
    q = jnp.pad(q, more)
    k = jnp.pad(k, more)
    total = jnp.pad(total, more, mode="edge")
    weights = (q * k).sum(-1)[:, None, None]
    while len(weights) > 1:
        halves = (len(weights) // 2, 2, weights.shape[1], q.shape[1])
        of_halves = total.reshape(halves)
        border = of_halves[:, 0, -1:]
        late = q.reshape(halves)[:, 1] * jnp.exp(of_halves[:, 1] - border)
        early = k.reshape(halves)[:, 0] * jnp.exp(border - of_halves[:, 0])
        weights = join_blocks(weights, late @ jnp.swapaxes(early, 1, 2))
    return weights[0, :size, :size]
