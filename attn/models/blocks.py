"""The layers that models are built from.

Post-norm, LayerNorm(x + Dropout(Sublayer(x))); `Design` names the deviations. Dropout
happens when, and only when, an rng named "dropout" is given to `apply`. B batch (any
leading axes), N source tokens, M target tokens, D = d_model, F features, K hypotheses of
one sentence, T entries of a cache.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attn.lookup import rows
from attn.masks import Mask
from attn.models.activations import ACTIVATIONS
from attn.models.design import Design, Shape
from attn.models.dropout import Dropout
from attn.models.linear import Linear
from attn.models.mixers import Mixer, attention_module


class FeedForward(nn.Module):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2 (section 3.3).

    `P_drop` is the dropout of the hidden units, 0 in the paper.
    """

    d_model: int
    d_ff: int
    activation: str = "relu"
    P_drop: float | Float[Array, ""] = 0.0

    @nn.compact
    def __call__(self, x: Float[Array, "*B N D"]) -> Float[Array, "*B N D"]:
        hidden = ACTIVATIONS[self.activation](Linear(self.d_ff, name="w_1")(x))
        hidden = Dropout(self.P_drop, name="drop")(hidden)
        return Linear(self.d_model, name="w_2")(hidden)


class AddAndNorm(nn.Module):
    """Surrounds a sub-layer (sections 3.1 and 5.4).

    y = Sublayer(before(x)), then `self(x, y)`.
    """

    design: Design
    P_drop: float | Float[Array, ""]

    def setup(self):
        """Makes the norm and the dropout."""
        self.norm = nn.LayerNorm(self.design.norm_epsilon)
        self.drop = Dropout(self.P_drop)

    def before(self, x: Float[Array, "*B N D"]) -> Float[Array, "*B N D"]:
        """Returns what the sub-layer reads: x, or LayerNorm(x) with norm="pre"."""
        return self.norm(x) if self.design.norm == "pre" else x

    def __call__(
        self,
        x: Float[Array, "*B N D"],
        y: Float[Array, "*B N D"],
    ) -> Float[Array, "*B N D"]:
        """Computes LayerNorm(x + Dropout(y)), without the LayerNorm for norm="pre"."""
        x = x + self.drop(y)
        return x if self.design.norm == "pre" else self.norm(x)


class Layer(nn.Module):
    """The parts that encoder and decoder layers share.

    `P_drop` may be traced; so may `P_attention` and `P_ff`, the dropout of attention
    weights and of the feed-forward network's hidden units, which 0 leaves out; and
    `number`, the layer's place in its stack, from 1.
    """

    shape: Shape
    design: Design = Design()
    number: int | Int[Array, ""] = 1
    P_drop: float | Float[Array, ""] = 0.1
    P_attention: float | Float[Array, ""] = 0.0
    P_ff: float | Float[Array, ""] = 0.0

    causal = False  # without an annotation, so that it is no field; an encoder's

    @property
    def own_design(self) -> Design:
        """The design with the heads of this layer."""
        return self.design._replace(heads=self.design.heads.in_layer(self.number))

    @property
    def mixer(self) -> Mixer:
        """The value that says what mixes positions."""
        design = self.design
        return design.decoder_mixing if self.causal else design.encoder_mixing

    @property
    def mixing(self) -> nn.Module:
        """The sub-layer that mixes positions."""
        return getattr(self, self.mixer.name)

    def empty_cache(
        self,
        batch_shape: tuple[int, ...],
        entries: int,
        dtype,
        hypotheses: int | None = None,
        last: int | None = None,
    ):
        """Returns the mixer's cache, see `LanguageModel.empty_caches`."""
        if self.mixer.has_state and hypotheses is not None:
            entries = hypotheses
        # A convolution keeps all, as it is small and sees further than the mask says.
        if self.mixer.attends and hypotheses is not None:
            bounds = [x for x in (self.mixer.last, last) if x is not None]
            entries = min([entries, *(bound * hypotheses for bound in bounds)])
        return self.mixing.empty_cache(batch_shape, entries, dtype)

    def _set_mixing(self):
        module = self.mixer.build(
            self.shape, self.own_design, self.causal, self.P_attention
        )
        # An attribute's name is the key of its parameters, and each mixer has its own.
        setattr(self, self.mixer.name, module)

    def _mix(self, x, mask):
        """Returns x after the sub-layer that mixes positions."""
        y = self.mixer.mix(self.mixing, self.self_norm.before(x), mask)
        return self.self_norm(x, y)

    def _mix_step(self, x, t, cache, visible):
        """Returns x at position t after the same sub-layer, and the new cache."""
        before = self.self_norm.before(x)
        y, cache = self.mixer.decode_step(self.mixing, before, t, cache, visible)
        return self.self_norm(x, y), cache

    def _feed_forward(self):
        return FeedForward(
            self.shape.d_model, self.shape.d_ff, self.design.activation, self.P_ff
        )

    def _feed(self, x):
        """Returns x after the feed-forward sub-layer."""
        y = self.feed_forward(self.feed_forward_norm.before(x))
        return self.feed_forward_norm(x, y)

    def _add_and_norm(self):
        return AddAndNorm(self.design, self.P_drop)


