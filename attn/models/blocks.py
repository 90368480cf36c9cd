"""What models are built from: layers of attention, or what stands in its place, with all that is around them.

Post-norm, LayerNorm(x + Dropout(Sublayer(x))); `Design` names the deviations. Dropout happens when, and only when, an
rng named "dropout" is given to `apply`. B batch (any leading axes), N source pieces, M target pieces, D = d_model, Y
vocabulary, K hypotheses of one sentence, T entries of a cache.
"""

import functools
from collections.abc import Iterable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attn.biases import ALiBi, RelativeTable, T5Buckets, alibi_slopes
from attn.dropout import Dropout
from attn.masks import Mask
from attn.mixing import CELLS, Convolution, Recurrence
from attn.multihead import CHOICES, HEADS, MultiHeadAttention
from attn.positions import Learned, NoPositions, Sinusoidal
from attn.scores import SCORES

NORMS = ("post", "post_final", "pre")
EMBEDDINGS = {
    "tied": ("embedding",),
    "target": ("embedding", "source_embedding"),
    "separate": ("embedding", "source_embedding", "output"),
}
"""The matrices that each kind of embeddings has."""
ACTIVATIONS = {
    "relu": nn.relu,
    "gelu": functools.partial(nn.gelu, approximate=False),
    "silu": nn.silu,
}
MIXING = {
    "attention": "self_attention",
    "restricted": "self_attention",
    "recurrence": "recurrence",
    "convolution": "convolution",
    "separable": "convolution",
}
"""What mixes positions within a sentence, and the name that it has in a layer."""
RELATIVE = ("none", "rotary", "relative", "t5", "alibi")
REACH = 16
"""The farthest distance that relative="relative" tells apart (Shaw et al. 2018 found no gain beyond)."""


class Shape(NamedTuple):
    """The sizes of a Transformer, in the paper's letters."""

    N: int
    d_model: int
    d_ff: int
    h: int
    d_k: int
    d_v: int


class Design(NamedTuple):
    """How a Transformer is put together; the defaults are the paper's."""

    norm: str = "post"
    """"post": LayerNorm(x + Sublayer(x)). "post_final": and one more LayerNorm after each stack, as in PyTorch's
    nn.Transformer. "pre": x + Sublayer(LayerNorm(x)), and a LayerNorm after each stack (Xiong et al. 2020)."""
    embeddings: str = "tied"
    """"tied": one matrix for source, target and output (section 3.4). "target": one for target and output, another for
    the source. "separate": three."""
    scale_embeddings: bool = True
    """Whether embeddings are multiplied by √d_model."""
    biases: bool = False
    """Whether W_Q, W_K, W_V and W_O come with bias vectors."""
    activation: str = "relu"
    score: str = "scaled_dot"
    """What attention compares by, a name of `attn.SCORES`."""
    relative: str = "none"
    """What self-attention knows of distances, beside the position tables: "rotary" (Su et al. 2021), "relative", a
    number a head for each distance up to 16 (`RelativeTable`), "t5" (`T5Buckets`), "alibi" (`ALiBi`), each layer its
    own."""
    norm_epsilon: float = 1e-6
    """Added to the variance in LayerNorm; PyTorch has 1e-5."""
    heads: str = "concat"
    """How the heads' vectors become one, see `MultiHeadAttention`: "concat" and W_O, or "mean"; with the latter W_V has
    rank d_v, and d_v = d_model makes it one full matrix."""
    head_activation: str = "none"
    """On the output of attention, a name of ACTIVATIONS or "none"."""
    choice: str = "soft"
    """Of the last layer's attention to the source, see `MultiHeadAttention`: "soft", "argmax", "sampled"."""
    encoder_mixing: str = "attention"
    """What mixes the positions of a source, the rows of the paper's Table 1: "attention"; "restricted" to `radius`
    positions on each side; "recurrence", of `cell`s in both directions; "convolution" of 2·radius + 1 taps;
    "separable", the same with its features apart (`Recurrence`, `Convolution`)."""
    decoder_mixing: str = "attention"
    """The same of a target, each without what follows."""
    radius: int = 4
    cell: str = "gru"
    """A name of `attn.mixing.CELLS`."""


