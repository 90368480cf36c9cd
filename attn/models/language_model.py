"""A language model with masked self-attention: a decoder by itself.

It gives p(y_t | y_1 … y_t−1) for all t in one pass. Layers, dropout, embeddings and
deviations are those of the Transformer's decoder, without attention to a source (Liu et
al. 2018, section 4.2.3; Radford et al. 2018). B batch (any leading axes), N tokens,
D = d_model, Y vocabulary, K texts side by side, T entries of a cache.
"""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attn.arithmetic import stated
from attn.masks import Mask
from attn.models.blocks import LanguageLayer, LayeredModel
from attn.models.design import check_design
from attn.models.dropout import Dropout
from attn.models.embeddings import EMBEDDINGS, embedding_matrices, output_matrix
from attn.models.position_table import PositionTable
from attn.models.visibility import visible_at


class LanguageModel(LayeredModel):
    """The decoder by itself; attributes as for `LayeredModel`.

    Of the design, `embeddings` "separate" gives the output a matrix of its own, and both
    others do not; `decoder_mixing` is what mixes positions. There is no encoder and no
    attention to it, so `encoder_mixing` and `selection` do not apply.

    Parameters of the paper's design, beside the embedding: N·(2·d_model·h·(d_k + d_v) +
    2·d_model·d_ff + d_ff + 5·d_model).

    Raises:
      ValueError: a design that does not make sense.
    """

    def setup(self):
        """Makes embeddings, position table and layers."""
        design = self.design
        check_design(design, self.shape)
        d_model = self.shape.d_model
        names = [
            name for name in EMBEDDINGS[design.embeddings] if name != "source_embedding"
        ]
        matrices = embedding_matrices(self, names, self.vocabulary, d_model)
        for name, matrix in matrices.items():
            setattr(self, name, matrix)
        self.target_positions = PositionTable(design.positions, self.length, d_model)
        self.drop = Dropout(self.P_drop)
        self.decoder = [
            LanguageLayer(*self.layer_arguments(number))
            for number in range(1, self.shape.N + 1)
        ]
        if design.norm != "post":
            self.decoder_norm = nn.LayerNorm(design.norm_epsilon)

    @nn.nowrap
    def products(self, n, m):
        """Counts the products of a forward pass with m tokens, whatever n is.

        They are those of `Transformer.products` without a source.
        """
        shape = self.shape
        mixing = stated(self.design.decoder_mixing, m, True, shape, self.design)
        if mixing is None:
            return None
        layer = mixing + m * 2 * shape.d_model * shape.d_ff
        return shape.N * layer + m * shape.d_model * self.vocabulary

    def __call__(
        self,
        tokens: Int[Array, "*B N"],
        positions: Int[Array, "*B N"],
        mask: Mask = Mask.causal(),
    ) -> Float[Array, "*B N D"]:
        """Computes the last hidden states.

        Their product with `output_matrix` gives the logits of the tokens that follow.
        """
        x = self._run_layers(self.decoder, self._embedded(tokens, positions), mask)
        return self._normed(x)

    def logits(self, hidden: Float[Array, "*B N D"]) -> Float[Array, "*B N Y"]:
        """Computes the logits of hidden states."""
        return hidden @ output_matrix(self.variables["params"]).T

    def empty_caches(
        self,
        batch_shape: tuple[int, ...],
        entries: int,
        dtype,
        hypotheses: int | None = None,
        last: int | None = None,
    ):
        """Returns room for each layer's own, see `Transformer.empty_caches`.

        With the number of hypotheses, attention keeps the `last` positions only, as many as
        a window mask lets it see: memory does not grow with the text.
        """
        return tuple(
            layer.empty_cache(batch_shape, entries, dtype, hypotheses, last)
            for layer in self.decoder
        )

    def decode_step(
        self,
        tokens: Int[Array, "*B K"],
        t: Int[Array, "*b"],
        caches,
        visible: Bool[Array, "*B K T"],
    ):
        """Computes the hidden states (*B, K, D) after `tokens` at position t.

        Returns them and the new caches; the rest as for `Transformer.decode_step`.
        """
        places = jnp.broadcast_to(jnp.expand_dims(t, -1), tokens.shape)
        x = self._embedded(tokens, places)
        new_caches = []
        for layer, cache in zip(self.decoder, caches, strict=True):
            x, cache = layer.decode_step(x, t, cache, visible)
            new_caches.append(cache)
        return self._normed(x), tuple(new_caches)

    def step(
        self,
        tokens: Int[Array, "*B"],
        t: Int[Array, "*b"],
        caches,
        mask: Mask = Mask.causal(),
    ):
        """Computes the hidden states (*B, D) after one token of each text.

        Args:
          tokens: the token of each text that stands at position t.
          t: one position for all, or one for each text (*B).
          caches: as `empty_caches` makes them for one hypothesis.
          mask: that of the full pass; keys behind t do not exist yet, whatever it says. Its
            arrays are of `length` queries and keys.

        Returns:
          The hidden states and the new caches.
        """
        visible = visible_at(mask, tokens.shape, t, self.length)
        hidden, caches = self.decode_step(tokens[..., None], t, caches, visible)
        return hidden[..., 0, :], caches

    def _embedded(self, tokens, positions):
        table = self.target_positions(positions)
        return self._embed(self.embedding, tokens, table, self.drop)

    def _normed(self, x):
        return x if self.design.norm == "post" else self.decoder_norm(x)
