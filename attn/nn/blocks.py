"""The layers that models are built from, and how a stack of them runs.

A layer is a function (x, ctx) -> (x, ctx). B examples, N tokens, D = d_model, T entries of
a cache.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn.context import Context
from attn.lookup import rows
from attn.nn.attention import CrossAttention, entries_of
from attn.nn.layers import embedding_matrices

if TYPE_CHECKING:
    from attn.config import Attention, Block, Stacks


class Layer(nn.Module):
    """What mixes positions, attention to a memory where there is one, the feed-forward net.

    Each is surrounded by dropout, a sum and a norm: post-norm, LayerNorm(x +
    Dropout(Sublayer(x))), in the paper.

    Attributes:
      block: the layer's options.
      causal: whether a position sees none behind it, as in a decoder.
      cross: the options of the attention to a memory, or None for a layer without.
      selection: how that takes values, see `CrossAttention`.
    """

    block: "Block"
    causal: bool = False
    cross: "Attention | None" = None
    selection: str = "soft"

    def setup(self):
        """Makes the sub-layers."""
        block = self.block
        # An attribute's name is the key of its parameters, and each mixer has its own.
        setattr(self, block.mixing.name, block.mixing.build(block, self.causal))
        self.self_norm = block.norm.surround(block)
        if self.cross is not None:
            self.cross_attention = CrossAttention(
                self.cross, self.causal, selection=self.selection
            )
            self.cross_norm = block.norm.surround(block)
        self.feed_forward = block.feed_forward.build(block)
        self.feed_forward_norm = block.norm.surround(block)

    @property
    def mixing(self) -> nn.Module:
        """The sub-layer that mixes positions."""
        return getattr(self, self.block.mixing.name)

    def __call__(
        self, x: Float[Array, "B N D"], ctx: Context
    ) -> tuple[Float[Array, "B N D"], Context]:
        """Returns x after all sub-layers, and the context for the next layer."""
        y, ctx = self.mixing(self.self_norm.before(x), ctx)
        x, ctx = self.self_norm(x, y, ctx)
        if self.cross is not None:
            y, ctx = self.cross_attention(self.cross_norm.before(x), ctx)
            x, ctx = self.cross_norm(x, y, ctx)
        y = self.feed_forward(self.feed_forward_norm.before(x), ctx)
        return self.feed_forward_norm(x, y, ctx)


class Stacked(nn.Module):
    """What models of stacks of layers share.

    Dropout is on sub-layers' outputs and on the sums of embeddings and positions, with the
    context's number P_drop, of attention weights with P_attention, of the feed-forward
    network's hidden units with P_ff; where the context has keys.

    Attributes:
      config: what the model is.
      vocabulary: Y, the number of tokens.
      length: the most positions.
      remat: whether gradients compute each layer again in place of keeping what is inside
        it: memory of one layer in place of N, for about a third more time.
      scan: whether a stack is one compiled layer that is run N times: it compiles faster,
        and on a CPU runs somewhat slower. Parameters are the same either way, and so is
        all else but the draws of dropout.
    """

    config: "Stacks"
    vocabulary: int
    length: int
    remat: bool = False
    scan: bool = False

    def _draw_embeddings(self, names):
        """Makes the matrices of vectors; raises ValueError for what makes no model."""
        config = self.config
        config.check()
        if self.scan and config.unlike_layers:
            raise ValueError(f"{config.unlike_layers}: scan must be False")
        matrices = embedding_matrices(self, names, self.vocabulary, config.d_model)
        for name, matrix in matrices.items():
            setattr(self, name, matrix)

    def _embed(self, matrix, tokens, table, drop, ctx):
        """Returns embeddings and positions of tokens (B, N)."""
        # Also of numpy, which tokens may be where nothing is compiled.
        tokens = jnp.asarray(tokens)
        x = rows(matrix, tokens) * self.config.scale
        places = ctx.places_of(tokens)
        return drop(x + table(tokens, places, ctx), ctx)

    def _run(
        self, layers: Sequence[Layer], x: Float[Array, "B N D"], ctx: Context
    ) -> tuple[Float[Array, "B N D"], Context]:
        """Returns x after all `layers`, and the context with what they share and keep."""
        ctx = ctx.replace(shared=_shared(layers, x, ctx))
        # A pure layer in a scan can neither make parameters here nor sow weights.
        watched = self.is_initializing() or self.is_mutable_collection("weights")
        if self.scan and not watched and ctx.decoding is None:
            return self._scan(layers, x, ctx), ctx
        caches = []
        memory, kept = ctx.memory, ctx.cache
        for i, layer in enumerate(layers):
            ctx = ctx.replace(layer=i + 1)
            if ctx.decoding is not None:
                ctx = ctx.replace(cache=kept[i], memory=memory and memory[i])
            run = nn.remat(_call) if self.remat else _call
            x, ctx = run(layer, x, ctx)
            caches.append(ctx.cache)
        if ctx.decoding is not None:
            ctx = ctx.replace(cache=tuple(caches), memory=memory)
        return x, ctx

    def _scan(self, layers, x, ctx):
        """Returns x after all layers, as one that is run for each one's parameters."""
        first = layers[0]
        mutable = ["losses"] if self.is_mutable_collection("losses") else []
        ctx = ctx.replace(path=(*ctx.path, *first.path))

        def one(carry, layer):
            x, shared = carry
            variables, number = layer
            # All run as one module, so with one key they would drop the same units.
            keys = jax.tree.map(
                lambda keys: jax.vmap(jax.random.fold_in, (0, None))(keys, number),
                ctx.keys,
            )
            own = ctx.replace(keys=keys, shared=shared, layer=number)
            pure = first.clone(parent=None)
            (x, own), kept = pure.apply(variables, x, own, mutable=mutable)
            return (x, own.shared), kept

        if self.remat:
            one = jax.checkpoint(one, prevent_cse=False)
        # Stacked here and not in the variables, which are the same without scan.
        variables = [dict(layer.variables) for layer in layers]
        variables = jax.tree.map(lambda *leaves: jnp.stack(leaves), *variables)
        numbers = jnp.arange(1, len(layers) + 1)
        (x, _), kept = jax.lax.scan(one, (x, ctx.shared), (variables, numbers))
        for loss in jax.tree.leaves(kept):
            self.sow("losses", f"{first.name}_and_others", loss.sum(0))
        return x

    def _empty_caches(self, layers, batch, length, dtype, hypotheses, last):
        caches = []
        for layer in layers:
            mixing = layer.block.mixing
            entries = mixing.entries(length * hypotheses, hypotheses, last)
            caches.append(layer.mixing.empty_cache(batch, entries, dtype))
        return tuple(caches)


def _call(layer, x, ctx):
    return layer(x, ctx)


def _shared(layers, x, ctx):
    """Returns what the layers of a stack share, as it is before the first."""
    shared = {}
    for i, layer in enumerate(layers):
        block = layer.block
        if block.mixing.attends:
            m = x.shape[1] if ctx.decoding is None else entries_of(ctx.cache[i])
            shared |= block.residual.shared(block, *x.shape[:2], m, x.dtype)
    return shared