class Linear(nn.Module):
    """x W + b."""

    features: int

    @nn.compact
    def __call__(self, x: Float[Array, "*B N D"]) -> Float[Array, "*B N F"]:
        kernel = self.param(
            "kernel", nn.initializers.glorot_uniform(), (x.shape[-1], self.features)
        )
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        # As if for one head: XLA on a CPU then takes half as long for the gradient to the kernel as with x @ kernel.
        y = jnp.einsum("...nd,dhf->...nhf", x, kernel[:, None])[..., 0, :]
        return y + bias.reshape((1,) * (y.ndim - 1) + (-1,))


class FeedForward(nn.Module):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2 (section 3.3); `P_drop` is of the hidden units, 0 in the paper."""

    d_model: int
    d_ff: int
    activation: str = "relu"
    P_drop: float | Float[Array, ""] = 0.0

    @nn.compact
    def __call__(self, x: Float[Array, "*B N D"]) -> Float[Array, "*B N D"]:
        hidden = ACTIVATIONS[self.activation](Linear(self.d_ff, name="w_1")(x))
        return Linear(self.d_model, name="w_2")(
            Dropout(self.P_drop, name="drop")(hidden)
        )


class AddAndNorm(nn.Module):
    """What stands around a sub-layer (sections 3.1 and 5.4): y = Sublayer(before(x)), then `self(x, y)`."""

    design: Design
    P_drop: float | Float[Array, ""]

    def setup(self):
        self.norm = nn.LayerNorm(self.design.norm_epsilon)
        self.drop = Dropout(self.P_drop)

    def before(self, x: Float[Array, "*B N D"]) -> Float[Array, "*B N D"]:
        """What the sub-layer reads: x, or LayerNorm(x) with norm="pre"."""
        return self.norm(x) if self.design.norm == "pre" else x

    def __call__(
        self, x: Float[Array, "*B N D"], y: Float[Array, "*B N D"]
    ) -> Float[Array, "*B N D"]:
        """LayerNorm(x + Dropout(y)), without the LayerNorm for norm="pre"."""
        x = x + self.drop(y)
        return x if self.design.norm == "pre" else self.norm(x)


class Layer(nn.Module):
    """What encoder and decoder layers share. `P_drop` may be traced; so may `P_attention` and `P_ff`, the dropout of
    attention weights and of the feed-forward network's hidden units, which 0 leaves out."""

    shape: Shape
    design: Design = Design()
    P_drop: float | Float[Array, ""] = 0.1
    P_attention: float | Float[Array, ""] = 0.0
    P_ff: float | Float[Array, ""] = 0.0

    causal = False  # no field: an encoder's

    def _attention(self, causal=None, choice="soft"):
        """Self-attention, causal or not; attention to the other side where that is None."""
        _, d_model, _, h, d_k, d_v = self.shape
        own = {} if causal is None else _relative(self.design.relative, causal)
        return MultiHeadAttention(
            d_model,
            h,
            d_k,
            d_v,
            SCORES[self.design.score],
            self.design.heads,
            ACTIVATIONS.get(self.design.head_activation),
            biases=self.design.biases,
            choice=choice,
            P_drop=self.P_attention,
            **own,
        )

    @property
    def _kind(self):
        return self.design.decoder_mixing if self.causal else self.design.encoder_mixing

    @property
    def mixing(self):
        """The sub-layer that mixes positions."""
        return getattr(self, MIXING[self._kind])

    def _set_mixing(self):
        d_model, design, name = self.shape.d_model, self.design, MIXING[self._kind]
        if name == "self_attention":
            mixing = self._attention(self.causal)
        elif name == "recurrence":
            mixing = Recurrence(d_model, design.cell, both_ways=not self.causal)
        else:
            mixing = Convolution(
                d_model, design.radius, self.causal, separable=self._kind == "separable"
            )
        setattr(self, name, mixing)

    def _mixed(self, x, mask):
        if self._kind == "restricted":
            mask = mask & Mask.window(self.design.radius, self.design.radius)
        return (
            self.mixing(x, x, mask)
            if MIXING[self._kind] == "self_attention"
            else self.mixing(x, mask)
        )

    def _mixed_step(self, x, t, cache, own):
        """x with what it sees of the positions before, and the new cache."""
        if self._kind == "restricted":
            near = jnp.arange(own.shape[-1]) // x.shape[-2] >= t - self.design.radius
            own = own & near.reshape((1,) * (own.ndim - 1) + (-1,))
        y, cache = self.mixing.step_side_by_side(
            self.self_norm.before(x), t, cache, own
        )
        return self.self_norm(x, y), cache

    def _feed_forward(self):
        return FeedForward(
            self.shape.d_model, self.shape.d_ff, self.design.activation, self.P_ff
        )

    def _around(self):
        return AddAndNorm(self.design, self.P_drop)


