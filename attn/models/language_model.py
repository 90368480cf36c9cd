"""A language model with masked self-attention: a decoder by itself, p(y_t | y_1 … y_t−1) for all t in one pass.

Layers, dropout, embeddings and what deviates are those of the Transformer's decoder, without attention to a source
(Liu et al. 2018, section 4.2.3; Radford et al. 2018). B batch (any leading axes), N pieces, D = d_model, Y vocabulary,
K texts side by side, T entries of a cache.
"""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attn.dropout import Dropout
from attn.layers import (
    EMBEDDINGS,
    LanguageLayer,
    LayeredModel,
    check_design,
    embedding_matrices,
    output_matrix,
)
from attn.masks import Mask
from attn.positions import PositionTable


class LanguageModel(LayeredModel):
    """The decoder by itself; attributes as for `LayeredModel`.

    Of the design, `embeddings` "separate" gives the output a matrix of its own, and both others do not;
    `decoder_mixing` is what mixes positions, and `encoder_mixing` and `choice` are of no account.

    Parameters of the paper's design, beside the embedding: N·(2·d_model·h·(d_k + d_v) + 2·d_model·d_ff + d_ff +
    5·d_model).

    Raises:
      ValueError: a design with names that are unknown.
    """

    def setup(self):
        check_design(self.design)
        d_model = self.shape.d_model
        names = [
            name
            for name in EMBEDDINGS[self.design.embeddings]
            if name != "source_embedding"
        ]
        for name, matrix in embedding_matrices(
            self, names, self.vocabulary, d_model
        ).items():
            setattr(self, name, matrix)
        self.target_positions = PositionTable(self.positions, self.length, d_model)
        self.drop = Dropout(self.P_drop)
        self.decoder = [LanguageLayer(*self.of_a_layer) for _ in range(self.shape.N)]
        if self.design.norm != "post":
            self.decoder_norm = nn.LayerNorm(self.design.norm_epsilon)

    def __call__(
        self,
        pieces: Int[Array, "*B N"],
        positions: Int[Array, "*B N"],
        mask: Mask = Mask.causal(),
    ) -> Float[Array, "*B N D"]:
        """The last hidden states; their product with `output_matrix` gives the logits of the pieces that follow."""
        return self._normed(
            self._through(self.decoder, self._embedded(pieces, positions), mask)
        )

    def logits(self, hidden: Float[Array, "*B N D"]) -> Float[Array, "*B N Y"]:
        return hidden @ output_matrix(self.variables["params"]).T

    def empty_caches(self, batch_shape: tuple[int, ...], entries: int, dtype):
        """Room for each layer's own: an entry for each position and text."""
        return tuple(
            layer.mixing.empty_cache(batch_shape, entries, dtype)
            for layer in self.decoder
        )

    def step(
        self,
        pieces: Int[Array, "*B K"],
        t: Int[Array, ""],
        caches,
        own: Bool[Array, "*B K T"],
    ):
        """The hidden states (*B, K, D) after `pieces`, which stand at position t, and the new caches; the rest as for
        `Transformer.step`."""
        x, kept = self._embedded(pieces, jnp.broadcast_to(t, pieces.shape)), []
        for layer, cache in zip(self.decoder, caches, strict=True):
            x, cache = layer.step(x, t, cache, own)
            kept.append(cache)
        return self._normed(x), tuple(kept)

    def _embedded(self, pieces, positions):
        return self._embed(
            self.embedding, pieces, self.target_positions(positions), self.drop
        )

    def _normed(self, x):
        return x if self.design.norm == "post" else self.decoder_norm(x)
