"""Forget gates: a bias that self-attention reads from its own tokens (FoX).

B batch (any leading axes), N queries, M keys, H heads, D = d_model; n queries and m keys
of a tile.
"""

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn.arithmetic import Products
from attn.cache import ancestors, write_entries
from attn.context import Context
from attn.lookup import of_neighbours
from attn.masks import spread
from attn.positions.base import Positions
from attn.positions.biases import bias
from attn.pytrees import at_least_float32, pytree

if TYPE_CHECKING:
    from attn.config import Attention


@pytree
class ForgetGates:
    """Forgets the share 1 − f of what came before each token, f = σ(x w + b) for each head.

    Lin et al. 2025, "Forgetting Transformer: softmax attention with a forget gate".
    """

    w: Any  # Float[Array, "D H"]
    b: Any  # Float[Array, "H"]

    @classmethod
    def init(cls, key: Array, d_model: int, h: int) -> "ForgetGates":
        """Draws w, Glorot-uniform; b is 0, so that a gate is about a half at first."""
        w = jax.nn.initializers.glorot_uniform()(key, (d_model, h))
        return cls(w, jnp.zeros(h))

    def log_gates(self, x: Float[Array, "*B N D"]) -> Float[Array, "*B N H"]:
        """Computes log f in float32 at least, as it is a sum of many that counts."""
        logits = x @ self.w + self.b.reshape((1,) * (x.ndim - 1) + (-1,))
        return jax.nn.log_sigmoid(logits.astype(at_least_float32(logits.dtype)))

    def bias(self, x: Float[Array, "*B N D"]) -> "ForgetBias":
        """Makes the bias of self-attention from x to x."""
        c = jnp.cumsum(self.log_gates(x), axis=-2)
        return ForgetBias(c, c)


@bias
class ForgetBias:
    """bias[i, j] = −|c_i − c_j|, c_i = Σ_(t ≤ i) log f_t for each example and head.

    It is the logarithm of all that the gates after key j and up to query i let through, in
    O(N + M) memory. Theirs is under a causal mask only, where it is c_i − c_j; a key after
    its query is forgotten as it is from the other side. Constant gates are ALiBi with the
    slope −log f, gates of 1 are no bias. The sums are right to about |c_i| · 10⁻⁷.
    """

    trained = False
    of_queries: Any  # Float[Array, "*B N H"]
    of_keys: Any  # Float[Array, "*B M H"]

    def tile(self, i: Int[Array, "n"], j: Int[Array, "m"]) -> Float[Array, "n m"]:
        """Returns what one head of one example adds to the scores of queries i, keys j."""
        # The last block asks for queries past the end, whose results are cut off.
        c_i = jnp.take(self.of_queries, i, mode="clip")
        c_j = of_neighbours(self.of_keys, j)
        change = c_i[:, None] - c_j[None]
        # By the side and not by the sign, which rounding may lose and with it the gradient.
        return jnp.where(j[None] <= i[:, None], change, -change)

    def sides(self, n: int, m: int) -> tuple[Array, Array]:
        """Returns c of queries and −c of keys."""
        return self.of_queries, -self.of_keys

    def flat(self, batch: tuple[int, ...]) -> "ForgetBias":
        """Returns the bias with an axis of examples and one of heads before the tokens."""

        def flat(c):
            return spread(jnp.moveaxis(jnp.asarray(c), -1, -2), batch, core=2)

        return ForgetBias(flat(self.of_queries), flat(self.of_keys))

    def check(self, batch: tuple[int, ...], h: int, n: int, m: int) -> None:
        """Raises ValueError for sums that are not of these tokens and heads."""
        for name, c, tokens in (
            ("of_queries", self.of_queries, n),
            ("of_keys", self.of_keys, m),
        ):
            expected = (*batch, tokens, h)
            if jnp.shape(c) != expected:
                raise ValueError(
                    f"the forget bias's {name} of shape {jnp.shape(c)} must be (*B, "
                    f"tokens, H) = {expected}; it is for self-attention"
                )


@dataclasses.dataclass(frozen=True)
class Forget(Positions):
    """Forgets by gates that each layer reads from its tokens (FoX, Lin et al. 2025).

    See `ForgetGates` and `ForgetBias`. A cache of decoding keeps one number more for each
    token and head.
    """

    name: ClassVar[str] = "forget"

    def in_attention(self, key: Array, a: "Attention", causal: bool) -> ForgetGates:
        """Draws the gates' projection."""
        return ForgetGates.init(key, a.d_model, a.h)

    def bias_of(
        self, value: ForgetGates, x: Float[Array, "B N D"], ctx: Context
    ) -> tuple[Any, Context]:
        """Returns the bias of the gates of x, in a step that of the sums kept so far."""
        if ctx.decoding is None:
            return value.bias(x), ctx
        t, visible = ctx.decoding.t, ctx.decoding.visible
        kept, sums = ctx.cache
        c = ancestors(sums, visible, t - 1) + value.log_gates(x)
        sums = write_entries(sums, c, t)
        # No entry that is seen stands behind x, so the sign is that of ForgetBias.
        bias = c[..., :, None, :] - sums[..., None, :, :]
        return jnp.moveaxis(bias, -1, -3), ctx.replace(cache=(kept, sums))

    def empty_cache(self, a: "Attention", shape: tuple[int, int], dtype: Any) -> Array:
        """Returns room for the sums (B, T, H) of the gates' logarithms."""
        return jnp.zeros((*shape, a.h), at_least_float32(dtype))

    def products(self, a: "Attention") -> Products:
        """Counts those of the projection."""
        return Products(query=a.d_model * a.h)