class EncoderLayer(Layer):
    """Self-attention, or what stands in its place, then the feed-forward network."""

    def setup(self):
        self._set_mixing()
        self.self_norm = self._around()
        self.feed_forward, self.feed_forward_norm = self._feed_forward(), self._around()

    def __call__(self, x: Float[Array, "*B N D"], mask: Mask) -> Float[Array, "*B N D"]:
        x = self.self_norm(x, self._mixed(self.self_norm.before(x), mask))
        return self.feed_forward_norm(
            x, self.feed_forward(self.feed_forward_norm.before(x))
        )


class LanguageLayer(EncoderLayer):
    """Masked self-attention, or what stands in its place, then the feed-forward network."""

    causal = True

    def step(
        self,
        x: Float[Array, "*B K D"],
        t: Int[Array, ""],
        cache,
        own: Bool[Array, "*B K T"],
    ):
        """The pieces at position t of K texts side by side, see `Transformer.step`."""
        x, cache = self._mixed_step(x, t, cache, own)
        return self.feed_forward_norm(
            x, self.feed_forward(self.feed_forward_norm.before(x))
        ), cache


class DecoderLayer(Layer):
    """Masked self-attention, or what stands in its place, attention over the encoder's output, then the feed-forward
    network."""

    choice: str = "soft"

    causal = True

    def setup(self):
        self._set_mixing()
        self.self_norm = self._around()
        self.cross_attention, self.cross_norm = (
            self._attention(choice=self.choice),
            self._around(),
        )
        self.feed_forward, self.feed_forward_norm = self._feed_forward(), self._around()

    def __call__(
        self,
        x: Float[Array, "*B M D"],
        memory: Float[Array, "*B N D"],
        mask: Mask,
        cross_mask: Mask,
    ) -> Float[Array, "*B M D"]:
        x = self.self_norm(x, self._mixed(self.self_norm.before(x), mask))
        x = self.cross_norm(
            x, self.cross_attention(self.cross_norm.before(x), memory, cross_mask)
        )
        return self.feed_forward_norm(
            x, self.feed_forward(self.feed_forward_norm.before(x))
        )

    def step(
        self,
        x: Float[Array, "*B K D"],
        t: Int[Array, ""],
        cache,
        cross,
        own: Bool[Array, "*B K T"],
        seen: Bool[Array, "*B n N"],
    ):
        """The target pieces at position t of K hypotheses, see `Transformer.step`."""
        x, cache = self._mixed_step(x, t, cache, own)
        x = self.cross_norm(
            x, self.cross_attention.recall(self.cross_norm.before(x), cross, seen)
        )
        return self.feed_forward_norm(
            x, self.feed_forward(self.feed_forward_norm.before(x))
        ), cache


