"""The recurrent encoder-decoder with attention, which came before the Transformer.

An encoder of two directions gives h_j, a decoder u_i, which are the queries; the context
c_i is what one head of attention takes from the h_j; then z_i = tanh(W_c [c_i; u_i] + b_c)
and p(y_i) = softmax(W_s z_i + b_s) (Luong et al. 2015, section 3, "global"; its scores and
that of Bahdanau et al. 2015). Without attention c_i is the same for all i, the encoder's
last states, which also start the decoder (Cho et al. 2014). The cells are Linen's own.

It has the methods of `Transformer`, so that it trains, decodes and is scored like that.
B examples, N source tokens, M target tokens, D = d_model, Y vocabulary,
K hypotheses of one sentence, T entries of a cache.
"""

from typing import TYPE_CHECKING, Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from attn.attention import attention
from attn.context import Context, in_context
from attn.kernels.cached import as_cached, over_cache
from attn.lookup import entries, rows
from attn.masks.near import dense_mask
from attn.mixers.recurrence import MATRICES, Recurrence
from attn.nn.attention import normaliser_of, with_parameters
from attn.nn.layers import (
    EMBEDDINGS,
    Dropout,
    Linear,
    embedding_matrices,
    output_matrix,
)
from attn.nn.products import of_score
from attn.nn.selection import Baseline, select
from attn.scores import ScoreChoice, score_init

if TYPE_CHECKING:
    from attn.config import RNN as RNNConfig


class SingleHead(nn.Module):
    """One head of attention between vectors as they are, without projections.

    c_i = Σ_j w_ij h_j, with weights w_i = normaliser(score(u_i, h)). With the collection
    "weights" mutable in `apply`, the attention weights (B, 1, M, N) are kept there.
    `score`, `normaliser` and `selection` are as for `MultiHeadAttention`.
    """

    d_model: int
    score: ScoreChoice
    normaliser: ScoreChoice
    selection: str = "soft"

    def setup(self):
        """Draws the score's parameters."""
        init_score = score_init(self.score)
        self.score_value = with_parameters(
            self, "score", lambda key: init_score(key, 1, self.d_model, self.d_model)
        )
        self.normaliser_value = normaliser_of(self, self.normaliser, self.selection, 1)
        if self.selection == "sampled":
            self.baseline = Baseline()

    def __call__(self, u: Float[Array, "B M D"], ctx: Context) -> Float[Array, "B M D"]:
        """Computes the contexts of the queries u among h, the context's memory.

        In a step the memory is h in the layout of `as_cached`.
        """
        q = u[..., None, :]
        values = dict(
            score=in_context(self.score_value, ctx), normaliser=self.normaliser_value
        )
        if ctx.decoding is not None:
            visible = ctx.decoding.memory_visible
            best = self.selection != "soft"
            out = over_cache(q, *ctx.memory, visible=visible, best=best, **values)
            return out[..., 0, :]
        k = ctx.memory[..., None, :]
        values["mask"] = ctx.memory_mask
        return select(self, u, q, k, k, values, {}, attention, ctx)[..., 0, :]


