"""Settings of the model: a dataclass for each kind, in the paper's letters.

The defaults of the Transformer are the paper's base model.
"""

import dataclasses
import functools
from typing import Any

import jax

from attn import Heads, Mixer, Positions, Recurrent, Separate
from attn.models.activations import ACTIVATIONS
from attn.models.design import NORMS
from attn.models.embeddings import EMBEDDINGS
from attn.models.heads import GATES, check_counted, check_own_keys
from attn.models.latents import check_keys
from attn.models.multihead import COMBINATIONS
from attn.models.recurrence import CELLS
from attn.models.selection import SELECTIONS
from attn.normalisers import normaliser_init
from attn.scores import score_init
from experiments.settings import fields
from experiments.settings.choices import (
    HEADS,
    MIXERS,
    NORMALISERS,
    POSITIONS,
    SCORES,
    choice,
)
from experiments.settings.fields import SettingsError, require

# Without an activation, the network's two matrices would be one.
FEED_FORWARD_ACTIVATIONS = tuple(name for name in ACTIVATIONS if name != "none")


@dataclasses.dataclass(frozen=True)
class Model:
    """Holds the settings that every kind of model has."""

    kind: str
    """The model: transformer, an encoder-decoder; rnn, the recurrent encoder-decoder with
    attention; language, a decoder by itself, which models the target side."""
    N: int = fields.at_least(1, 6, 1000)
    """Layers in the encoder, and as many in the decoder; 1 to 1000."""
    d_model: int = fields.at_least(2, 512, 2**16)
    """Width of embeddings and of every layer's output, in features; 2 to 65,536."""
    embeddings: str = fields.one_of(tuple(EMBEDDINGS), "tied")
    """Sharing of the vocabulary matrices. tied: one for source, target and output;
    target: one for target and output; separate: three."""
    P_drop: float = fields.rate(0.1)
    """Probability of dropout, in [0, 1): of sub-layer outputs and of the sums of embeddings
    and positions; in an RNN of embeddings, between layers and before the output."""

    def check(self) -> None:
        """Raises SettingsError for settings that contradict each other."""

    @property
    def unlike_layers(self) -> str:
        """The reason why its layers are not all alike, as training.remat and training.scan
        need them; "" where they are."""
        return ""


