"""The Transformer of "Attention Is All You Need": layers, encoder, decoder, and the whole.

Post-norm, LayerNorm(x + Dropout(Sublayer(x))); dropout also on the sums of embeddings and positions; one matrix for
both embeddings and the output; embeddings × √d_model. Dropout happens when, and only when, an rng named "dropout" is
given to `apply`. B batch (any leading axes), N source pieces, M target pieces, D = d_model.
"""

from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn.dropout import Dropout
from attn.masks import Mask
from attn.multihead import MultiHeadAttention
from attn.positions import Learned, NoPositions, PositionTable, Sinusoidal


class Shape(NamedTuple):
    """The sizes of a Transformer, in the paper's letters."""

    N: int
    d_model: int
    d_ff: int
    h: int
    d_k: int
    d_v: int


class FeedForward(nn.Module):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2 (section 3.3)."""

    d_model: int
    d_ff: int

    @nn.compact
    def __call__(self, x: Float[Array, "*B N D"]) -> Float[Array, "*B N D"]:
        glorot = nn.initializers.glorot_uniform()
        hidden = nn.relu(nn.Dense(self.d_ff, kernel_init=glorot, name="w_1")(x))
        return nn.Dense(self.d_model, kernel_init=glorot, name="w_2")(hidden)


class AddAndNorm(nn.Module):
    """LayerNorm(x + Dropout(y)), for y = Sublayer(x) (sections 3.1 and 5.4)."""

    P_drop: float | Float[Array, ""]

    @nn.compact
    def __call__(self, x: Float[Array, "*B N D"], y: Float[Array, "*B N D"]) -> Float[Array, "*B N D"]:
        return nn.LayerNorm(name="norm")(x + Dropout(self.P_drop, name="drop")(y))


class EncoderLayer(nn.Module):
    """Self-attention, then the feed-forward network."""

    shape: Shape
    P_drop: float | Float[Array, ""]

    @nn.compact
    def __call__(self, x: Float[Array, "*B N D"], mask: Mask) -> Float[Array, "*B N D"]:
        _, d_model, d_ff, h, d_k, d_v = self.shape
        x = AddAndNorm(self.P_drop, name="self_norm")(
            x, MultiHeadAttention(d_model, h, d_k, d_v, name="self_attention")(x, x, mask))
        return AddAndNorm(self.P_drop, name="feed_forward_norm")(x, FeedForward(d_model, d_ff, name="feed_forward")(x))


class DecoderLayer(nn.Module):
    """Masked self-attention, attention over the encoder's output, then the feed-forward network."""

    shape: Shape
    P_drop: float | Float[Array, ""]

    def setup(self):
        _, d_model, d_ff, h, d_k, d_v = self.shape
        self.self_attention = MultiHeadAttention(d_model, h, d_k, d_v)
        self.cross_attention = MultiHeadAttention(d_model, h, d_k, d_v)
        self.feed_forward = FeedForward(d_model, d_ff)
        self.self_norm = AddAndNorm(self.P_drop)
        self.cross_norm = AddAndNorm(self.P_drop)
        self.feed_forward_norm = AddAndNorm(self.P_drop)

    def __call__(self, x: Float[Array, "*B M D"], memory: Float[Array, "*B N D"], mask: Mask,
                 cross_mask: Mask) -> Float[Array, "*B M D"]:
        y = self.self_attention(x, x, mask)
        return self._after(x, y, self.cross_attention.keys_and_values(memory), cross_mask)

    def step(self, x: Float[Array, "*B 1 D"], t: Int[Array, ""], cache, cross, cross_mask: Mask):
        """One target piece at position t, with the keys and values of the pieces before it in `cache`."""
        y, cache = self.self_attention.step(x, t, cache)
        return self._after(x, y, cross, cross_mask), cache

    def _after(self, x, y, cross, cross_mask):
        """The layer after y, its self-attention: `cross` has the keys and values of the encoder's output."""
        x = self.self_norm(x, y)
        x = self.cross_norm(x, self.cross_attention.attend(x, *cross, cross_mask))
        return self.feed_forward_norm(x, self.feed_forward(x))


class Transformer(nn.Module):
    """The encoder-decoder. `length` positions at most; `P_drop` may be a traced value.

    Parameters, beside the embeddings: N·(6·d_model·h·(d_k + d_v) + 4·d_model·d_ff + 2·d_ff + 12·d_model), which is
    44.10 M for the paper's base.
    """

    shape: Shape
    vocabulary: int
    length: int
    positions: Sinusoidal | Learned | NoPositions = Sinusoidal()
    P_drop: float | Float[Array, ""] = 0.1

    def setup(self):
        d_model = self.shape.d_model
        self.embedding = self.param("embedding", nn.initializers.normal(d_model**-0.5), (self.vocabulary, d_model))
        self.source_positions = PositionTable(self.positions, self.length, d_model)
        self.target_positions = PositionTable(self.positions, self.length, d_model)
        self.source_drop = Dropout(self.P_drop)
        self.target_drop = Dropout(self.P_drop)
        self.encoder = [EncoderLayer(self.shape, self.P_drop) for _ in range(self.shape.N)]
        self.decoder = [DecoderLayer(self.shape, self.P_drop) for _ in range(self.shape.N)]

    def __call__(self, source: Int[Array, "*B N"], target: Int[Array, "*B M"],
                 source_positions: Int[Array, "*B N"], target_positions: Int[Array, "*B M"], *,
                 source_mask: Mask, target_mask: Mask, cross_mask: Mask) -> Float[Array, "*B M D"]:
        """The decoder's last hidden states; their product with the embedding matrix gives the logits."""
        memory = self.encode(source, source_positions, source_mask)
        x = self._embed(target, self.target_positions(target_positions), self.target_drop)
        for layer in self.decoder:
            x = layer(x, memory, target_mask, cross_mask)
        return x

    def encode(self, source: Int[Array, "*B N"], positions: Int[Array, "*B N"], mask: Mask) -> Float[Array, "*B N D"]:
        x = self._embed(source, self.source_positions(positions), self.source_drop)
        for layer in self.encoder:
            x = layer(x, mask)
        return x

    def logits(self, hidden: Float[Array, "*B M D"]) -> Float[Array, "*B M vocabulary"]:
        return hidden @ self.embedding.T

    def remember(self, memory: Float[Array, "*B N D"]):
        """Each decoder layer's keys and values of the encoder's output, computed once per sentence."""
        return tuple(layer.cross_attention.keys_and_values(memory) for layer in self.decoder)

    def empty_caches(self, batch_shape: tuple[int, ...], length: int, dtype):
        """Room for each decoder layer's own keys and values, of `length` target pieces."""
        return tuple(layer.self_attention.empty_cache(batch_shape, length, dtype) for layer in self.decoder)

    def step(self, piece: Int[Array, "*B"], t: Int[Array, ""], caches, cross, cross_mask: Mask):
        """Logits (*B, vocabulary) of the piece after `piece`, which stands at position t, and the new caches."""
        position = jnp.broadcast_to(t, (*piece.shape, 1))
        x = self._embed(piece[..., None], self.target_positions(position), self.target_drop)
        kept = []
        for layer, cache, keys in zip(self.decoder, caches, cross, strict=True):
            x, cache = layer.step(x, t, cache, keys, cross_mask)
            kept.append(cache)
        return self.logits(x)[..., 0, :], tuple(kept)

    def _embed(self, pieces, positions, drop):
        return drop(self.embedding[pieces] * self.shape.d_model**0.5 + positions)
