"""The recurrent encoder-decoder with attention, which came before the Transformer.

An encoder of two directions gives h_j, a decoder u_i, which are the queries; the context
c_i is what one head of attention takes from the h_j; then z_i = tanh(W_c [c_i; u_i] + b_c)
and p(y_i) = softmax(W_s z_i + b_s) (Luong et al. 2015, section 3, "global"; its scores and
that of Bahdanau et al. 2015). Without attention c_i is the same for all i, the encoder's
last states, which also start the decoder (Cho et al. 2014). The cells are Linen's own.

It has the methods of `Transformer`, so that it trains, decodes and is scored like that.
B batch (any leading axes), N source tokens, M target tokens, D = d_model, Y vocabulary,
K hypotheses of one sentence, T entries of a cache.
"""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attn.kernels.cached import as_cached, over_cache
from attn.lookup import entries, rows
from attn.masks import Mask
from attn.models.dropout import Dropout
from attn.models.embeddings import EMBEDDINGS, embedding_matrices, output_matrix
from attn.models.linear import Linear
from attn.models.multihead import check_name
from attn.models.parameters import normaliser_of, with_parameters
from attn.models.products import of_score
from attn.models.recurrence import CELLS, MATRICES, Recurrence
from attn.models.selection import SELECTIONS, Baseline, select
from attn.models.visibility import dense_mask
from attn.scores import SCORES, score_init


class SingleHead(nn.Module):
    """One head of attention between vectors as they are, without projections.

    c_i = Σ_j w_ij h_j, with weights w_i = normaliser(score(u_i, h)). With the collection
    "weights" mutable in `apply`, the attention weights (*B, 1, M, N) are kept there.
    `score`, `normaliser` and `selection` are as for `MultiHeadAttention`.
    """

    d_model: int
    score: str | type | Callable = "bilinear"
    normaliser: str | type | Callable = "softmax"
    selection: str = "soft"

    def setup(self):
        """Draws the score's parameters."""
        init_score = score_init(self.score)
        self.score_value = with_parameters(
            self, "score", lambda key: init_score(key, 1, self.d_model, self.d_model)
        )
        self.normaliser_value = normaliser_of(self, 1)
        if self.selection == "sampled":
            self.baseline = Baseline()

    def __call__(
        self,
        u: Float[Array, "*B M D"],
        h: Float[Array, "*B N D"],
        mask: Mask,
    ) -> Float[Array, "*B M D"]:
        """Computes the contexts of the queries u among h."""
        q = u[..., None, :]
        k = h[..., None, :]
        arguments = dict(
            score=self.score_value, normaliser=self.normaliser_value, mask=mask
        )
        return select(self, u, q, k, k, arguments, {})[..., 0, :]

    def attend_to_memory(
        self,
        u: Float[Array, "*B K D"],
        memory,
        visible: Bool[Array, "*B n N"],
    ) -> Float[Array, "*B K D"]:
        """Computes the same from h in the layout of `as_cached`."""
        out = over_cache(
            u[..., None, :],
            *memory,
            score=self.score_value,
            normaliser=self.normaliser_value,
            visible=visible,
            best=self.selection != "soft",
        )
        return out[..., 0, :]


