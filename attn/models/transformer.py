"""The Transformer of "Attention Is All You Need": encoder, decoder, and the whole.

Post-norm, LayerNorm(x + Dropout(Sublayer(x))); dropout also on the sums of embeddings and
positions; one matrix for both embeddings and the output; embeddings × √d_model. `Design`
names the deviations. Dropout happens when, and only when, an rng named "dropout" is given
to `apply`. B batch (any leading axes), N source tokens, M target tokens, D = d_model,
Y vocabulary, K hypotheses of one sentence, T entries of a cache.
"""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attn.arithmetic import stated
from attn.masks import Mask
from attn.models.blocks import DecoderLayer, EncoderLayer, LayeredModel
from attn.models.design import check_design
from attn.models.dropout import Dropout
from attn.models.embeddings import EMBEDDINGS, embedding_matrices
from attn.models.position_table import PositionTable
from attn.models.products import of_attention


class Transformer(LayeredModel):
    """The encoder-decoder; attributes as for `LayeredModel`.

    Parameters of the paper's design, beside the embeddings: N·(6·d_model·h·(d_k + d_v) +
    4·d_model·d_ff + 2·d_ff + 12·d_model), which is 44.10 M for the paper's base.

    Raises:
      ValueError: a design that does not make sense, or a selection that is not "soft"
        together with remat or scan.
    """

    def setup(self):
        """Makes embeddings, position tables and layers."""
        design = self.design
        check_design(design, self.shape)
        if design.selection != "soft" and (self.remat or self.scan):
            raise ValueError(
                f"selection={design.selection!r} makes the last layer differ: "
                "leave out remat and scan"
            )
        d_model = self.shape.d_model
        names = EMBEDDINGS[design.embeddings]
        matrices = embedding_matrices(self, names, self.vocabulary, d_model)
        for name, matrix in matrices.items():
            setattr(self, name, matrix)
        self.source_positions = PositionTable(design.positions, self.length, d_model)
        self.target_positions = PositionTable(design.positions, self.length, d_model)
        self.source_drop = Dropout(self.P_drop)
        self.target_drop = Dropout(self.P_drop)
        numbers = range(1, self.shape.N + 1)
        self.encoder = [
            EncoderLayer(*self.layer_arguments(number)) for number in numbers
        ]
        selections = ["soft"] * (self.shape.N - 1) + [design.selection]
        self.decoder = [
            DecoderLayer(*self.layer_arguments(number), selection)
            for number, selection in zip(numbers, selections, strict=True)
        ]
        # A post-norm layer ends in a LayerNorm, and the paper has none after the stack.
        if design.norm != "post":
            self.encoder_norm = nn.LayerNorm(design.norm_epsilon)
            self.decoder_norm = nn.LayerNorm(design.norm_epsilon)

    @nn.nowrap
    def products(self, n, m):
        """Counts the products of a forward pass with n source and m target tokens.

        End marks are among them. With D = d_model, Y = vocabulary, the paper's model has

            (n + m)·N·(3·D·h·(d_k + d_v) + 2·D·d_ff) + m·D·Y
            + N·(n² + m·(m + 1)/2 + n·m)·h·(d_k + d_v)

        The first two terms are the products with matrices, the third those of attention over
        the pairs of query and key that may see each other. None where a mixer, score, heads
        or positions do not state theirs.
        """
        shape = self.shape
        design = self.design
        encoder = stated(design.encoder_mixing, n, False, shape, design)
        decoder = stated(design.decoder_mixing, m, True, shape, design)
        cross = of_attention(m, n, n * m, shape, design)
        if encoder is None or decoder is None or cross is None:
            return None
        feed_forward = (n + m) * 2 * shape.d_model * shape.d_ff
        layer = encoder + decoder + cross + feed_forward
        return shape.N * layer + m * shape.d_model * self.vocabulary

    def __call__(
        self,
        source: Int[Array, "*B N"],
        target: Int[Array, "*B M"],
        source_positions: Int[Array, "*B N"],
        target_positions: Int[Array, "*B M"],
        *,
        source_mask: Mask,
        target_mask: Mask,
        cross_mask: Mask,
    ) -> Float[Array, "*B M D"]:
        """Computes the decoder's last hidden states.

        Their product with the output matrix gives the logits.
        """
        memory = self.encode(source, source_positions, source_mask)
        table = self.target_positions(target_positions)
        x = self._embed(self.embedding, target, table, self.target_drop)
        x = self._run_layers(self.decoder, x, memory, target_mask, cross_mask)
        return x if self.design.norm == "post" else self.decoder_norm(x)

    def encode(
        self,
        source: Int[Array, "*B N"],
        positions: Int[Array, "*B N"],
        mask: Mask,
    ) -> Float[Array, "*B N D"]:
        """Computes the encoder's output, the memory of the decoder."""
        tied = self.design.embeddings == "tied"
        matrix = self.embedding if tied else self.source_embedding
        table = self.source_positions(positions)
        x = self._embed(matrix, source, table, self.source_drop)
        x = self._run_layers(self.encoder, x, mask)
        return x if self.design.norm == "post" else self.encoder_norm(x)

    def logits(self, hidden: Float[Array, "*B M D"]) -> Float[Array, "*B M Y"]:
        """Computes the logits of the decoder's hidden states."""
        separate = self.design.embeddings == "separate"
        return hidden @ (self.output if separate else self.embedding).T

    def project_memory(self, memory: Float[Array, "*B N D"]):
        """Computes each decoder layer's keys and values of the encoder's output.

        That is done once for a sentence.
        """
        layers = self.decoder
        return tuple(layer.cross_attention.project_memory(memory) for layer in layers)

    def empty_caches(
        self,
        batch_shape: tuple[int, ...],
        entries: int,
        dtype,
        hypotheses: int | None = None,
    ):
        """Returns room for each decoder layer's own keys and values.

        There is an entry for each position and hypothesis. Where the number of hypotheses
        is given, a mixer that keeps states has one for each of these, and attention
        restricted to a radius has entries for as many positions as it sees.
        """
        return tuple(
            layer.empty_cache(batch_shape, entries, dtype, hypotheses)
            for layer in self.decoder
        )

    def decode_step(
        self,
        tokens: Int[Array, "*B K"],
        t: Int[Array, "*b"],
        caches,
        memory,
        visible: Bool[Array, "*B K T"],
        memory_visible: Bool[Array, "*B n N"],
    ):
        """Computes the decoder's hidden states (*B, K, D) after `tokens` at position t.

        K hypotheses of a sentence stand side by side. All read the keys of one memory,
        that of `project_memory`, and keep their own in entries t·K … t·K + K − 1 of one
        cache. So nothing is stored K times, and caches stay as they are when hypotheses
        change places.

        Args:
          tokens: the last token of each hypothesis.
          t: the position of all of them, or one for each sentence (*B).
          caches, memory: one for each layer.
          visible: the entries of the cache that each hypothesis sees.
          memory_visible: the keys of the memory that it sees, n = K or 1.

        Returns:
          The hidden states and the new caches.
        """
        places = jnp.broadcast_to(jnp.expand_dims(t, -1), tokens.shape)
        table = self.target_positions(places)
        x = self._embed(self.embedding, tokens, table, self.target_drop)
        new_caches = []
        for layer, cache, keys in zip(self.decoder, caches, memory, strict=True):
            x, cache = layer.decode_step(x, t, cache, keys, visible, memory_visible)
            new_caches.append(cache)
        x = x if self.design.norm == "post" else self.decoder_norm(x)
        return x, tuple(new_caches)
