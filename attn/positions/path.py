"""PaTH attention: each token on the way from a key to its query reflects the key.

Yang et al. 2025, "PaTH attention: position encoding via accumulating Householder
transformations" (arXiv 2505.16381). B batch, N tokens, H heads, D = d_model, K = d_k, R the
rank of a projection, n chunks of C tokens, T entries of a cache.
"""

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attn.arithmetic import Products
from attn.positions.between import Between, Tokens
from attn.pytrees import at_least_float32, pytree
from attn.recurrent.delta import unit_lower_inverse
from attn.recurrent.gated import CHUNK

if TYPE_CHECKING:
    from attn.config import Attention

RANK = 32
"""The rank of the matrix that makes w (section 4)."""


@pytree
class Reflections:
    """Reads w = x W_1 W_2 / |x W_1 W_2| and β = 2 σ(x w_β + b) of each head."""

    w_1: Any  # Float[Array, "D R"]
    w_2: Any  # Float[Array, "R H K"]
    w_beta: Any  # Float[Array, "D H"]
    b: Any  # Float[Array, "H"]
    causal: bool = dataclasses.field(metadata=dict(static=True))

    def read(self, x: Float[Array, "B N D"]) -> Float[Array, "B N H F"]:
        """Returns w, and β as the last of F = K + 1 numbers."""
        w = jnp.einsum("bnr,rhk->bnhk", x @ self.w_1, self.w_2)
        wide = at_least_float32(w.dtype)
        w = w.astype(wide)
        w = w * jax.lax.rsqrt((w**2).sum(-1, keepdims=True) + 1e-6)
        beta = 2 * jax.nn.sigmoid((x @ self.w_beta + self.b[None, None]).astype(wide))
        return jnp.concatenate([w, beta[..., None]], -1)

    def scores(
        self, q: Float[Array, "N K"], k: Float[Array, "N K"], of_tokens: Array
    ) -> Float[Array, "N N"]:
        """Returns the scores of `path_products`."""
        return path_products(q, k, of_tokens[:, :-1], of_tokens[:, -1:])


def path_products(
    q: Float[Array, "N K"],
    k: Float[Array, "N K"],
    w: Float[Array, "N K"],
    beta: Float[Array, "N 1"],
    chunk: int = CHUNK,
) -> Float[Array, "N N"]:
    """Computes q_iᵀ H_i H_(i−1) ⋯ H_(j+1) k_j, H = I − β w wᵀ, for j ≤ i; 0 for others.

    In a chunk a product of H's is I − Wᵀ A W, with the triangular A of the WY
    representation; queries then go from chunk to chunk backwards, all at once.
    """
    length = len(q)
    size = max(1, min(chunk, length))
    more = -length % size
    q, k, w, beta = (jnp.pad(x, ((0, more), (0, 0))) for x in (q, k, w, beta))
    chunks = [x.reshape(-1, size, x.shape[-1]) for x in (q, k, w, beta)]
    inside, late, early, turns = jax.vmap(_of_chunk)(*chunks)
    w = chunks[2]
    count = len(w)
    # The queries of later chunks, and of each distance of chunks their scores.
    queries, blocks = late, [inside]
    for distance in range(1, count):
        queries = queries[1:]
        keys = slice(0, count - distance)
        s = queries @ jnp.swapaxes(early[keys], 1, 2)
        blocks.append(jnp.pad(s, ((distance, 0), (0, 0), (0, 0))))
        along = queries @ jnp.swapaxes(w[keys], 1, 2)
        queries = queries - along @ turns[keys]
    # With a block more each row begins one earlier than the row before, so that those of one
    # distance come to stand on a diagonal.
    wide = jnp.pad(jnp.stack(blocks[::-1], 1), ((0, 0), (0, 1), (0, 0), (0, 0)))
    s = wide.reshape(-1, size, size)[count - 1 :][: count**2]
    s = s.reshape(count, count, size, size)
    is_before = jnp.tri(count, dtype=bool)[..., None, None]
    s = jnp.where(is_before, s, 0)
    return jnp.swapaxes(s, 1, 2).reshape(length + more, -1)[:length, :length]


def _of_chunk(
    q: Array, k: Array, w: Array, beta: Array
) -> tuple[Array, Array, Array, Array]:
    """Returns the products in a chunk, queries at its beginning, keys at its end, and A W.

    A (C, C) is such that all its H, the last first, are I − Wᵀ A W.
    """
    between = w @ w.T
    a = unit_lower_inverse(jnp.tril(beta * between, -1)) * beta[:, 0][None]
    of_queries = jnp.tril(q @ w.T) @ a
    # A key is turned by the tokens after it.
    of_keys = jnp.tril(w @ k.T, -1)
    inside = jnp.tril(q @ k.T - of_queries @ of_keys)
    late = q - of_queries @ w
    early = k - (a @ of_keys).T @ w
    return inside, late, early, a @ w


@dataclasses.dataclass(frozen=True)
class PaTH(Between):
    """score_ij = q_iᵀ (Π_(j < t ≤ i) I − β_t w_t w_tᵀ) k_j, the last token first (PaTH).

    w is a unit vector and β a number from 0 to 2 that each head reads of token t: see
    `Reflections`. β = 0 leaves the score as it is. Theirs has a short convolution of three
    taps in w; the mixer `short` has one before all projections.
    """

    name: ClassVar[str] = "path"
    # Scores before and after the normaliser, those of chunks, and queries on their way.
    floats_of_pair: ClassVar[float] = 5.0

    def in_attention(self, key: Array, a: "Attention", causal: bool) -> Reflections:
        """Draws the matrices, Glorot-uniform; b is 0."""
        first, second, third = jax.random.split(key, 3)
        glorot = jax.nn.initializers.glorot_uniform
        return Reflections(
            glorot()(first, (a.d_model, RANK)),
            glorot(0, (1, 2))(second, (RANK, a.h, a.d_k)),
            glorot()(third, (a.d_model, a.h)),
            jnp.zeros(a.h),
            causal,
        )

    def features(self, a: "Attention") -> int:
        """Returns the numbers of w and β."""
        return a.d_k + 1

    def scores_of_step(
        self,
        q: Float[Array, "B N H K"],
        k: Float[Array, "B T H K"],
        tokens: Tokens,
        own: Bool[Array, "B N T"],
    ) -> Float[Array, "B H N T"]:
        """Returns the scores of a step's tokens with all entries of a cache.

        `own` are those that each token's hypothesis grew from.
        """

        def step(q, inputs):
            k, of_token, seen = inputs
            w = of_token[:, None, :, :-1]
            beta = jnp.where(seen[..., None], of_token[:, None, :, -1], 0)
            along = (q * w).sum(-1)
            return q - (beta * along)[..., None] * w, (q * k[:, None]).sum(-1)

        inputs = (jnp.moveaxis(x, 1, 0) for x in (k, tokens.of_keys))
        inputs = (*inputs, jnp.moveaxis(own, 2, 0))
        _, s = jax.lax.scan(step, q, inputs, reverse=True)
        return jnp.moveaxis(s, (0, 3), (3, 1))

    def products(self, a: "Attention") -> Products:
        """Counts those of w and β, and of a query with each w on its way and back."""
        of_token = RANK * (a.d_model + a.h * a.d_k) + a.d_model * a.h
        return Products(query=of_token, pair=2 * a.h * a.d_k)
