"""The delta rule of one head (DeltaNet), in O(N) time and memory.

    S_t = (I − β_t k_t k_tᵀ) diag(a_t) S_t−1 + β_t k_t v_tᵀ,   o_t = S_tᵀ q_t

A token writes β_t (v_t − (diag(a_t) S_t−1)ᵀ k_t): what its key gives is replaced, and not
added to. A decay a_t is one number, or one for each feature of a key.
With β of 2 the state is reflected, I − 2 k kᵀ, and two such writes turn it.
In a chunk (Yang et al. 2024, "Parallelizing linear transformers with the delta rule",
section 3; with decays a Yang et al. 2025, "Gated delta networks", for each feature Kimi
Team 2025, arXiv 2510.26692) these writes u solve a triangular system,

    (I + tril(diag(β) K Kᵀ, −1)) U = diag(β) (V − K S)

for all chunks at once up to S, the WY representation: U = U' − W S. N tokens, n chunks of
C tokens, K = d_k, V = d_v.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attn.pytrees import at_least_float32
from attn.recurrent.chunks import (
    Runs,
    cut,
    empty_state,
    join_blocks,
    power_of_2,
    scan_chunks,
)
from attn.recurrent.gated import CHUNK, decayed_products

SMALL = 8
"""Blocks of an inverse up to this size are multiplied number by number."""


def delta_rule(
    q: Float[Array, "N K"],
    k: Float[Array, "N K"],
    v: Float[Array, "N V"],
    beta: Float[Array, "N 1"],
    log_decay: Float[Array, "N F"] | None = None,
    *,
    begins: Bool[Array, "N"] | None = None,
    chunk: int = CHUNK,
) -> Float[Array, "N V"]:
    """Computes the outputs o of all tokens, in float32 at least.

    Args:
      q, k, v: queries, keys of length 1 and values.
      beta: β, from 0, which writes nothing, by way of 1, which forgets what the key gave,
        to 2, which turns its sign.
      log_decay: log a, finite and at most 0, for each feature of a key (F = K) or one for
        all (F = 1); None for a = 1.
      begins: where the state begins anew, from 0; at the first token alone unless given.
      chunk: C.
    """
    dtype = at_least_float32(jnp.result_type(q, k, v, beta))
    if log_decay is None:
        log_decay = jnp.zeros_like(beta)
    arrays = [x.astype(dtype) for x in (q, k, v, beta, log_decay)]
    runs, (q, k, v, beta, log_decay) = cut(chunk, begins, *arrays)
    total = jnp.cumsum(log_decay, axis=1)
    writes, reads = jax.vmap(_without_state)(runs, k, v, beta, total)
    state = empty_state(k, v)
    chunks = runs, q, k, total, writes, reads
    return scan_chunks(_of_chunk, state, chunks, arrays[0].shape[0])


def delta_product(
    q: Float[Array, "N K"],
    k: Float[Array, "N P K"],
    v: Float[Array, "N P V"],
    beta: Float[Array, "N P"],
    log_decay: Float[Array, "N F"] | None = None,
    *,
    begins: Bool[Array, "N"] | None = None,
    chunk: int = CHUNK,
) -> Float[Array, "N V"]:
    """Computes the outputs o of all tokens, each after P writes by the delta rule.

    So a token multiplies the state by a product of P matrices I − β k kᵀ (DeltaProduct:
    Siems et al. 2025, arXiv 2502.10297), after its decay. Arguments are those of
    `delta_rule`, which is P = 1; C counts writes.
    """
    tokens, count, _ = k.shape
    first = jnp.arange(tokens * count) % count == 0
    if begins is not None:
        begins = jnp.repeat(begins, count, axis=0) & first
    if log_decay is not None:
        repeated = jnp.repeat(log_decay, count, axis=0)
        log_decay = jnp.where(first[:, None], repeated, 0)
    q = jnp.repeat(q, count, axis=0)
    k, v, beta = (x.reshape(tokens * count, -1) for x in (k, v, beta))
    out = delta_rule(q, k, v, beta, log_decay, begins=begins, chunk=chunk)
    return out[count - 1 :: count]


def delta_product_step(
    state: Float[Array, "K V"],
    q: Float[Array, "K"],
    k: Float[Array, "P K"],
    v: Float[Array, "P V"],
    beta: Float[Array, "P"],
    log_decay: Float[Array, "F"] | None = None,
) -> tuple[Float[Array, "K V"], Float[Array, "V"]]:
    """Returns the state after one more token with its P writes, and its output."""
    for write in zip(k, v, beta[:, None], strict=True):
        state, out = delta_rule_step(state, q, *write, log_decay)
        log_decay = None
    return state, out


def delta_rule_step(
    state: Float[Array, "K V"],
    q: Float[Array, "K"],
    k: Float[Array, "K"],
    v: Float[Array, "V"],
    beta: Float[Array, "1"],
    log_decay: Float[Array, "F"] | None = None,
) -> tuple[Float[Array, "K V"], Float[Array, "V"]]:
    """Returns the state after one more token, and its output."""
    if log_decay is not None:
        state = jnp.exp(log_decay)[:, None] * state
    write = beta * (v - k @ state)
    state = state + k[:, None] * write[None]
    return state, q @ state


def _without_state(
    runs: Runs, k: Array, v: Array, beta: Array, total: Array
) -> tuple[Array, Array]:
    """Returns U' (C, V) and W (C, K), such that the chunk writes U' − W S."""
    products = decayed_products(beta * k, k, total, runs.sees(own=False))
    reads = jnp.where(runs.goes_on[:, None], beta * jnp.exp(total) * k, 0)
    inverse = unit_lower_inverse(products)
    return inverse @ (beta * v), inverse @ reads


@jax.custom_jvp
def unit_lower_inverse(a: Float[Array, "C C"]) -> Float[Array, "C C"]:
    """Returns the inverse of the matrix with ones on its diagonal, and `a` below it.

    From blocks of s to blocks of 2·s: the inverse of [[A, 0], [L, B]] is
    [[A⁻¹, 0], [−B⁻¹ L A⁻¹, B⁻¹]]. These are few products, as exact as to solve row by
    row; a series in powers of `a`, which may grow, is not.
    """
    size = a.shape[0]
    padded = power_of_2(size)
    # Beyond `size` the matrix is the unit matrix.
    a = jnp.pad(a, (0, padded - size))
    inverse = jnp.ones((padded, 1, 1), a.dtype)
    while len(inverse) > 1:
        pairs, s = len(inverse) // 2, inverse.shape[1]
        blocks = a.reshape(pairs, 2 * s, pairs, 2 * s)[:, s:, :, :s]
        on_diagonal = jnp.eye(pairs, dtype=bool)[:, None, :, None]
        # A sum with one term: CPUs take much longer to gather blocks.
        lower = jnp.where(on_diagonal, blocks, 0).sum(2)
        below = -_product(_product(inverse[1::2], lower), inverse[::2])
        inverse = join_blocks(inverse, below)
    return inverse[0, :size, :size]


@unit_lower_inverse.defjvp
def _unit_lower_inverse_jvp(
    primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
    """The derivative of A⁻¹ is −A⁻¹ dA A⁻¹."""
    inverse = unit_lower_inverse(*primals)
    (change,) = tangents
    return inverse, -_product(_product(inverse, jnp.tril(change, -1)), inverse)


def _product(a: Array, b: Array) -> Array:
    """Returns a product of matrices whose numbers no accelerator rounds to fewer bits."""
    if a.shape[-1] <= SMALL:
        # A call for each of many small matrices costs a CPU more than their numbers do.
        return (a[..., :, :, None] * b[..., None, :, :]).sum(-2)
    return jnp.matmul(a, b, precision="highest")


def _of_chunk(state: Array, chunk: Any) -> tuple[Array, Array]:
    """Returns the state after a chunk, and its outputs (C, V)."""
    runs, q, k, total, writes, reads = chunk
    writes = writes - reads @ state
    weights = decayed_products(q, k, total, runs.sees())
    q = jnp.where(runs.goes_on[:, None], q * jnp.exp(total), 0)
    out = weights @ writes + q @ state
    k = jnp.where(runs.stays[:, None], k * jnp.exp(total[-1:] - total), 0)
    state = jnp.where(runs.state_stays[:, None], jnp.exp(total[-1])[:, None] * state, 0)
    return state + k.T @ writes, out