class EncoderLayer(Layer):
    """Self-attention, or another mixer, then the feed-forward network."""

    def setup(self):
        """Makes the sub-layers."""
        self._set_mixing()
        self.self_norm = self._add_and_norm()
        self.feed_forward = self._feed_forward()
        self.feed_forward_norm = self._add_and_norm()

    def __call__(self, x: Float[Array, "*B N D"], mask: Mask) -> Float[Array, "*B N D"]:
        """Returns x after both sub-layers."""
        return self._feed(self._mix(x, mask))


class LanguageLayer(EncoderLayer):
    """Masked self-attention, or another mixer, then the feed-forward network."""

    causal = True

    def decode_step(
        self,
        x: Float[Array, "*B K D"],
        t: Int[Array, "*b"],
        cache,
        visible: Bool[Array, "*B K T"],
    ):
        """Computes the tokens at position t of K texts, see `Transformer.decode_step`."""
        x, cache = self._mix_step(x, t, cache, visible)
        return self._feed(x), cache


class DecoderLayer(Layer):
    """Masked self-attention, or another mixer, attention to the source, feed-forward."""

    selection: str = "soft"

    causal = True

    def setup(self):
        """Makes the sub-layers."""
        self._set_mixing()
        self.self_norm = self._add_and_norm()
        # Without positions: rotation and bias are for self-attention alone.
        self.cross_attention = attention_module(
            self.shape, self.own_design, self.P_attention, selection=self.selection
        )
        self.cross_norm = self._add_and_norm()
        self.feed_forward = self._feed_forward()
        self.feed_forward_norm = self._add_and_norm()

    def __call__(
        self,
        x: Float[Array, "*B M D"],
        memory: Float[Array, "*B N D"],
        mask: Mask,
        cross_mask: Mask,
    ) -> Float[Array, "*B M D"]:
        """Returns x after all three sub-layers; `memory` is the encoder's output."""
        x = self._mix(x, mask)
        y = self.cross_attention(self.cross_norm.before(x), memory, cross_mask)
        return self._feed(self.cross_norm(x, y))

    def decode_step(
        self,
        x: Float[Array, "*B K D"],
        t: Int[Array, "*b"],
        cache,
        memory,
        visible: Bool[Array, "*B K T"],
        memory_visible: Bool[Array, "*B n N"],
    ):
        """Computes the target tokens at position t, see `Transformer.decode_step`."""
        x, cache = self._mix_step(x, t, cache, visible)
        before = self.cross_norm.before(x)
        y = self.cross_attention.attend_to_memory(before, memory, memory_visible)
        return self._feed(self.cross_norm(x, y)), cache


class LayeredModel(nn.Module):
    """The parts that models of these layers share.

    Attributes:
      length: the most positions.
      P_drop, P_attention, P_ff: rates of dropout, see `Layer`; may be traced values.
      remat: whether gradients compute each layer again in place of keeping what is inside
        it: memory of one layer in place of N, for about a third more time.
      scan: whether a stack is one compiled layer that is run N times: it compiles faster,
        and on a CPU runs somewhat slower. Parameters are the same either way, and so is
        all else but the draws of dropout.
    """

    shape: Shape
    vocabulary: int
    length: int
    design: Design = Design()
    P_drop: float | Float[Array, ""] = 0.1
    P_attention: float | Float[Array, ""] = 0.0
    P_ff: float | Float[Array, ""] = 0.0
    remat: bool = False
    scan: bool = False

    def layer_arguments(self, number: int | Int[Array, ""]):
        """Returns the arguments of the layer of a number, in which alone they differ."""
        rates = self.P_drop, self.P_attention, self.P_ff
        return self.shape, self.design, number, *rates

    def _embed(self, matrix, tokens, positions, drop):
        x = rows(matrix, tokens)
        if self.design.scale_embeddings:
            x = x * self.shape.d_model**0.5
        return drop(x + positions)

    def _run_layers(
        self,
        layers,
        x: Float[Array, "*B N D"],
        *rest,
    ) -> Float[Array, "*B N D"]:
        """Returns x after all `layers`, each called with `rest` too.

        With `remat` or `scan` the layers must be alike but for their numbers.
        """
        # A pure layer in a scan can neither make parameters here nor sow weights.
        watched = self.is_initializing() or self.is_mutable_collection("weights")
        if watched or not (self.remat or self.scan):
            for layer in layers:
                x = layer(x, *rest)
            return x

        def one(x, layer):
            params, key, number = layer
            # parent=None keeps Linen from making it one more layer of this module.
            pure = type(layers[0])(*self.layer_arguments(number), parent=None)
            rngs = {} if key is None else {"dropout": key}
            return pure.apply({"params": params}, x, *rest, rngs=rngs), None

        all_params = [layer.variables["params"] for layer in layers]
        # Stacked here and not in the variables, which are the same without scan.
        params = jax.tree.map(lambda *leaves: jnp.stack(leaves), *all_params)
        keys = None
        if self.has_rng("dropout"):
            # All run as one module, so with one key they would drop the same units.
            keys = jax.random.split(self.make_rng("dropout"), len(layers))
        if self.remat:
            one = jax.checkpoint(one)
        # Unrolled to its end a scan is a plain loop, which is what remat alone needs.
        unroll = 1 if self.scan else len(layers)
        numbers = jnp.arange(1, len(layers) + 1)
        return jax.lax.scan(one, x, (params, keys, numbers), unroll=unroll)[0]