class RNN(nn.Module):
    """The encoder-decoder.

    Dropout is on embeddings, between layers, and on z, where an rng named "dropout" is
    given to `apply`. Parameters beside embeddings and score, with N = 1 and LSTM cells:
    6·D² + 4·D of the encoder, 8·D² + 4·D of the decoder, D² + D of its start, 2·D² + D of
    W_c, and Y of b_s.

    Attributes:
      length: the most tokens of a translation.
      score: as for `MultiHeadAttention`, or "none" for no attention.
      embeddings: those of `Design`, multiplied by √d_model.
      selection: as for `MultiHeadAttention`.
      P_drop: may be traced.
      normaliser: as for `MultiHeadAttention`.

    Raises:
      ValueError: names that are unknown, or a d_model that is not even.
    """

    vocabulary: int
    length: int
    d_model: int
    N: int = 1
    cell: str = "lstm"
    score: str | type | Callable = "bilinear"
    embeddings: str = "tied"
    selection: str = "soft"
    P_drop: float | Float[Array, ""] = 0.1
    normaliser: str | type | Callable = "softmax"

    def setup(self):
        """Makes embeddings, cells and attention."""
        self._check()
        names = EMBEDDINGS[self.embeddings]
        matrices = embedding_matrices(self, names, self.vocabulary, self.d_model)
        for name, matrix in matrices.items():
            setattr(self, name, matrix)
        zeros = nn.initializers.zeros
        self.output_bias = self.param("output_bias", zeros, (self.vocabulary,))
        layers = range(self.N)
        self.encoder = [
            Recurrence(self.d_model, self.cell, both_ways=True) for _ in layers
        ]
        self.decoder = [Recurrence(self.d_model, self.cell) for _ in layers]
        self.start = [Linear(self.d_model) for _ in layers]
        # One for the input of each layer of both sides, and the last for z.
        self.drops = [Dropout(self.P_drop) for _ in range(2 * self.N + 1)]
        if self.score != "none":
            self.cross_attention = SingleHead(
                self.d_model, self.score, self.normaliser, self.selection
            )
        self.combine = Linear(self.d_model)

    @nn.nowrap
    def products(self, n, m):
        """Counts the products of a forward pass with n source and m target tokens.

            N·n·3/2·g·D² + m·(2·N·g·D² + 2·D² + D·Y) + N·D² + those of attention

        with g = 4, 3, 1 matrices of a cell (LSTM, GRU, tanh). Attention takes n·m·D for its
        values, and what the score states: n·m·D by dot products.
        """
        D = self.d_model
        cell = MATRICES[self.cell] * D**2
        encoder = self.N * n * 3 * cell // 2
        decoder = m * (2 * self.N * cell + 2 * D**2) + self.N * D**2
        others = encoder + decoder + m * D * self.vocabulary
        if self.score == "none":
            return others
        score = of_score(self.score, D)
        if score is None:
            return None
        return others + m * score.query + n * score.key + n * m * (score.pair + D)

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
    ) -> Float[Array, "*B M E"]:
        """Computes [z; 1], whose product with `output_matrix` gives the logits.

        Positions are there for the interface of `Transformer`; a recurrence needs none.
        """
        memory = self.encode(source, source_positions, source_mask)
        n = source.shape[-1]
        # For each query, because each sentence of a packed row has its own summary.
        visible = dense_mask(cross_mask, source.shape[:-1], target.shape[-1], n)
        summary = _last_states(memory, visible)
        u = self._embed(self.embedding, target)
        for i, layer in enumerate(self.decoder):
            u = layer(self.drops[self.N + i](u), target_mask, self._start(i, summary))
        context = summary
        if self.score != "none":
            context = self.cross_attention(u, memory, cross_mask)
        return self._combined(context, u)

    def encode(
        self,
        source: Int[Array, "*B N"],
        positions: Int[Array, "*B N"],
        mask: Mask,
    ) -> Float[Array, "*B N D"]:
        """Computes h, the top layer's states.

        The first half of D is of the cells that read forwards.
        """
        tied = self.embeddings == "tied"
        h = self._embed(self.embedding if tied else self.source_embedding, source)
        # The drops after the first N are the decoder's and that of z.
        for drop, layer in zip(self.drops, self.encoder, strict=False):
            h = layer(drop(h), mask)
        return h

    def logits(self, hidden: Float[Array, "*B M E"]) -> Float[Array, "*B M Y"]:
        """Computes the logits of [z; 1]."""
        return hidden @ output_matrix(self.variables["params"]).T

    def project_memory(self, memory: Float[Array, "*B N D"]):
        """Returns h in the layout that attention in a step takes."""
        return as_cached(memory[..., None, :], memory[..., None, :])

    def empty_caches(
        self,
        batch_shape: tuple[int, ...],
        entries: int,
        dtype,
        hypotheses: int | None = None,
    ):
        """Returns room for each decoder layer's states.

        There is an entry for each position and hypothesis, whose number is not needed.
        """
        return tuple(
            layer.empty_cache(batch_shape, entries, dtype) for layer in self.decoder
        )

    def decode_step(
        self,
        tokens: Int[Array, "*B K"],
        t: Int[Array, ""],
        caches,
        memory,
        visible: Bool[Array, "*B K T"],
        memory_visible: Bool[Array, "*B 1 N"],
    ):
        """Computes [z; 1] (*B, K, D + 1) after `tokens` at position t.

        Returns it and the new caches; see `Transformer.decode_step`.
        """
        u = self._embed(self.embedding, tokens)
        # The values, because the cache keeps keys with their tokens last.
        summary = _last_states(memory[1][..., 0, :, :], memory_visible)
        summary = jnp.broadcast_to(summary, u.shape)
        new_caches = []
        for i, (layer, cache) in enumerate(zip(self.decoder, caches, strict=True)):
            x = self.drops[self.N + i](u)
            start = self._start(i, summary)
            u, cache = layer.decode_step(x, t, cache, visible, start)
            new_caches.append(cache)
        context = summary
        if self.score != "none":
            context = self.cross_attention.attend_to_memory(u, memory, memory_visible)
        return self._combined(context, u), tuple(new_caches)

    def _check(self):
        check_name("selection", self.selection, SELECTIONS)
        check_name("cell", self.cell, CELLS)
        check_name("embeddings", self.embeddings, EMBEDDINGS)
        if isinstance(self.score, str):
            check_name("score", self.score, ("none", *SCORES))

    def _embed(self, matrix, tokens):
        return rows(matrix, tokens) * self.d_model**0.5

    def _start(self, i, summary):
        """Computes the state of decoder layer i before the first token.

        Both states of an LSTM are alike.
        """
        start = jnp.tanh(self.start[i](summary))
        return jax.tree.map(lambda _: start, self.decoder[i].forward.zeros(start))

    def _combined(self, context, u):
        both = jnp.concatenate([context, u], axis=-1)
        z = self.drops[-1](jnp.tanh(self.combine(both)))
        # The 1 meets the output's bias, a column of the matrix, so that loss and beam
        # search need no case for a bias.
        return jnp.concatenate([z, jnp.ones_like(z[..., :1])], axis=-1)


def _last_states(memory, visible):
    """Returns for each query the last states (*B, M, D) of both directions.

    They are those over the run of positions (*B, M, N) that it sees.
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
