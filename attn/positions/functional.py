"""Biases that are a function of the distance: KERPLE's and FIRE's.

They are values as `attn.positions.biases` describes them. H heads, F = the units of an
MLP; n queries and m keys of a tile.
"""

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn.context import Context
from attn.functions.relu_sum import relu_sum
from attn.masks import fits, spread
from attn.positions.base import Positions
from attn.positions.biases import bias, head_parameter
from attn.pytrees import shared_by_examples

if TYPE_CHECKING:
    from attn.config import Attention


@bias
class KerpleLogBias:
    """bias[i, j] = −r_1 · log(1 + r_2 · |j − i|), r_1 and r_2 > 0.

    Chi et al. 2022, "KERPLE", the logarithmic kernel. Theirs is under a causal mask only,
    and kept positive by a bound of 0.01; here the logarithms are learned.
    """

    log_r_1: Any  # Float[Array, "H"]
    log_r_2: Any  # Float[Array, "H"]
    offset: Any = 0  # Int[Array, ""]

    @classmethod
    def init(cls, key: Array, h: int) -> "KerpleLogBias":
        """Draws r_1 from U(0.01, 2) and r_2 from U(0.01, 1), as their code does."""
        keys = jax.random.split(key)
        r_1, r_2 = _uniform(keys[0], h, 2.0), _uniform(keys[1], h, 1.0)
        return cls(jnp.log(r_1), jnp.log(r_2))

    def tile(self, i: Int[Array, "n"], j: Int[Array, "m"]) -> Float[Array, "n m"]:
        """Returns what one head adds to the scores of queries i and keys j."""
        r_1 = jnp.exp(head_parameter("log_r_1", self.log_r_1, ndim=0))
        r_2 = jnp.exp(head_parameter("log_r_2", self.log_r_2, ndim=0))
        return -r_1 * jnp.log1p(r_2 * _distance(self, i, j, r_2.dtype))


@bias
class KerplePowerBias:
    """bias[i, j] = −r_1 · |j − i|^r_2, r_1 > 0 and 0 < r_2 < 2.

    Chi et al. 2022, "KERPLE", the power kernel. Theirs is under a causal mask only, and
    kept between bounds; here log r_1 and the logit of r_2 / 2 are learned.
    """

    log_r_1: Any  # Float[Array, "H"]
    logit_r_2: Any  # Float[Array, "H"]
    offset: Any = 0  # Int[Array, ""]

    @classmethod
    def init(cls, key: Array, h: int) -> "KerplePowerBias":
        """Draws r_1 from U(0.01, 1) and r_2 from U(0.01, 1.99), about as their code does."""
        keys = jax.random.split(key)
        half = _uniform(keys[1], h, 1.99) / 2
        logit = jnp.log(half) - jnp.log1p(-half)
        return cls(jnp.log(_uniform(keys[0], h, 1.0)), logit)

    def tile(self, i: Int[Array, "n"], j: Int[Array, "m"]) -> Float[Array, "n m"]:
        """Returns what one head adds to the scores of queries i and keys j."""
        r_1 = jnp.exp(head_parameter("log_r_1", self.log_r_1, ndim=0))
        r_2 = 2 * jax.nn.sigmoid(head_parameter("logit_r_2", self.logit_r_2, ndim=0))
        distance = _distance(self, i, j, r_2.dtype)
        # log 1 in place of log 0, which has no derivative.
        power = jnp.exp(r_2 * jnp.log(jnp.maximum(distance, 1)))
        return -r_1 * jnp.where(distance == 0, 0, power)