class LayeredModel(nn.Module):
    """What models made of these layers share. `length` positions at most; `P_drop`, `P_attention` and `P_ff` may be
    traced values.

    Attributes:
      remat: whether gradients compute each layer again in place of keeping what is inside it: memory of one layer in
        place of N, for about a third more time.
      scan: whether a stack is one compiled layer that is run N times: it compiles faster, and on a CPU runs somewhat
        slower. Parameters are the same either way, and so is all else but the draws of dropout.
    """

    shape: Shape
    vocabulary: int
    length: int
    positions: Sinusoidal | Learned | NoPositions = Sinusoidal()
    P_drop: float | Float[Array, ""] = 0.1
    design: Design = Design()
    P_attention: float | Float[Array, ""] = 0.0
    P_ff: float | Float[Array, ""] = 0.0
    remat: bool = False
    scan: bool = False

    @property
    def of_a_layer(self):
        """The arguments that layers which are alike are made with."""
        return self.shape, self.design, self.P_drop, self.P_attention, self.P_ff

    def _embed(self, matrix, pieces, positions, drop):
        x = matrix[pieces]
        return drop(
            (x * self.shape.d_model**0.5 if self.design.scale_embeddings else x)
            + positions
        )

    def _through(
        self, layers, x: Float[Array, "*B N D"], *rest
    ) -> Float[Array, "*B N D"]:
        """x after all `layers`, which are alike, each called with `rest` too, by `remat` and `scan`."""
        watched = self.is_initializing() or self.is_mutable_collection("weights")
        if watched or not (self.remat or self.scan):
            for layer in layers:
                x = layer(x, *rest)
            return x
        pure = type(layers[0])(*self.of_a_layer, parent=None)

        def one(x, own):
            params, key = own
            return pure.apply(
                {"params": params},
                x,
                *rest,
                rngs={} if key is None else {"dropout": key},
            ), None

        params = jax.tree.map(
            lambda *leaves: jnp.stack(leaves),
            *(layer.variables["params"] for layer in layers),
        )
        keys = (
            jax.random.split(self.make_rng("dropout"), len(layers))
            if self.has_rng("dropout")
            else None
        )
        one = jax.checkpoint(one) if self.remat else one
        return jax.lax.scan(
            one, x, (params, keys), unroll=1 if self.scan else len(layers)
        )[0]


def embedding_matrices(
    module: nn.Module, names: Iterable[str], vocabulary: int, d_model: int
):
    """Parameters of `module` by name, each (Y, D), from N(0, 1/d_model)."""
    return {
        name: module.param(
            name, nn.initializers.normal(d_model**-0.5), (vocabulary, d_model)
        )
        for name in names
    }


def output_matrix(params) -> Float[Array, "Y E"]:
    """The parameters of a model whose product with its hidden states gives the logits: a matrix of its own or the
    embedding, and beside it, where there is one, the bias, for hidden states that end in 1."""
    matrix = params.get("output", params["embedding"])
    if "output_bias" in params:
        matrix = jnp.concatenate([matrix, params["output_bias"][:, None]], axis=-1)
    return matrix


def check_design(design: Design) -> None:
    known = dict(
        norm=NORMS,
        embeddings=EMBEDDINGS,
        activation=ACTIVATIONS,
        score=SCORES,
        relative=RELATIVE,
        heads=HEADS,
        choice=CHOICES,
        head_activation=("none", *ACTIVATIONS),
        encoder_mixing=MIXING,
        decoder_mixing=MIXING,
        cell=CELLS,
    )
    for name, choices in known.items():
        if (value := getattr(design, name)) not in choices:
            raise ValueError(f"unknown {name} {value!r}; known: {', '.join(choices)}")


def _relative(name, causal):
    """What a self-attention layer is told of distances."""
    return {
        "none": dict(),
        "rotary": dict(rotary=True),
        "relative": dict(relative=lambda key, h: RelativeTable.init(key, h, REACH)),
        "t5": dict(
            relative=lambda key, h: T5Buckets.init(key, h, bidirectional=not causal)
        ),
        "alibi": dict(relative=lambda key, h: ALiBi(jnp.asarray(alibi_slopes(h)))),
    }[name]
