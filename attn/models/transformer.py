"""The Transformer of "Attention Is All You Need": encoder, decoder, and the whole.

Post-norm, LayerNorm(x + Dropout(Sublayer(x))); dropout also on the sums of embeddings and positions; one matrix for
both embeddings and the output; embeddings × √d_model. `Design` names the deviations. Dropout happens when, and only
when, an rng named "dropout" is given to `apply`. B batch (any leading axes), N source pieces, M target pieces,
D = d_model, Y vocabulary, K hypotheses of one sentence.
"""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attn.dropout import Dropout
from attn.layers import (
    EMBEDDINGS,
    DecoderLayer,
    EncoderLayer,
    LayeredModel,
    check_design,
    embedding_matrices,
)
from attn.masks import Mask
from attn.positions import PositionTable


class Transformer(LayeredModel):
    """The encoder-decoder; attributes as for `LayeredModel`.

    Parameters of the paper's design, beside the embeddings: N·(6·d_model·h·(d_k + d_v) + 4·d_model·d_ff + 2·d_ff +
    12·d_model), which is 44.10 M for the paper's base.

    Raises:
      ValueError: a design with names that are unknown, or a choice that is hard together with remat or scan.
    """

    def setup(self):
        check_design(self.design)
        if self.design.choice != "soft" and (self.remat or self.scan):
            raise ValueError(
                f"choice={self.design.choice!r} makes the last layer differ: without remat and scan"
            )
        d_model = self.shape.d_model
        names = EMBEDDINGS[self.design.embeddings]
        for name, matrix in embedding_matrices(
            self, names, self.vocabulary, d_model
        ).items():
            setattr(self, name, matrix)
        self.source_positions = PositionTable(self.positions, self.length, d_model)
        self.target_positions = PositionTable(self.positions, self.length, d_model)
        self.source_drop = Dropout(self.P_drop)
        self.target_drop = Dropout(self.P_drop)
        self.encoder = [EncoderLayer(*self.of_a_layer) for _ in range(self.shape.N)]
        choices = ["soft"] * (self.shape.N - 1) + [self.design.choice]
        self.decoder = [DecoderLayer(*self.of_a_layer, choice) for choice in choices]
        if self.design.norm != "post":
            self.encoder_norm = nn.LayerNorm(self.design.norm_epsilon)
            self.decoder_norm = nn.LayerNorm(self.design.norm_epsilon)

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
        """The decoder's last hidden states; their product with the output matrix gives the logits."""
        memory = self.encode(source, source_positions, source_mask)
        x = self._embed(
            self.embedding,
            target,
            self.target_positions(target_positions),
            self.target_drop,
        )
        x = self._through(self.decoder, x, memory, target_mask, cross_mask)
        return x if self.design.norm == "post" else self.decoder_norm(x)

    def encode(
        self, source: Int[Array, "*B N"], positions: Int[Array, "*B N"], mask: Mask
    ) -> Float[Array, "*B N D"]:
        matrix = (
            self.embedding
            if self.design.embeddings == "tied"
            else self.source_embedding
        )
        x = self._embed(
            matrix, source, self.source_positions(positions), self.source_drop
        )
        x = self._through(self.encoder, x, mask)
        return x if self.design.norm == "post" else self.encoder_norm(x)

    def logits(self, hidden: Float[Array, "*B M D"]) -> Float[Array, "*B M Y"]:
        return (
            hidden
            @ (
                self.output if self.design.embeddings == "separate" else self.embedding
            ).T
        )

    def remember(self, memory: Float[Array, "*B N D"]):
        """Each decoder layer's keys and values of the encoder's output, computed once per sentence."""
        return tuple(layer.cross_attention.remember(memory) for layer in self.decoder)

    def empty_caches(self, batch_shape: tuple[int, ...], entries: int, dtype):
        """Room for each decoder layer's own keys and values: an entry for each position and hypothesis."""
        return tuple(
            layer.mixing.empty_cache(batch_shape, entries, dtype)
            for layer in self.decoder
        )

    def step(
        self,
        pieces: Int[Array, "*B K"],
        t: Int[Array, ""],
        caches,
        cross,
        own: Bool[Array, "*B K T"],
        seen: Bool[Array, "*B n N"],
    ):
        """The decoder's hidden states (*B, K, D) after `pieces`, which stand at position t, and the new caches.

        K hypotheses of a sentence stand side by side: all read the keys of one memory, `cross`, those that are `seen`,
        and keep their own in entries t·K … t·K + K − 1 of one cache; `own` says which entries each sees. So nothing is
        stored K times, and caches stay as they are when hypotheses change places.
        """
        x = self._embed(
            self.embedding,
            pieces,
            self.target_positions(jnp.broadcast_to(t, pieces.shape)),
            self.target_drop,
        )
        kept = []
        for layer, cache, keys in zip(self.decoder, caches, cross, strict=True):
            x, cache = layer.step(x, t, cache, keys, own, seen)
            kept.append(cache)
        return x if self.design.norm == "post" else self.decoder_norm(x), tuple(kept)
