"""An encoder with attention pooling over it, which gives a label to a text.

One learned query u compares itself with the encoder's states h_j; their mean by the weights
that this gives, s = Σ_j α_j h_j, leads to the logits W s + b. With an additive score this is
the word attention of "Hierarchical Attention Networks" (Yang et al. 2016, equations 5 to 7),
v·tanh(W_k h_j + W_q u), whose W_q u is their bias; of several queries, Lin et al. 2017. Layers,
dropout, embeddings and deviations are those of the Transformer's encoder. B rows, N tokens, S
texts of a row, D = d_model, L labels.
"""

from typing import TYPE_CHECKING, Any

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from attn.context import Context
from attn.nn.blocks import Layer, Stacked
from attn.nn.layers import Dropout, PositionTable
from attn.nn.products import of_score
from attn.nn.rnn import SingleHead
from attn.nn.transformer import of_stack

if TYPE_CHECKING:
    from attn import config


class Classifier(Stacked):
    """The classifier; attributes as for `Stacked`, `config` an `attn.config.Classifier`.

    Parameters of the paper's layers, beside the embedding and those of the pooling's score:
    N·(2·d_model·h·(d_k + d_v) + 2·d_model·d_ff + d_ff + 5·d_model) + d_model +
    L·(d_model + 1).

    Attributes:
      labels: L, the number of labels.

    Raises:
      ValueError: a description that makes no sense, or layers that differ with scan.
    """

    config: "config.Classifier"
    labels: int = 2

    def setup(self):
        """Makes embeddings, position table, layers, the query and the output."""
        config: Any = self.config
        d_model = config.d_model
        self._draw_embeddings(("embedding",))
        positions = config.tables()["source_positions"]
        self.source_positions = PositionTable(positions, self.length, d_model)
        self.source_drop = Dropout("P_drop")
        self.encoder = [Layer(block) for block in config.stack("encoder")]
        if norm := config.final_norm("encoder"):
            self.encoder_norm = norm.build()
        normal = nn.initializers.normal(d_model**-0.5)
        self.query = self.param("query", normal, (d_model,))
        # The name by which attention to another text is known.
        self.cross_attention = SingleHead(
            d_model, config.pooling_score, config.pooling_normaliser
        )
        self.pooled_drop = Dropout("P_drop")
        glorot = nn.initializers.glorot_uniform()
        self.output = self.param("output", glorot, (self.labels, d_model))
        zeros = nn.initializers.zeros
        self.output_bias = self.param("output_bias", zeros, (self.labels,))

    def __call__(
        self,
        source: Int[ArrayLike, "B N"],
        target: Int[ArrayLike, "B S"],
        source_ctx: Context,
        target_ctx: Context,
    ) -> Float[Array, "B S E"]:
        """Computes [s; 1] of each text, whose product with `output_matrix` gives the logits.

        Of `target` only the shape counts; the mask of the memory of `target_ctx` says which
        tokens are of which text.
        """
        memory = self.encode(source, source_ctx)
        queries = jnp.broadcast_to(self.query, (*jnp.shape(target), len(self.query)))
        pooled = self.cross_attention(queries, target_ctx.replace(memory=memory))
        pooled = self.pooled_drop(pooled, target_ctx)
        # The 1 meets the output's bias.
        return jnp.concatenate([pooled, jnp.ones_like(pooled[..., :1])], axis=-1)

    def encode(
        self, source: Int[ArrayLike, "B N"], ctx: Context
    ) -> Float[Array, "B N D"]:
        """Computes the encoder's states."""
        table, drop = self.source_positions, self.source_drop
        x = self._embed(self.embedding, source, table, drop, ctx)
        x, _ = self._run(self.encoder, x, ctx)
        return self.encoder_norm(x) if self.config.final_norm("encoder") else x

    @nn.nowrap
    def products(self, n: Any, m: Any) -> Any:
        """Counts the products of a forward pass with n tokens, whatever m is.

        They are those of the encoder, and n·(D + what the score states) + L·D.
        """
        D = self.config.d_model
        score = of_score(self.config.pooling_score, D)
        counts: list[Any] = [None]
        if score is not None:
            counts = [score.query + n * (score.key + score.pair + D) + self.labels * D]
        counts += of_stack(self.config.stack("encoder"), n, causal=False)
        return None if any(count is None for count in counts) else sum(counts)
