"""The matrices of a model's embeddings and output."""

from collections.abc import Iterable

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

EMBEDDINGS = {
    "tied": ("embedding",),
    "target": ("embedding", "source_embedding"),
    "separate": ("embedding", "source_embedding", "output"),
}
"""The matrices that each kind of embeddings has."""


def embedding_matrices(
    module: nn.Module,
    names: Iterable[str],
    vocabulary: int,
    d_model: int,
) -> dict[str, Float[Array, "Y D"]]:
    """Makes parameters of `module` by name, each (Y, D), from N(0, 1/d_model)."""
    # Models multiply embeddings by √d_model, which brings their variance to 1.
    normal = nn.initializers.normal(d_model**-0.5)
    return {name: module.param(name, normal, (vocabulary, d_model)) for name in names}


def output_matrix(params) -> Float[Array, "Y E"]:
    """Returns the matrix whose product with a model's hidden states gives the logits.

    It is a matrix of its own or the embedding, and beside it, where there is one, the
    bias, for hidden states that end in 1.
    """
    matrix = params.get("output", params["embedding"])
    if "output_bias" in params:
        bias = params["output_bias"][:, None]
        matrix = jnp.concatenate([matrix, bias], axis=-1)
    return matrix