@dataclasses.dataclass(frozen=True)
class LayeredModel(Model):
    """Holds the settings of models that consist of the Transformer's layers."""

    d_ff: int = fields.at_least(1, 2048, 2**20)
    """Hidden width of the feed-forward network, in features; 1 to 1,048,576."""
    h: int = fields.at_least(1, 8, 2**12)
    """Heads of each attention; 1 to 4096."""
    d_k: int = fields.at_least(1, 64, 2**16)
    """Width of a head's queries and keys, in features; 1 to 65,536. It is independent of
    d_model and h."""
    d_v: int = fields.at_least(1, 64, 2**16)
    """Width of a head's values, in features; 1 to 65,536."""
    h_kv: int = fields.at_least(0, 0, 2**12)
    """Heads of keys and values, 0 to 4096: 0 for h, 1 for multi-query attention, otherwise
    a divisor of h, for grouped-query attention. A decoder's cache is smaller by h/h_kv."""
    d_c: int = fields.at_least(0, 0, 2**16)
    """Width of latents of which keys and values are made, in features, 0 to 65,536: 0 for
    none. It is multi-head latent attention; a decoder's cache has d_c numbers a token."""
    d_r: int = fields.at_least(0, 0, 2**16)
    """Width of the key beside latents that rotary positions turn, in features, 0 to 65,536.
    They need it, and 0 is right without them or without model.d_c."""
    score: str = choice(SCORES, "scaled_dot")
    """The function by which attention compares a query and a key."""
    normaliser: str = choice(NORMALISERS, "softmax")
    """How attention makes weights of scores, softmax or what stands in its place."""
    positions: str = choice(POSITIONS, "sinusoidal")
    """How the model knows where a token stands: a table that is added to the embeddings
    (sinusoidal, learned, randomised), or a part of self-attention (rotary, alibi, relative,
    t5, kerple, fire, forget, cope)."""
    heads: str = choice(HEADS, "separate")
    """What the heads of an attention have to do with each other. separate: nothing;
    differential(lambda_init=None): a head's weights are the difference of two maps, each
    with queries and keys of d_k features, and None for a lambda_init that grows with the
    layer; talking: heads mix their scores and their weights, with memory h·n²."""
    gate: str = fields.one_of(GATES, "none")
    """A gate on the outputs of heads before W_O, σ(x W_g). head: one number a head and
    token; element: d_v numbers."""
    # The paper has post; tensor2tensor's later defaults are pre.
    norm: str = fields.one_of(NORMS, "post")
    """Place of LayerNorm. post: LayerNorm(x + Sublayer(x)); post_final: and one more after
    each stack; pre: x + Sublayer(LayerNorm(x))."""
    scale_embeddings: bool = fields.flag(True)
    """Multiply embeddings by √d_model: True or False."""
    # The projections of section 3.2.2 are matrices alone.
    biases: bool = fields.flag(False)
    """Give W_Q, W_K, W_V and W_O, and a gate's W_g, bias vectors: True or False."""
    combine: str = fields.one_of(COMBINATIONS, "concat")
    """How heads become one vector. concat: Concat(heads) W_O; mean: the mean of heads whose
    W_V leads to d_model, one full matrix where d_v = d_model, otherwise of rank d_v."""
    head_activation: str = fields.one_of(tuple(ACTIVATIONS), "none")
    """Activation function on the output of attention."""
    activation: str = fields.one_of(FEED_FORWARD_ACTIVATIONS, "relu")
    """Activation function of the feed-forward network."""
    # The paper has neither this dropout nor that of hidden units, section 5.4.
    P_attention: float = fields.rate(0.0)
    """Probability of dropout of attention weights, in [0, 1)."""
    P_ff: float = fields.rate(0.0)
    """Probability of dropout of the feed-forward network's hidden units, in [0, 1)."""
    decoder_mixing: str = choice(MIXERS, "attention")
    """What mixes the positions of the target, Table 1 of the paper: attention;
    restricted(radius=4), attention to the nearest positions; recurrence(cell=gru);
    convolution(radius=4); separable(radius=4), a convolution of each feature by itself and
    then a matrix. Or a relative of attention whose state is a matrix a head, with h, d_k and
    d_v: linear_attention; gated_linear_attention(decay=feature), with a decay for each
    feature of a key or, decay=head, for each head; deltanet(beta_max=1, householders=1),
    whose tokens write that many times, with β up to 2 at most; gated_deltanet, with the same
    options. All look back only."""

    @property
    def score_choice(self) -> Any:
        """The score as `attn.Design` takes it."""
        return SCORES.value(self.score, "model.score")

    @property
    def normaliser_choice(self) -> Any:
        """The normaliser as `attn.Design` takes it."""
        return NORMALISERS.value(self.normaliser, "model.normaliser")

    @property
    def position_encoding(self) -> Positions:
        """The value that `positions` names."""
        return POSITIONS.value(self.positions, "model.positions")

    @property
    def heads_choice(self) -> Heads:
        """The value that `heads` names."""
        return HEADS.value(self.heads, "model.heads")

    @property
    def mixers(self) -> dict[str, Mixer]:
        """The values that decoder_mixing, and encoder_mixing where there is one, name."""
        return {
            key: MIXERS.value(getattr(self, key), f"model.{key}")
            for key in ("encoder_mixing", "decoder_mixing")
            # A language model has no encoder.
            if hasattr(self, key)
        }

    def check(self) -> None:
        _check_score(self.score, self.h, self.d_k + self.d_r)
        _check_normaliser(self.normaliser, self.h, getattr(self, "selection", "soft"))
        positions = self.position_encoding
        try:
            # Only here are the widths known that an encoding depends on.
            positions.check(self.d_model, self.d_r or self.d_k)
        except ValueError as error:
            raise SettingsError(
                f"model.positions={self.positions} with model.d_model={self.d_model} and "
                f"model.d_k={self.d_k}: {error}"
            ) from error
        try:
            self.heads_choice.check()
        except ValueError as error:
            raise SettingsError(f"model.heads={self.heads}: {error}") from error
        for key, mixer in self.mixers.items():
            try:
                mixer.check(self.d_model)
            except ValueError as error:
                raise SettingsError(
                    f"model.{key}={getattr(self, key)} with model.d_model={self.d_model}: "
                    f"{error}"
                ) from error
        try:
            optional = (self.h_kv or None, self.d_c or None, self.d_r or None)
            check_keys(self.h, *optional, positions)
            check_own_keys(self.heads_choice, self.h, *optional[:2])
            if positions.has_counts:
                check_counted(positions, self.heads_choice, self.h, *optional[:2])
        except ValueError as error:
            raise SettingsError(
                f"model.h={self.h}, model.heads={self.heads}, model.h_kv={self.h_kv}, "
                f"model.d_c={self.d_c}, model.d_r={self.d_r} and "
                f"model.positions={self.positions}: {error}"
            ) from error
        attends = any(mixer.attends for mixer in self.mixers.values())
        mixing = ", ".join(f"model.{key}={getattr(self, key)}" for key in self.mixers)
        require(
            # A setting without any effect would make equal models look like different
            # rows.
            attends or not positions.in_layers,
            f"model.positions={self.positions} is a part of self-attention, and there is "
            f"none: {mixing}",
        )


