"""The Transformer of "Attention Is All You Need": encoder, decoder, and the whole.

Post-norm, LayerNorm(x + Dropout(Sublayer(x))); dropout also on the sums of embeddings and
positions; one matrix for both embeddings and the output; embeddings × √d_model.
`attn.config.Transformer` names the deviations. B examples, N source tokens, M target
tokens, D = d_model, Y vocabulary, K hypotheses of one sentence.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import flax.linen as nn
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from attn.arithmetic import stated
from attn.context import Context
from attn.nn.blocks import Layer, Stacked
from attn.nn.layers import EMBEDDINGS, Dropout, PositionTable
from attn.nn.norms import Norm
from attn.nn.products import of_attention

if TYPE_CHECKING:
    from attn import config


class Transformer(Stacked):
    """The encoder-decoder; attributes as for `Stacked`, `config` an `attn.config.Transformer`.

    Parameters of the paper's design, beside the embeddings: N·(6·d_model·h·(d_k + d_v) +
    4·d_model·d_ff + 2·d_ff + 12·d_model), which is 44.10 M for the paper's base.

    Raises:
      ValueError: a description that makes no sense, or layers that differ with scan.
    """

    config: "config.Transformer"

    def setup(self):
        """Makes embeddings, position tables and layers."""
        config: Any = self.config
        self._draw_embeddings(EMBEDDINGS[config.embeddings])
        d_model = config.d_model
        tables = config.tables()
        self.source_positions = PositionTable(
            tables["source_positions"], self.length, d_model
        )
        self.target_positions = PositionTable(
            tables["target_positions"], self.length, d_model
        )
        self.source_drop = Dropout("P_drop")
        self.target_drop = Dropout("P_drop")
        self.encoder = [Layer(block) for block in config.stack("encoder")]
        blocks = config.stack("decoder")
        selections = ["soft"] * (len(blocks) - 1) + [config.selection]
        self.decoder = [
            Layer(block, True, cross, selection)
            for block, cross, selection in zip(
                blocks, config.cross_attentions(), selections, strict=True
            )
        ]
        # A post-norm layer ends in a norm, and the paper has none after the stack.
        if norm := config.final_norm("encoder"):
            self.encoder_norm = norm.build()
        if norm := config.final_norm("decoder"):
            self.decoder_norm = norm.build()

    def __call__(
        self,
        source: Int[ArrayLike, "B N"],
        target: Int[ArrayLike, "B M"],
        source_ctx: Context,
        target_ctx: Context,
    ) -> Float[Array, "B M D"]:
        """Computes the decoder's last hidden states.

        Their product with the output matrix gives the logits. Of the contexts, that of the
        target has the mask of the memory too, which the encoder makes here.
        """
        memory = self.encode(source, source_ctx)
        return self.decode(target, target_ctx.replace(memory=memory))[0]

    def encode(
        self, source: Int[ArrayLike, "B N"], ctx: Context
    ) -> Float[Array, "B N D"]:
        """Computes the encoder's output, the memory of the decoder."""
        tied = self.config.embeddings == "tied"
        matrix = self.embedding if tied else self.source_embedding
        table, drop = self.source_positions, self.source_drop
        x = self._embed(matrix, source, table, drop, ctx)
        x, _ = self._run(self.encoder, x, ctx)
        return self.encoder_norm(x) if self.config.final_norm("encoder") else x

    def decode(
        self, tokens: Int[ArrayLike, "B M"], ctx: Context
    ) -> tuple[Float[Array, "B M D"], Context]:
        """Computes the decoder's hidden states, of all target tokens or of a step.

        In a step (ctx.decoding) tokens (B, K) are those of K hypotheses of each sentence. All
        read the keys of one memory, ctx.memory = project_memory(encode(...)), and keep their
        own in entries t·K … t·K + K − 1 of one cache. So nothing is stored K times, and
        caches stay as they are when hypotheses change places.

        Returns:
          The hidden states, and the context with the new caches.
        """
        table, drop = self.target_positions, self.target_drop
        x = self._embed(self.embedding, tokens, table, drop, ctx)
        x, ctx = self._run(self.decoder, x, ctx)
        x = self.decoder_norm(x) if self.config.final_norm("decoder") else x
        return x, ctx

    def logits(self, hidden: Float[Array, "B M D"]) -> Float[Array, "B M Y"]:
        """Computes the logits of the decoder's hidden states."""
        separate = self.config.embeddings == "separate"
        return hidden @ (self.output if separate else self.embedding).T

    def project_memory(self, memory: Float[Array, "B N D"]) -> tuple[Any, ...]:
        """Computes each decoder layer's keys and values of the encoder's output.

        That is done once for a sentence.
        """
        return tuple(layer.cross_attention.project(memory) for layer in self.decoder)

    def empty_caches(
        self,
        batch: int,
        length: int,
        dtype: Any,
        hypotheses: int = 1,
        last: int | None = None,
    ) -> tuple[Any, ...]:
        """Returns room for what each decoder layer keeps of `length` positions.

        There is an entry for each position and hypothesis; a mixer that keeps states has
        one for each hypothesis, and attention whose mask shows only the `last` positions,
        or restricted to a radius, has entries for as many positions as it sees.
        """
        return self._empty_caches(self.decoder, batch, length, dtype, hypotheses, last)

    @nn.nowrap
    def products(self, n: Any, m: Any) -> Any:
        """Counts the products of a forward pass with n source and m target tokens.

        End marks are among them. With D = d_model, Y = vocabulary, the paper's model has

            (n + m)·N·(3·D·h·(d_k + d_v) + 2·D·d_ff) + m·D·Y
            + N·(n² + m·(m + 1)/2 + n·m)·h·(d_k + d_v)

        The first two terms are the products with matrices, the third those of attention over
        the pairs of query and key that may see each other. None where a variant does not
        state its own.
        """
        config: Any = self.config
        counts: list[Any] = [m * config.d_model * self.vocabulary]
        counts += of_stack(config.stack("encoder"), n, causal=False)
        counts += of_stack(config.stack("decoder"), m, causal=True, sublayers=3)
        for cross in config.cross_attentions():
            counts.append(of_attention(m, n, n * m, cross))
        return None if any(count is None for count in counts) else sum(counts)


def of_stack(
    blocks: "Sequence[config.Block]", n: Any, causal: bool, sublayers: int = 2
) -> list[Any]:
    """Counts the products of layers with n tokens, without a memory; None for unknown."""
    counts = []
    for block in blocks:
        feed_forward = stated(block.feed_forward, block)
        counts.append(stated(block.mixing, n, causal, block))
        counts.append(None if feed_forward is None else n * feed_forward)
    (first, *_) = blocks
    # AddAndNorm takes none.
    if type(first.norm).surround is Norm.surround:
        return counts
    norms = stated(first.norm, sublayers * len(blocks), first.d_model)
    return [*counts, None if norms is None else n * norms]
