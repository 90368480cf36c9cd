"""A language model with masked self-attention: a decoder by itself.

It gives p(y_t | y_1 … y_t−1) for all t in one pass. Layers, dropout, embeddings and
deviations are those of the Transformer's decoder, without attention to a source (Liu et
al. 2018, section 4.2.3; Radford et al. 2018). B texts, N tokens, D = d_model,
Y vocabulary, K texts side by side.
"""

from typing import TYPE_CHECKING, Any

import flax.linen as nn
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from attn.context import Context
from attn.nn.blocks import Layer, Stacked
from attn.nn.layers import (
    EMBEDDINGS,
    Dropout,
    PositionTable,
    output_matrix,
)
from attn.nn.transformer import of_stack

if TYPE_CHECKING:
    from attn import config


class LanguageModel(Stacked):
    """The decoder by itself; attributes as for `Stacked`, `config` a `LanguageModel` of that file.

    Parameters of the paper's design, beside the embedding: N·(2·d_model·h·(d_k + d_v) +
    2·d_model·d_ff + d_ff + 5·d_model).

    Raises:
      ValueError: a description that makes no sense, or layers that differ with scan.
    """

    config: "config.LanguageModel"

    def setup(self):
        """Makes embeddings, position table and layers."""
        config: Any = self.config
        names = [
            name for name in EMBEDDINGS[config.embeddings] if name != "source_embedding"
        ]
        self._draw_embeddings(names)
        positions = config.tables()["target_positions"]
        self.target_positions = PositionTable(positions, self.length, config.d_model)
        self.drop = Dropout("P_drop")
        self.decoder = [Layer(block, True) for block in config.stack("decoder")]
        if norm := config.final_norm("decoder"):
            self.decoder_norm = norm.build()

    def __call__(
        self, tokens: Int[ArrayLike, "B N"], ctx: Context
    ) -> Float[Array, "B N D"]:
        """Computes the last hidden states.

        Their product with `output_matrix` gives the logits of the tokens that follow.
        """
        return self.decode(tokens, ctx)[0]

    def decode(
        self, tokens: Int[ArrayLike, "B N"], ctx: Context
    ) -> tuple[Float[Array, "B N D"], Context]:
        """Computes the hidden states of all tokens or of a step, see `Transformer.decode`.

        Returns them, and the context with the new caches.
        """
        x = self._embed(self.embedding, tokens, self.target_positions, self.drop, ctx)
        x, ctx = self._run(self.decoder, x, ctx)
        x = self.decoder_norm(x) if self.config.final_norm("decoder") else x
        return x, ctx

    def logits(self, hidden: Float[Array, "B N D"]) -> Float[Array, "B N Y"]:
        """Computes the logits of hidden states."""
        return hidden @ output_matrix(self.variables["params"]).T

    def empty_caches(
        self,
        batch: int,
        length: int,
        dtype: Any,
        hypotheses: int = 1,
        last: int | None = None,
    ) -> tuple[Any, ...]:
        """Returns room for what each layer keeps, see `Transformer.empty_caches`."""
        return self._empty_caches(self.decoder, batch, length, dtype, hypotheses, last)

    @nn.nowrap
    def products(self, n: Any, m: Any) -> Any:
        """Counts the products of a forward pass with m tokens, whatever n is.

        They are those of `Transformer.products` without a source.
        """
        counts = [m * self.config.d_model * self.vocabulary]
        counts += of_stack(self.config.stack("decoder"), m, causal=True)
        return None if any(count is None for count in counts) else sum(counts)
