"""The sizes of a model, and how it is put together."""

from collections.abc import Callable
from typing import NamedTuple

from attn.models.activations import ACTIVATIONS
from attn.models.embeddings import EMBEDDINGS
from attn.models.heads import GATES, Heads, Separate, check_own_keys
from attn.models.latents import check_keys
from attn.models.mixers import Mixer, SelfAttention
from attn.models.multihead import COMBINATIONS, check_name
from attn.models.selection import SELECTIONS
from attn.normalisers import normaliser_init
from attn.positions import Positions, Sinusoidal
from attn.scores import score_init

NORMS = ("post", "post_final", "pre")
"""The places of LayerNorm."""


class Shape(NamedTuple):
    """The sizes of a Transformer, in the paper's letters."""

    N: int
    d_model: int
    d_ff: int
    h: int
    d_k: int
    d_v: int
    h_kv: int | None = None
    """Heads of keys and values, see `MultiHeadAttention`; h unless given."""
    d_c: int | None = None
    """Width of the latents of which keys and values are made; unless given, none are."""
    d_r: int | None = None
    """Width of the key beside latents that positions turn; needed where they do."""

    @property
    def heads_of_keys(self) -> int:
        """The heads of keys and values."""
        return self.h if self.h_kv is None else self.h_kv


class Design(NamedTuple):
    """Says how a Transformer is put together; the defaults are the paper's."""

    norm: str = "post"
    """"post": LayerNorm(x + Sublayer(x)). "post_final": and one more LayerNorm after each
    stack, as in PyTorch's nn.Transformer. "pre": x + Sublayer(LayerNorm(x)), and a
    LayerNorm after each stack (Xiong et al. 2020)."""
    embeddings: str = "tied"
    """"tied": one matrix for source, target and output (section 3.4). "target": one for
    target and output, another for the source. "separate": three."""
    scale_embeddings: bool = True
    """Multiplies embeddings by √d_model."""
    biases: bool = False
    """Adds bias vectors to the products with W_Q, W_K, W_V, W_O and a gate's W_g."""
    activation: str = "relu"
    """The feed-forward network's, a name of ACTIVATIONS."""
    score: str | type | Callable = "scaled_dot"
    """Compares queries and keys: a name of `attn.SCORES`, a class of scores, or a function
    (key, h, d_q, d_k) -> score such as `Additive.init`."""
    normaliser: str | type | Callable = "softmax"
    """Makes weights of scores: a name of `attn.NORMALISERS`, a class of normalisers, or a
    function (key, h) -> normaliser such as `Entmax.init`."""
    positions: Positions = Sinusoidal()
    """Tells the model where a token stands, see `attn.positions`."""
    norm_epsilon: float = 1e-6
    """Added to the variance in LayerNorm; PyTorch has 1e-5."""
    combine: str = "concat"
    """Makes one vector of the heads', see `MultiHeadAttention`: "concat" and W_O, or
    "mean"; with the latter W_V has rank d_v, and d_v = d_model makes it one full matrix."""
    head_activation: str = "none"
    """On the output of attention, a name of ACTIVATIONS."""
    selection: str = "soft"
    """Takes values in the last layer's attention to the source, see
    `MultiHeadAttention`: "soft", "argmax", "sampled"; the last two need P_attention=0."""
    heads: Heads = Separate()
    """What the heads of an attention have to do with each other, see
    `attn.models.heads`."""
    gate: str = "none"
    """Multiplies the outputs of heads by σ(x W_g), see `MultiHeadAttention`: "none",
    "head" or "element"."""
    encoder_mixing: Mixer = SelfAttention()
    """Mixes the positions of a source, see `attn.models.mixers`."""
    decoder_mixing: Mixer = SelfAttention()
    """Mixes the positions of a target, each without those that follow."""


def check_design(design: Design, shape: Shape) -> None:
    """Raises ValueError for a name that is unknown, or a value that does not fit."""
    # Without an activation the feed-forward network would be one linear map.
    activations = [name for name in ACTIVATIONS if name != "none"]
    check_name("norm", design.norm, NORMS)
    check_name("embeddings", design.embeddings, EMBEDDINGS)
    check_name("activation", design.activation, activations)
    check_name("head_activation", design.head_activation, ACTIVATIONS)
    check_name("combine", design.combine, COMBINATIONS)
    check_name("selection", design.selection, SELECTIONS)
    check_name("gate", design.gate, GATES)
    # Called for its error, before any layer is made.
    score_init(design.score)
    normaliser_init(design.normaliser)
    for field, base, example in (
        ("positions", Positions, "Rotary()"),
        ("heads", Heads, "Differential()"),
        ("encoder_mixing", Mixer, "Recurrent()"),
        ("decoder_mixing", Mixer, "Recurrent()"),
    ):
        value = getattr(design, field)
        if not isinstance(value, base):
            raise ValueError(
                f"{field}={value!r} must be a {base.__name__}, such as {example}"
            )
    design.heads.check()
    check_keys(shape.h, shape.h_kv, shape.d_c, shape.d_r, design.positions)
    check_own_keys(design.heads, shape.h, shape.h_kv, shape.d_c)
    design.positions.check(shape.d_model, shape.d_r or shape.d_k)
    design.encoder_mixing.check(shape.d_model)
    design.decoder_mixing.check(shape.d_model)