@dataclasses.dataclass(frozen=True)
class TransformerModel(LayeredModel):
    """Holds the settings of the Transformer, an encoder-decoder."""

    kind: str = fields.one_of(("transformer",), "transformer")
    encoder_mixing: str = choice(MIXERS, "attention")
    """What mixes the positions of the source, as decoder_mixing, but in both directions."""
    selection: str = fields.one_of(SELECTIONS, "soft")
    """How the last layer's attention to the source takes values. soft: their mean; argmax:
    that of the best key, with the gradient of soft attention; sampled: that of a random key
    in training, by REINFORCE, and of the best key otherwise. The last two need
    model.P_attention=0."""

    def check(self) -> None:
        super().check()
        require(
            self.selection == "soft" or self.P_attention == 0,
            f"model.selection={self.selection} takes whole values and has no weights to "
            f"drop: model.P_attention={self.P_attention} must be 0",
        )
        require(
            self.selection == "soft" or isinstance(self.heads_choice, Separate),
            f"model.selection={self.selection} takes the best key of one head's scores: "
            f"model.heads={self.heads} must be separate",
        )
        recurrent = isinstance(self.mixers["encoder_mixing"], Recurrent)
        require(
            self.d_model % 2 == 0 or not recurrent,
            f"model.d_model={self.d_model} must be even: each direction of a recurrence "
            "has half of it",
        )

    @property
    def unlike_layers(self) -> str:
        if self.selection == "soft":
            return ""
        return f"model.selection={self.selection} makes the last layer differ"


@dataclasses.dataclass(frozen=True)
class RNNModel(Model):
    """Holds the settings of `attn.RNN`, the recurrent encoder-decoder with attention."""

    kind: str = fields.one_of(("rnn",), "rnn")
    score: str = choice(SCORES, "scaled_dot", "none")
    """The function by which attention compares states; none: there is no attention, and
    the encoder's last states stand in its place."""
    normaliser: str = choice(NORMALISERS, "softmax")
    """How attention makes weights of scores, softmax or what stands in its place."""
    cell: str = fields.one_of(tuple(CELLS), "lstm")
    """The recurrent cell."""
    selection: str = fields.one_of(SELECTIONS, "soft")
    """How attention takes states of the source, as for the Transformer."""

    def check(self) -> None:
        require(
            self.d_model % 2 == 0,
            f"model.d_model={self.d_model} must be even: each direction of a recurrence "
            "has half of it",
        )
        require(
            self.selection == "soft" or self.score != "none",
            f"model.selection={self.selection} needs a model.score",
        )
        require(
            self.normaliser == "softmax" or self.score != "none",
            f"model.normaliser={self.normaliser} needs a model.score",
        )
        _check_normaliser(self.normaliser, 1, self.selection)
        if self.score != "none":
            _check_score(self.score, 1, self.d_model)

    @property
    def score_choice(self) -> Any:
        """The score as `attn.RNN` takes it."""
        return (
            "none" if self.score == "none" else SCORES.value(self.score, "model.score")
        )

    @property
    def normaliser_choice(self) -> Any:
        """The normaliser as `attn.RNN` takes it."""
        return NORMALISERS.value(self.normaliser, "model.normaliser")

    @property
    def unlike_layers(self) -> str:
        return "model.kind=rnn has no stacks of Transformer layers"


@dataclasses.dataclass(frozen=True)
class LanguageModel(LayeredModel):
    """Holds the settings of a language model: a decoder without a source."""

    kind: str = fields.one_of(("language",), "language")
    # Without a source, `target` would say the same as `tied`.
    embeddings: str = fields.one_of(("tied", "separate"), "tied")
    """Sharing of the vocabulary matrices. tied: one for input and output; separate: two."""


MODELS = {
    "transformer": TransformerModel,
    "rnn": RNNModel,
    "language": LanguageModel,
}
"""The kinds of models by name."""


# Cached, because the trials of a sweep share few scores.
@functools.cache
def _check_score(score: str, h: int, d_k: int) -> None:
    """Raises SettingsError for a score that cannot be drawn for h heads of d_k."""
    init = score_init(SCORES.value(score, "model.score"))
    try:
        # By shape, so that nothing is drawn.
        jax.eval_shape(lambda: init(jax.random.key(0), h, d_k, d_k))
    except ValueError as error:
        raise SettingsError(f"model.score={score}: {error}") from error
    except TypeError as error:
        if "not a valid JAX type" not in str(error):
            raise
        raise SettingsError(
            f"model.score={score}: it is not a score: "
            "a class with the decorator attn.score, of its own"
        ) from error


@functools.cache
def _check_normaliser(normaliser: str, h: int, selection: str) -> None:
    """Raises SettingsError for a normaliser that cannot be made for h heads, or sampled by."""
    key = f"model.normaliser={normaliser}"
    init = normaliser_init(NORMALISERS.value(normaliser, "model.normaliser"))
    try:
        value = jax.eval_shape(lambda: init(jax.random.key(0), h))
    except ValueError as error:
        raise SettingsError(f"{key}: {error}") from error
    require(
        value.sums_to_one or selection != "sampled",
        f"model.selection=sampled draws keys by their weights, and with {key} these need "
        "not sum to 1",
    )
    require(
        value.by_score or selection != "argmax",
        f"model.selection=argmax takes the key of the best score, which with {key} need not "
        "have the greatest weight",
    )
