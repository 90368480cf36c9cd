"""The recurrent encoder-decoder with attention, which came before the Transformer.

An encoder of two directions gives h_j, a decoder u_i, which are the queries; the context c_i is what one head of
attention finds among the h_j; then z_i = tanh(W_c [c_i; u_i] + b_c) and p(y_i) = softmax(W_s z_i + b_s) (Luong et al.
2015, section 3, "global"; its scores and that of Bahdanau et al. 2015). Without attention c_i is the same for all i,
the encoder's last states, which also start the decoder (Cho et al. 2014). Linen's own cells.

It has the methods of `Transformer`, so that it trains, decodes and is scored like that. B batch (any leading axes), N
source pieces, M target pieces, D = d_model, Y vocabulary, K hypotheses of one sentence, T = the most target pieces.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attn.dropout import Dropout
from attn.kernels.cached import as_cached, over_cache
from attn.layers import EMBEDDINGS, Linear, embedding_matrices, output_matrix
from attn.masks import Mask
from attn.mixing import CELLS, Recurrence, whole
from attn.multihead import CHOICES, Baseline, attend, with_parameters
from attn.scores import SCORES


class SingleHead(nn.Module):
    """One head of attention between vectors as they are, without projections: c_i = Σ_j softmax_j(score(u_i, h_j)) h_j.

    With the collection "weights" mutable in `apply`, the attention weights (*B, 1, M, N) are kept there. `choice` as
    for `MultiHeadAttention`.
    """

    d_model: int
    score: str = "bilinear"
    choice: str = "soft"

    def setup(self):
        self.compare = with_parameters(
            self,
            "score",
            lambda key: SCORES[self.score](key, 1, self.d_model, self.d_model),
        )
        if self.choice == "sampled":
            self.baseline = Baseline()

    def __call__(
        self, u: Float[Array, "*B M D"], h: Float[Array, "*B N D"], mask: Mask
    ) -> Float[Array, "*B M D"]:
        q, k = u[..., None, :], h[..., None, :]
        return attend(self, u, q, k, k, dict(score=self.compare, mask=mask), {})[
            ..., 0, :
        ]

    def recall(
        self, u: Float[Array, "*B K D"], memory, seen: Bool[Array, "*B n N"]
    ) -> Float[Array, "*B K D"]:
        """The same of what `as_cached` made of h."""
        return over_cache(
            u[..., None, :],
            *memory,
            score=self.compare,
            visible=seen,
            best=self.choice != "soft",
        )[..., 0, :]


class RNN(nn.Module):
    """The encoder-decoder; `length` pieces of a translation at most, `P_drop` may be traced.

    Dropout is on embeddings, between layers, and on z, where an rng named "dropout" is given to `apply`. With `score`
    "none" there is no attention; `choice` is that of `MultiHeadAttention`. `embeddings` are those of `Design`,
    multiplied by √d_model.

    Parameters beside embeddings and score, with N = 1 and LSTM cells: 6·D² + 4·D of the encoder, 8·D² + 4·D of the
    decoder, D² + D of its start, 2·D² + D of W_c, and Y of b_s.

    Raises:
      ValueError: names that are unknown, or a d_model that is not even.
    """

    vocabulary: int
    length: int
    d_model: int
    N: int = 1
    cell: str = "lstm"
    score: str = "bilinear"
    embeddings: str = "tied"
    choice: str = "soft"
    P_drop: float | Float[Array, ""] = 0.1

    def setup(self):
        _check(self)
        names = EMBEDDINGS[self.embeddings]
        for name, matrix in embedding_matrices(
            self, names, self.vocabulary, self.d_model
        ).items():
            setattr(self, name, matrix)
        self.output_bias = self.param(
            "output_bias", nn.initializers.zeros, (self.vocabulary,)
        )
        self.encoder = [
            Recurrence(self.d_model, self.cell, both_ways=True) for _ in range(self.N)
        ]
        self.decoder = [Recurrence(self.d_model, self.cell) for _ in range(self.N)]
        self.start = [Linear(self.d_model) for _ in range(self.N)]
        self.drops = [Dropout(self.P_drop) for _ in range(2 * self.N + 1)]
        if self.score != "none":
            self.cross_attention = SingleHead(self.d_model, self.score, self.choice)
        self.combine = Linear(self.d_model)

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
        """[z; 1], whose product with `output_matrix` gives the logits. Positions are not looked at."""
        memory = self.encode(source, source_positions, source_mask)
        summary = _summary(
            memory,
            whole(cross_mask, source.shape[:-1], target.shape[-1], source.shape[-1]),
        )
        u = self._embed(self.embedding, target)
        for i, layer in enumerate(self.decoder):
            u = layer(self.drops[self.N + i](u), target_mask, self._start(i, summary))
        context = (
            summary
            if self.score == "none"
            else self.cross_attention(u, memory, cross_mask)
        )
        return self._combined(context, u)

    def encode(
        self, source: Int[Array, "*B N"], positions: Int[Array, "*B N"], mask: Mask
    ) -> Float[Array, "*B N D"]:
        """h, the top layer's states; the first half of D of those that read forwards."""
        h = self._embed(
            getattr(
                self, "embedding" if self.embeddings == "tied" else "source_embedding"
            ),
            source,
        )
        for drop, layer in zip(self.drops, self.encoder, strict=False):
            h = layer(drop(h), mask)
        return h

    def logits(self, hidden: Float[Array, "*B M E"]) -> Float[Array, "*B M Y"]:
        return hidden @ output_matrix(self.variables["params"]).T

    def remember(self, memory: Float[Array, "*B N D"]):
        """h as attention in a step wants it."""
        return as_cached(memory[..., None, :], memory[..., None, :])

    def empty_caches(self, batch_shape: tuple[int, ...], entries: int, dtype):
        """Room for each decoder layer's states: an entry for each position and hypothesis."""
        return tuple(
            layer.empty_cache(batch_shape, entries, dtype) for layer in self.decoder
        )

    def step(
        self,
        pieces: Int[Array, "*B K"],
        t: Int[Array, ""],
        caches,
        cross,
        own: Bool[Array, "*B K T"],
        seen: Bool[Array, "*B 1 N"],
    ):
        """[z; 1] (*B, K, D + 1) after `pieces`, which stand at position t, and the new caches; see `Transformer.step`."""
        u = self._embed(self.embedding, pieces)
        summary = jnp.broadcast_to(_summary(cross[1][..., 0, :, :], seen), u.shape)
        kept = []
        for i, (layer, cache) in enumerate(zip(self.decoder, caches, strict=True)):
            u, cache = layer.step_side_by_side(
                self.drops[self.N + i](u), t, cache, own, self._start(i, summary)
            )
            kept.append(cache)
        context = (
            summary
            if self.score == "none"
            else self.cross_attention.recall(u, cross, seen)
        )
        return self._combined(context, u), tuple(kept)

    def _embed(self, matrix, pieces):
        return matrix[pieces] * self.d_model**0.5

    def _start(self, i, summary):
        """The state of decoder layer i before the first piece; both of an LSTM's are alike."""
        start = jnp.tanh(self.start[i](summary))
        return jax.tree.map(lambda _: start, self.decoder[i].forward.zeros(start))

    def _combined(self, context, u):
        z = self.drops[-1](
            jnp.tanh(self.combine(jnp.concatenate([context, u], axis=-1)))
        )
        return jnp.concatenate([z, jnp.ones_like(z[..., :1])], axis=-1)


def _summary(memory, visible):
    """For each query the last states (*B, M, D) of both directions over the run of positions (*B, M, N) it sees."""
    forward, backward = jnp.split(memory, 2, axis=-1)
    first, last = (
        visible.argmax(-1),
        visible.shape[-1] - 1 - jnp.flip(visible, -1).argmax(-1),
    )
    ends = [
        jnp.take_along_axis(x, at[..., None], axis=-2)
        for x, at in ((forward, last), (backward, first))
    ]
    return jnp.concatenate(ends, axis=-1)


def _check(model):
    known = dict(
        choice=CHOICES,
        score=("none", *SCORES),
        cell=tuple(CELLS),
        embeddings=EMBEDDINGS,
    )
    for name, choices in known.items():
        if (value := getattr(model, name)) not in choices:
            raise ValueError(f"unknown {name} {value!r}; known: {', '.join(choices)}")