@bias
class FireBias:
    """bias[i, j] = MLP(ψ(|i − j|) / ψ(max(p_i, L))), ψ(x) = log(1 + |c| x).

    Li et al. 2023, "Functional interpolation for relative positions improves long context
    Transformers" (FIRE). MLP(x) = w_2 · max(0, x w_1 + b_1) + b_2. The heads
    share c, L and the first layer, and have rows of the second. Theirs is under a causal
    mask, where what enters the MLP is from 0 to 1, however long the text is. p_i is the
    place of query i in its text: where rows hold several texts, `at_places` says it.
    """

    w_1: Any  # Float[Array, "1 F"]
    b_1: Any  # Float[Array, "1 F"]
    w_2: Any  # Float[Array, "H F"]
    b_2: Any  # Float[Array, "H"]
    c: Any  # Float[Array, "1"]
    threshold: Any  # Float[Array, "1"], L as a multiple of `first_threshold`
    first_threshold: float = dataclasses.field(default=512.0, metadata={"static": True})
    offset: Any = 0  # Int[Array, ""]
    places: Any = None  # Int[Array, "*B N"], i + offset unless given

    @classmethod
    def init(
        cls, key: Array, h: int, width: int = 32, threshold: float = 512.0
    ) -> "FireBias":
        """Draws an MLP of `width` units; c = 0.1 and L = threshold at first.

        Weights and b_1 are uniform within ±1/√(inputs), as in their code.
        """
        keys = jax.random.split(key, 4)

        def draw(key, shape, inputs):
            most = inputs**-0.5
            return jax.random.uniform(key, shape, minval=-most, maxval=most)

        return cls(
            w_1=draw(keys[0], (1, width), 1),
            b_1=draw(keys[1], (1, width), 1),
            w_2=draw(keys[2], (h, width), width),
            b_2=draw(keys[3], (h,), width),
            c=jnp.full(1, 0.1),
            threshold=jnp.ones(1),
            first_threshold=threshold,
        )

    def tile(self, i: Int[Array, "n"], j: Int[Array, "m"]) -> Float[Array, "n m"]:
        """Returns what one head adds to the scores of queries i and keys j."""
        c = jnp.abs(head_parameter("c", self.c, ndim=0))
        share = head_parameter("threshold", self.threshold, ndim=0)
        least = jnp.abs(share * self.first_threshold)
        distance = _distance(self, i, j, c.dtype)
        places = i + self.offset
        if self.places is not None:
            # The last block asks for queries past the end, whose results are cut off.
            places = jnp.take(self.places, i, mode="clip")
        farthest = jnp.maximum(places.astype(c.dtype), least)
        # As in their code, for an L of 0 at query 0.
        longest = jnp.log1p(c * farthest) + 1e-6
        x = jnp.log1p(c * distance) / longest[:, None]
        w_1 = head_parameter("w_1", self.w_1, ndim=1)
        b_1 = head_parameter("b_1", self.b_1, ndim=1)
        w_2 = head_parameter("w_2", self.w_2, ndim=1)
        b_2 = head_parameter("b_2", self.b_2, ndim=0)
        return relu_sum(x, w_1, b_1, w_2) + b_2

    def at_places(self, places: Int[Array, "*B N"]) -> "FireBias":
        """Returns the bias of queries at these places in their texts, from 0."""
        return dataclasses.replace(self, places=places)

    def in_context(self, ctx: Context) -> "FireBias":
        """Returns the bias of queries at their places, which a step's offset says itself."""
        if ctx.decoding is not None or ctx.places is None:
            return self
        return self.at_places(ctx.places)

    def flat(self, batch: tuple[int, ...]) -> "FireBias":
        """Returns the bias with an axis of examples and one of heads before the tokens."""
        shared = shared_by_examples(dataclasses.replace(self, places=None))
        if self.places is None:
            return shared
        places = jnp.asarray(self.places)[..., None, :]
        return shared.at_places(spread(places, batch, core=2))

    def check(self, batch: tuple[int, ...], h: int, n: int, m: int) -> None:
        """Raises ValueError for places that are not of these queries."""
        if self.places is not None and not fits(jnp.shape(self.places), (*batch, n)):
            raise ValueError(
                f"the bias's places of shape {jnp.shape(self.places)} must be (*B, N) = "
                f"{(*batch, n)}"
            )


def _uniform(key: Array, h: int, most: float) -> Array:
    return jax.random.uniform(key, (h,), minval=0.01, maxval=most)


def _distance(bias: Any, i: Array, j: Array, dtype: Any) -> Array:
    """Returns |j − i| (n, m), the queries moved by the bias's offset."""
    return jnp.abs(j[None] - i[:, None] - bias.offset).astype(dtype)


KERPLE_KERNELS = {"log": KerpleLogBias, "power": KerplePowerBias}


@dataclasses.dataclass(frozen=True)
class Kerple(Positions):
    """Subtracts a learned kernel of the distance from the scores (Chi et al. 2022).

    `kernel` is "log", see `KerpleLogBias`, or "power", see `KerplePowerBias`; each head of
    each layer has its own two numbers.
    """

    kernel: str = "log"

    def bias(self, key: Array, h: int, causal: bool) -> Any:
        """Draws the numbers."""
        return KERPLE_KERNELS[self.kernel].init(key, h)

    def check(self, a: "Attention") -> None:
        """Raises ValueError for an unknown kernel."""
        if self.kernel not in KERPLE_KERNELS:
            known = ", ".join(KERPLE_KERNELS)
            raise ValueError(f"unknown kernel {self.kernel!r}; known: {known}")


@dataclasses.dataclass(frozen=True)
class Fire(Positions):
    """Adds an MLP of the distance, as a share of the position, to the scores.

    FIRE (Li et al. 2023), see `FireBias`; each layer has its own MLP, of `width` units.
    """

    width: int = 32
    threshold: float = 512.0

    def bias(self, key: Array, h: int, causal: bool) -> FireBias:
        """Draws the MLP; its threshold is learned from this one on."""
        return FireBias.init(key, h, self.width, self.threshold)

    def check(self, a: "Attention") -> None:
        """Raises ValueError for a width below 1, or a threshold that is not above 0."""
        if self.width < 1:
            raise ValueError(f"width={self.width} must be at least 1")
        if not 0 < self.threshold < math.inf:
            raise ValueError(f"threshold={self.threshold} must be finite and above 0")
