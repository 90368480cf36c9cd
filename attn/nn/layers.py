"""The small layers: linear maps, dropout, feed-forward networks, embeddings.

A feed-forward network is a value; a user's own is a frozen dataclass, a subclass of
`FeedForward`. B examples, N tokens, D = d_model, F = d_ff, L positions of a
table, Y vocabulary.
"""

import dataclasses
import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from attn import platforms
from attn.arguments import is_never
from attn.context import Context
from attn.kernels.drop import Drop
from attn.lookup import rows
from attn.positions import Positions

if TYPE_CHECKING:
    from attn.config import Layer

ACTIVATIONS = {
    "none": None,
    "relu": nn.relu,
    # The exact form, which is PyTorch's default; Linen's is the tanh approximation.
    "gelu": functools.partial(nn.gelu, approximate=False),
    "silu": nn.silu,
}
"""The functions; "none" is the identity, for the output of attention only."""

EMBEDDINGS = {
    "tied": ("embedding",),
    "target": ("embedding", "source_embedding"),
    "separate": ("embedding", "source_embedding", "output"),
}
"""The matrices that each kind of embeddings has."""


class Linear(nn.Module):
    """Computes x W + b, W Glorot-uniform and b 0 at first."""

    features: int

    @nn.compact
    def __call__(self, x: Float[Array, "*B N D"]) -> Float[Array, "*B N F"]:
        glorot = nn.initializers.glorot_uniform()
        kernel = self.param("kernel", glorot, (x.shape[-1], self.features))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        # As if for one head: XLA on a CPU then takes half as long for the gradient to the
        # kernel as with x @ kernel.
        y = jnp.einsum("...nd,dhf->...nhf", x, kernel[:, None])[..., 0, :]
        # Axes are written out: the tests make JAX raise where it would add them.
        return y + bias.reshape((1,) * (y.ndim - 1) + (-1,))


class Dropout(nn.Module):
    """Drops with the context's number `rate`, where the context has keys."""

    rate: str

    @nn.compact
    def __call__(self, x: Float[Array, "B ..."], ctx: Context) -> Float[Array, "B ..."]:
        rate = ctx.rate(self.rate)
        keys = ctx.key(self, "dropout")
        if is_never(self.rate, rate) or keys is None:
            return x
        return jax.vmap(lambda key, x: Drop(rate, key)(x))(keys, x)


@dataclasses.dataclass(frozen=True)
class FeedForward:
    """A feed-forward network as a value; the base of such."""

    def build(self, layer: "Layer") -> nn.Module:
        """Makes the module (x, ctx) -> x of one layer."""
        raise NotImplementedError(f"{type(self).__name__} has no build")

    def products(self, layer: "Layer") -> int | None:
        """Counts the products of one token; None for unknown."""
        return None


@dataclasses.dataclass(frozen=True)
class Dense(FeedForward):
    """Two matrices with an activation between them (section 3.3)."""

    activation: ClassVar[str]

    def build(self, layer: "Layer") -> nn.Module:
        """Makes the module."""
        return Network(layer.d_model, layer.d_ff, self.activation)

    def products(self, layer: "Layer") -> int:
        """Counts those of both matrices."""
        return 2 * layer.d_model * layer.d_ff


class ReLU(Dense):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2, the paper's."""

    activation = "relu"
    products = Dense.products


class GELU(Dense):
    """FFN(x) = GELU(x W_1 + b_1) W_2 + b_2 (Hendrycks and Gimpel 2016), the exact form."""

    activation = "gelu"
    products = Dense.products


class SiLU(Dense):
    """FFN(x) = SiLU(x W_1 + b_1) W_2 + b_2."""

    activation = "silu"
    products = Dense.products


@dataclasses.dataclass(frozen=True)
class Gated(FeedForward):
    """FFN(x) = (f(x W_1 + b_1) ∘ (x W_3 + b_3)) W_2 + b_2 (Shazeer 2020), f = SiLU.

    With d_ff · 2/3 it has the parameters of one without gates.
    """

    activation: str = "silu"

    def __post_init__(self):
        if self.activation not in ACTIVATIONS or self.activation == "none":
            known = ", ".join(name for name in ACTIVATIONS if name != "none")
            raise ValueError(f"unknown activation {self.activation!r}; known: {known}")

    def build(self, layer: "Layer") -> nn.Module:
        """Makes the module."""
        return Network(layer.d_model, layer.d_ff, self.activation, is_gated=True)

    def products(self, layer: "Layer") -> int:
        """Counts those of three matrices."""
        return 3 * layer.d_model * layer.d_ff


FEED_FORWARDS = {"relu": ReLU, "gelu": GELU, "silu": SiLU, "gated": Gated}
"""The feed-forward networks by name."""


class Network(nn.Module):
    """The feed-forward network of `Dense` and `Gated`; hidden units drop with P_ff."""

    d_model: int
    d_ff: int
    activation: str = "relu"
    is_gated: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "B N D"], ctx: Context) -> Float[Array, "B N D"]:
        hidden = ACTIVATIONS[self.activation](Linear(self.d_ff, name="w_1")(x))
        if self.is_gated:
            hidden = hidden * Linear(self.d_ff, name="w_3")(x)
        hidden = Dropout("P_ff", name="drop")(hidden, ctx)
        return Linear(self.d_model, name="w_2")(hidden)


class PositionTable(nn.Module):
    """Looks positions up in variable "table" (L, D) of collection "positions".

    It is a collection of its own, because whether the table is trained is a property of the
    experiment and not of the program: trials with different encodings can share a compiled
    program. The context's keys "positions" are for positions that are drawn.
    """

    positions: Positions
    length: int
    d_model: int

    @nn.compact
    def __call__(
        self,
        tokens: Int[ArrayLike, "B N"],
        places: Int[ArrayLike, "*B N"],
        ctx: Context,
    ) -> Float[Array, "B N D"]:
        """Returns the vectors of tokens at these places."""

        def initial_table():
            # The table is no parameter, but at init it is drawn with the same rng.
            key = self.make_rng("params")
            return self.positions.table(key, self.length, self.d_model)

        table = self.variable("positions", "table", initial_table).value
        places = jnp.broadcast_to(places, jnp.shape(tokens))
        keys = ctx.key(self, "positions")

        def of_row(places, key=None):
            return self.positions.places(places, self.length, key)

        found = of_row(places) if keys is None else jax.vmap(of_row)(places, keys)
        return rows(table, found, platforms.sums_rows_by_product())


def embedding_matrices(
    module: nn.Module, names: Iterable[str], vocabulary: int, d_model: int
) -> dict[str, Float[Array, "Y D"]]:
    """Makes parameters of `module` by name, each (Y, D), from N(0, 1/d_model)."""
    # Models multiply embeddings by √d_model, which brings their variance to 1.
    normal = nn.initializers.normal(d_model**-0.5)
    return {name: module.param(name, normal, (vocabulary, d_model)) for name in names}


def output_matrix(params: Any) -> Float[Array, "Y E"]:
    """Returns the matrix whose product with a model's hidden states gives the logits.

    It is a matrix of its own or the embedding, and beside it, where there is one, the
    bias, for hidden states that end in 1.
    """
    matrix = params.get("output", params["embedding"])
    if "output_bias" in params:
        bias = params["output_bias"][:, None]
        matrix = jnp.concatenate([matrix, bias], axis=-1)
    return matrix