class RNN(nn.Module):
    """The encoder-decoder.

    Dropout is on embeddings, between layers, and on z, with the context's number P_drop,
    where the context has keys. Parameters beside embeddings and score, with N = 1 and LSTM
    cells: 6·D² + 4·D of the encoder, 8·D² + 4·D of the decoder, D² + D of its start,
    2·D² + D of W_c, and Y of b_s.

    Attributes:
      config: an `attn.config.RNN`.
      vocabulary: Y, the number of tokens.
      length: the most tokens of a translation.

    Raises:
      ValueError: a description that makes no sense.
    """

    config: "RNNConfig"
    vocabulary: int
    length: int

    def setup(self):
        """Makes embeddings, cells and attention."""
        c = self.config
        c.check()
        names = EMBEDDINGS[c.embeddings]
        matrices = embedding_matrices(self, names, self.vocabulary, c.d_model)
        for name, matrix in matrices.items():
            setattr(self, name, matrix)
        zeros = nn.initializers.zeros
        self.output_bias = self.param("output_bias", zeros, (self.vocabulary,))
        layers = range(c.N)
        self.encoder = [Recurrence(c.d_model, c.cell, both_ways=True) for _ in layers]
        self.decoder = [Recurrence(c.d_model, c.cell) for _ in layers]
        self.start = [Linear(c.d_model) for _ in layers]
        # One for the input of each layer of both sides, and the last for z.
        self.drops = [Dropout("P_drop") for _ in range(2 * c.N + 1)]
        if c.score != "none":
            self.cross_attention = SingleHead(
                c.d_model, c.score, c.normaliser, c.selection
            )
        self.combine = Linear(c.d_model)

    @nn.nowrap
    def products(self, n, m):
        """Counts the products of a forward pass with n source and m target tokens.

            N·n·3/2·g·D² + m·(2·N·g·D² + 2·D² + D·Y) + N·D² + those of attention

        with g = 4, 3, 1 matrices of a cell (LSTM, GRU, tanh). Attention takes n·m·D for its
        values, and what the score states: n·m·D by dot products.
        """
        c = self.config
        D = c.d_model
        cell = MATRICES[c.cell] * D**2
        encoder = c.N * n * 3 * cell // 2
        decoder = m * (2 * c.N * cell + 2 * D**2) + c.N * D**2
        others = encoder + decoder + m * D * self.vocabulary
        if c.score == "none":
            return others
        score = of_score(c.score, D)
        if score is None:
            return None
        return others + m * score.query + n * score.key + n * m * (score.pair + D)

    def __call__(
        self,
        source: Int[ArrayLike, "B N"],
        target: Int[ArrayLike, "B M"],
        source_ctx: Context,
        target_ctx: Context,
    ) -> Float[Array, "B M E"]:
        """Computes [z; 1], whose product with `output_matrix` gives the logits.

        Places are there for the interface of `Transformer`; a recurrence needs none.
        """
        memory = self.encode(source, source_ctx)
        return self.decode(target, target_ctx.replace(memory=memory))[0]

    def encode(
        self, source: Int[ArrayLike, "B N"], ctx: Context
    ) -> Float[Array, "B N D"]:
        """Computes h, the top layer's states.

        The first half of D is of the cells that read forwards.
        """
        tied = self.config.embeddings == "tied"
        h = self._embed(self.embedding if tied else self.source_embedding, source)
        # The drops after the first N are the decoder's and that of z.
        for drop, layer in zip(self.drops, self.encoder, strict=False):
            h, ctx = layer(drop(h, ctx), ctx)
        return h

    def decode(
        self, tokens: Int[ArrayLike, "B M"], ctx: Context
    ) -> tuple[Float[Array, "B M E"], Context]:
        """Computes [z; 1] of all target tokens or of a step, see `Transformer.decode`.

        Returns it, and the context with the new caches.
        """
        u = self._embed(self.embedding, tokens)
        summary = self._summary(u, ctx)
        kept = ctx.cache
        caches = []
        for i, layer in enumerate(self.decoder):
            if ctx.decoding is not None:
                ctx = ctx.replace(cache=kept[i])
            x = self.drops[self.config.N + i](u, ctx)
            u, ctx = layer(x, ctx, self._start(i, summary))
            caches.append(ctx.cache)
        context = summary
        if self.config.score != "none":
            context = self.cross_attention(u, ctx)
        both = jnp.concatenate([context, u], axis=-1)
        z = self.drops[-1](jnp.tanh(self.combine(both)), ctx)
        # The 1 meets the output's bias, a column of the matrix, so that loss and beam
        # search need no case for a bias.
        z = jnp.concatenate([z, jnp.ones_like(z[..., :1])], axis=-1)
        return z, ctx.replace(cache=tuple(caches))

    def _summary(self, u, ctx):
        """Returns the last states (B, M, D) of what each query sees of the source."""
        if ctx.decoding is None:
            # For each query, because each sentence of a packed row has its own summary.
            batch, n = ctx.memory.shape[:2]
            visible = dense_mask(ctx.memory_mask, (batch,), u.shape[1], n)
            return _last_states(ctx.memory, visible)
        # The values, because the cache keeps keys with their tokens last.
        values = ctx.memory[1][..., 0, :, :]
        return jnp.broadcast_to(
            _last_states(values, ctx.decoding.memory_visible), u.shape
        )

    def logits(self, hidden: Float[Array, "B M E"]) -> Float[Array, "B M Y"]:
        """Computes the logits of [z; 1]."""
        return hidden @ output_matrix(self.variables["params"]).T

    def project_memory(self, memory: Float[Array, "B N D"]):
        """Returns h in the layout that attention in a step takes."""
        return as_cached(memory[..., None, :], memory[..., None, :])

    def empty_caches(
        self,
        batch: int,
        length: int,
        dtype: Any,
        hypotheses: int = 1,
        last: int | None = None,
    ) -> tuple[Any, ...]:
        """Returns room for each decoder layer's states, see `Transformer.empty_caches`."""
        entries = length * hypotheses
        return tuple(layer.empty_cache(batch, entries, dtype) for layer in self.decoder)

    def _embed(self, matrix, tokens):
        return rows(matrix, jnp.asarray(tokens)) * self.config.d_model**0.5

    def _start(self, i, summary):
        """Computes the state of decoder layer i before the first token.

        Both states of an LSTM are alike.
        """
        start = jnp.tanh(self.start[i](summary))
        return jax.tree.map(lambda _: start, self.decoder[i].forward.zeros(start))


def _last_states(memory, visible):
    """Returns for each query the last states (B, M, D) of both directions.

    They are those over the run of positions (B, M, N) that it sees.
    """
    # Forward cells have read all at the last position, backward ones at the first.
    forward, backward = jnp.split(memory, 2, axis=-1)
    first = visible.argmax(-1)
    last = visible.shape[-1] - 1 - jnp.flip(visible, -1).argmax(-1)
    ends = [
        entries(forward, last[..., None], -2),
        entries(backward, first[..., None], -2),
    ]
    return jnp.concatenate(ends, axis=-1)
