"""Settings of the model: a dataclass for each kind, in the paper's letters.

The defaults of the Transformer are the paper's base model.
"""

import dataclasses

from experiments.settings import fields
from experiments.settings.fields import require

POSITIONS = ("sinusoidal", "sinusoidal_halves", "sinusoidal_t2t", "learned", "none")
RELATIVE = ("rotary", "relative", "t5", "alibi")
SCORES = ("dot", "scaled_dot", "bilinear", "additive")
SELECTIONS = ("soft", "argmax", "sampled")
COMBINATIONS = ("concat", "mean")
MIXING = ("attention", "restricted", "recurrence", "convolution", "separable")
CELLS = ("gru", "lstm", "tanh")
NORMS = ("post", "post_final", "pre")
EMBEDDINGS = ("tied", "target", "separate")
ACTIVATIONS = ("relu", "gelu", "silu")


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
    embeddings: str = fields.one_of(EMBEDDINGS, "tied")
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
    score: str = fields.one_of(SCORES, "scaled_dot")
    """The function by which attention compares a query and a key."""
    positions: str = fields.one_of(POSITIONS + RELATIVE, "sinusoidal")
    """How the model knows where a token stands: a table that is added to the embeddings
    (sinusoidal, learned), or a part of self-attention (rotary, alibi, relative, t5)."""
    norm: str = fields.one_of(NORMS, "post")
    """Place of LayerNorm. post: LayerNorm(x + Sublayer(x)); post_final: and one more after
    each stack; pre: x + Sublayer(LayerNorm(x))."""
    scale_embeddings: bool = fields.flag(True)
    """Multiply embeddings by √d_model: True or False."""
    biases: bool = fields.flag(False)
    """Give W_Q, W_K, W_V and W_O bias vectors: True or False."""
    combine: str = fields.one_of(COMBINATIONS, "concat")
    """How heads become one vector. concat: Concat(heads) W_O; mean: the mean of heads whose
    W_V leads to d_model, one full matrix where d_v = d_model, otherwise of rank d_v."""
    head_activation: str = fields.one_of(("none", *ACTIVATIONS), "none")
    """Activation function on the output of attention."""
    activation: str = fields.one_of(ACTIVATIONS, "relu")
    """Activation function of the feed-forward network."""
    P_attention: float = fields.rate(0.0)
    """Probability of dropout of attention weights, in [0, 1)."""
    P_ff: float = fields.rate(0.0)
    """Probability of dropout of the feed-forward network's hidden units, in [0, 1)."""
    decoder_mixing: str = fields.one_of(MIXING, "attention")
    """What mixes the positions of the target, Table 1 of the paper: attention; restricted
    attention, which reaches `radius` positions back; recurrence; convolution; separable,
    a convolution of each feature by itself and then a matrix. All look back only."""
    radius: int = fields.at_least(0, 4, 2**16)
    """Reach of restricted attention and of convolutions to each side, in positions; 0 to
    65,536."""
    cell: str = fields.one_of(CELLS, "lstm")
    """The cell of recurrences."""

    def check(self) -> None:
        require(
            self.d_model % 2 == 0 or not self.positions.startswith("sinusoidal"),
            f"model.d_model={self.d_model} must be even: sinusoidal positions come as "
            "pairs (sin, cos)",
        )
        require(
            self.d_model >= 4 or self.positions != "sinusoidal_t2t",
            "model.positions=sinusoidal_t2t needs a model.d_model of 4 at least, not "
            f"{self.d_model}",
        )
        require(
            self.d_k % 2 == 0 or self.positions != "rotary",
            f"model.d_k={self.d_k} must be even: rotary positions turn pairs",
        )
        mixing = {self.decoder_mixing, getattr(self, "encoder_mixing", None)}
        require(
            self.positions not in RELATIVE or mixing & {"attention", "restricted"},
            f"model.positions={self.positions} is a part of self-attention, and there is "
            f"none: {self._shown_mixing()}",
        )

    def _shown_mixing(self):
        return f"model.decoder_mixing={self.decoder_mixing}"


@dataclasses.dataclass(frozen=True)
class TransformerModel(LayeredModel):
    """Holds the settings of the Transformer, an encoder-decoder."""

    kind: str = fields.one_of(("transformer",), "transformer")
    encoder_mixing: str = fields.one_of(MIXING, "attention")
    """What mixes the positions of the source, as decoder_mixing, but in both directions."""
    selection: str = fields.one_of(SELECTIONS, "soft")
    """How the last layer's attention to the source takes values. soft: their mean; argmax:
    that of the best key, with the gradient of soft attention; sampled: that of a random key
    in training, by REINFORCE, and of the best key otherwise."""

    def check(self) -> None:
        super().check()
        require(
            self.d_model % 2 == 0 or self.encoder_mixing != "recurrence",
            f"model.d_model={self.d_model} must be even: each direction of a recurrence "
            "has half of it",
        )

    @property
    def unlike_layers(self) -> str:
        if self.selection == "soft":
            return ""
        return f"model.selection={self.selection} makes the last layer differ"

    def _shown_mixing(self):
        return f"model.encoder_mixing={self.encoder_mixing}, {super()._shown_mixing()}"


@dataclasses.dataclass(frozen=True)
class RNNModel(Model):
    """Holds the settings of `attn.RNN`, the recurrent encoder-decoder with attention."""

    kind: str = fields.one_of(("rnn",), "rnn")
    score: str = fields.one_of((*SCORES, "none"), "scaled_dot")
    """The function by which attention compares states; none: there is no attention, and
    the encoder's last states stand in its place."""
    cell: str = fields.one_of(CELLS, "lstm")
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

    @property
    def unlike_layers(self) -> str:
        return "model.kind=rnn has no stacks of Transformer layers"


@dataclasses.dataclass(frozen=True)
class LanguageModel(LayeredModel):
    """Holds the settings of a language model: a decoder without a source."""

    kind: str = fields.one_of(("language",), "language")
    embeddings: str = fields.one_of(("tied", "separate"), "tied")
    """Sharing of the vocabulary matrices. tied: one for input and output; separate: two."""


MODELS = {
    "transformer": TransformerModel,
    "rnn": RNNModel,
    "language": LanguageModel,
}
"""The kinds of models by name."""
