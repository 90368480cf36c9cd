"""What a model is: frozen dataclasses that modules, checks, settings and reports share.

An option is declared and documented here, once. `Attention` has those of one attention,
`Block` those of a layer; a model's own are in its class, beside the options of all its
layers, which parts of it may change:

    Transformer(N=2, d_model=64, h=4, d_k=16, d_v=16)
    Transformer(h=8, encoder={"N": 12}, cross={"h": 4}, decoder={"layer_1": {"h": 2}})

What lanes of one program vary, as P_drop, is no part of a description: it is among the
numbers of `attn.Context`. Sizes are in the paper's letters.
"""

import contextlib
import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax.core import FrozenDict

from attn.arguments import check_heads
from attn.heads import Heads, Separate
from attn.mixers import Mixer, SelfAttention
from attn.mixers.recurrence import CELLS
from attn.nn.layers import (
    ACTIVATIONS,
    EMBEDDINGS,
    FeedForward,
    ReLU,
)
from attn.nn.norms import Norm, Post
from attn.nn.selection import SELECTIONS
from attn.normalisers import NORMALISERS, check_selected, normaliser_init
from attn.positions import NoPositions, Positions, Sinusoidal
from attn.residuals import NoResidual, Residual
from attn.scores import SCORES, ScoreChoice, score_init

LARGEST = 2**31 - 1
"""Counts fit int32, in which a compiled program counts."""
GATES = ("none", "head", "element")
"""The gates on the output of attention: none, a number a head, a number a feature."""
COMBINATIONS = ("concat", "mean")
"""The ways to make one vector of those of the heads."""


def field(
    default: Any, allowed: str, accepts: Callable[[Any], bool], **more: Any
) -> Any:
    """Returns a dataclass field for which `accepts(value)` says what may be set.

    `allowed` names such values for messages.
    """
    metadata = dict(allowed=allowed, accepts=accepts, others=(), **more)
    return dataclasses.field(default=default, metadata=metadata)


def at_least(
    low: int | float, default: int | float, most: int | float = LARGEST
) -> Any:
    """Returns a field for a number from `low` to `most`."""
    allowed = f"at least {low} and at most {most}"
    return field(default, allowed, lambda value: low <= value <= most)


def one_of(names: Iterable[str], default: str) -> Any:
    """Returns a field for one of some names."""
    names = tuple(names)
    allowed = "one of " + ", ".join(names)
    return field(default, allowed, lambda value: value in names, names=names)


def flag(default: bool) -> Any:
    """Returns a field for a truth value."""
    return field(default, "True or False", lambda value: isinstance(value, bool))


def value_of(base: type, default: Any) -> Any:
    """Returns a field for a value of a class, such as `Positions`."""
    allowed = f"a {base.__name__}, such as {default!r}"
    return field(default, allowed, lambda value: isinstance(value, base), choice=base)


def made_by(kind: str, default: str, registry: Mapping[str, type], *others: str) -> Any:
    """Returns a field for a score or a normaliser: a name, a class or its `init`."""
    allowed = f"one of {', '.join((*others, *registry))}, a class or an init function"

    def accepts(value):
        return value in registry or value in others or callable(value)

    metadata = dict(allowed=allowed, accepts=accepts, choice=kind, others=others)
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Attention:
    """One attention: MultiHead(Q, K, V) = Concat(head_1, …, head_h) W_O (section 3.2.2)."""

    d_model: int = at_least(2, 512, 2**16)
    """Width of embeddings and of every layer's output, in features."""
    h: int = at_least(1, 8, 2**12)
    """Heads of each attention."""
    d_k: int = at_least(1, 64, 2**16)
    """Width of a head's queries and keys, in features, independent of d_model and h."""
    d_v: int = at_least(1, 64, 2**16)
    """Width of a head's values, in features."""
    h_kv: int = at_least(0, 0, 2**12)
    """Heads of keys and values: 0 for h, 1 for multi-query attention, otherwise a divisor of
    h, for grouped-query attention. A decoder's cache is smaller by h/h_kv."""
    d_c: int = at_least(0, 0, 2**16)
    """Width of the latents that keys and values are made of, in features; 0 for none. This is
    multi-head latent attention; a decoder's cache has d_c numbers a token."""
    d_r: int = at_least(0, 0, 2**16)
    """Width of the key beside latents that rotary positions turn, in features. Only these
    need it, and only with d_c."""
    score: Any = made_by("score", "scaled_dot", SCORES)
    """The function by which attention compares a query and a key."""
    normaliser: Any = made_by("normaliser", "softmax", NORMALISERS)
    """How attention turns scores into weights."""
    positions: Positions = value_of(Positions, Sinusoidal())
    """How the model knows where a token stands: by a table that is added to the embeddings
    (sinusoidal, learned, randomised), or within self-attention (the others)."""
    heads: Heads = value_of(Heads, Separate())
    """How the heads of an attention interact. All but separate, differential and exclusive take
    memory h·n²."""
    residual: Residual = value_of(Residual, NoResidual())
    """What self-attention takes over from earlier layers. scores takes memory h·n²."""
    gate: str = one_of(GATES, "none")
    """A gate σ(x W_g) on the outputs of heads before W_O. head: one number a head and token;
    element: d_v numbers."""
    # The projections of section 3.2.2 are matrices alone.
    biases: bool = flag(False)
    """Whether W_Q, W_K, W_V and W_O, and a gate's W_g, have bias vectors."""
    combine: str = one_of(COMBINATIONS, "concat")
    """How heads become one vector. concat: Concat(heads) W_O; mean: the mean of heads whose
    W_V leads to d_model, of rank d_v where d_v differs from d_model."""
    head_activation: str = one_of(ACTIVATIONS, "none")
    """Activation function on the output of attention."""

    @property
    def heads_of_keys(self) -> int:
        """The heads of keys and values."""
        return self.h_kv or self.h

    @property
    def width(self) -> int:
        """The width of a head's queries and keys, of all its maps together."""
        return self.heads.maps * self.d_k

    @property
    def has_w_o(self) -> bool:
        """Whether matrices W_O bring the heads' vectors to d_model."""
        return self.combine == "concat" or self.d_v != self.d_model

    def check(self) -> None:
        """Raises ValueError for options that contradict each other."""
        check_fields(self)
        with naming("h_kv", self.h_kv):
            check_heads(self.h, self.heads_of_keys)
        turns = self.positions.rotates
        if self.d_c and turns and not self.d_r:
            raise ValueError(
                f"positions={self.positions} turn keys, and those of latents "
                f"(d_c={self.d_c}) are not kept; give d_r, the width of a key beside them "
                "that is"
            )
        if self.d_r and not (self.d_c and turns):
            raise ValueError(
                f"d_r={self.d_r} is the width of a key that positions turn, beside latents: "
                f"it needs both, not d_c={self.d_c} with positions={self.positions}"
            )
        for name in ("positions", "heads", "residual"):
            with naming(name, getattr(self, name)):
                getattr(self, name).check(self)
        self._check_acting()
        drawn(self.score, self.normaliser, self.h, self.d_k + self.d_r)

    def _check_acting(self) -> None:
        """Raises ValueError for classes whose methods a step would leave out."""
        for name in ("heads", "residual"):
            value = getattr(self, name)
            if value.acts and self.d_c:
                raise ValueError(
                    f"{name}={value} read keys or values, and a step has latents in their "
                    f"place: d_c={self.d_c} must be 0"
                )
        if self.heads.acts and self.residual.takes_scores:
            raise ValueError(
                f"heads={self.heads} and residual={self.residual} both make weights of scores"
            )

    def check_alone(self) -> None:
        """Raises ValueError as `check` does, but not for a table, which is the model's."""
        has_table = not self.positions.in_layers
        alone = (
            dataclasses.replace(self, positions=NoPositions()) if has_table else self
        )
        Attention.check(alone)

    def of_memory(self) -> "Attention":
        """Returns the options of attention to another text, whose places say nothing."""
        return dataclasses.replace(
            self,
            positions=NoPositions(),
            residual=NoResidual(),
            heads=self.heads.of_memory(),
            d_r=0,
        )


OF_ATTENTION = {
    option.name: option.default
    for option in dataclasses.fields(Attention)
    if option.name not in ("d_model", "h", "d_k", "d_v")
}
"""The options that no other mixer reads, and what they are where nobody asks for another."""


@dataclasses.dataclass(frozen=True)
class Layer(Attention):
    """The options that the layers of every model have beside those of attention."""

    d_ff: int = at_least(1, 2048, 2**20)
    """Hidden width of the feed-forward network, in features."""
    feed_forward: FeedForward = value_of(FeedForward, ReLU())
    """The feed-forward network, by its activation; gated has a third matrix."""
    # The paper has post; tensor2tensor's later defaults are pre.
    norm: Norm = value_of(Norm, Post())
    """Place and kind of normalisation. kind=layer is LayerNorm, kind=rms RMSNorm."""


@dataclasses.dataclass(frozen=True)
class Block(Layer):
    """One layer: what mixes the positions of a text, and the feed-forward network."""

    mixing: Mixer = value_of(Mixer, SelfAttention())
    """What mixes positions."""

    def check(self) -> None:
        """Raises ValueError for options that contradict each other."""
        super().check()
        with naming("mixing", self.mixing):
            self.mixing.check(self)


def changes(of: str) -> Any:
    """Returns a field for what differs in a part of a model, {option: value}."""
    return dataclasses.field(default=FrozenDict(), metadata={"part": of})


OF_LAYER = re.compile(r"layer_([1-9]\d*)")
"""The key of what differs in one layer of a stack, counted from 1."""


@dataclasses.dataclass(frozen=True)
class Stacks(Layer):
    """The options that models of one or two stacks of layers have."""

    N: int = at_least(1, 6, 1000)
    """Layers in the encoder, and as many in the decoder."""
    embedding_scale: float = at_least(0, 0.0, 1e6)
    """Factor on embeddings, above 0; 0 is the paper's √d_model."""

    parts: ClassVar[tuple[str, ...]]
    numbers: ClassVar[tuple[str, ...]] = ("P_drop", "P_attention", "P_ff")
    """The numbers of the context that it reads."""
    has_stacks: ClassVar[bool] = True
    """Whether it has stacks of layers, for remat and scan."""

    def __post_init__(self):
        for part in self.parts:
            object.__setattr__(self, part, FrozenDict(getattr(self, part)))

    def stack(self, part: str) -> tuple[Block, ...]:
        """Returns the layers of the "encoder" or the "decoder"."""
        return tuple(self._block(part, i + 1) for i in range(self.layers(part)))

    def layers(self, part: str) -> int:
        """Returns the number of layers of the "encoder" or the "decoder"."""
        return getattr(self, part).get("N", self.N)

    def _block(self, part: str, number: int) -> Block:
        options = _options_of(self, Layer)
        options["mixing"] = getattr(self, f"{part}_mixing")
        return Block(**options | _changed(getattr(self, part), number))

    def tables(self) -> dict[str, Positions]:
        """Returns the positions that fill each of the model's tables, by its name."""
        names = {"encoder": "source_positions", "decoder": "target_positions"}
        return {
            table: self.positions_of(part)
            for part, table in names.items()
            if part in self.parts
        }

    def positions_of(self, part: str) -> Positions:
        """Returns the positions of a stack, of which single layers may have others."""
        return getattr(self, part).get("positions", self.positions)

    @property
    def _blocks(self) -> list[Block]:
        stacks = [self.stack(part) for part in self.parts if part != "cross"]
        return [block for stack in stacks for block in stack]

    @property
    def _has_self_attention(self) -> bool:
        return any(block.mixing.attends for block in self._blocks)

    @property
    def attends(self) -> bool:
        """Whether a layer has attention, to its own text or to another."""
        return "cross" in self.parts or self._has_self_attention

    def final_norm(self, part: str) -> Norm | None:
        """Returns the norm that follows a stack, which is its last layer's, or None."""
        norm = self.stack(part)[-1].norm
        return norm if norm.final else None

    def without_tables(self) -> "Stacks":
        """Returns the model with no positions in place of those that only fill a table.

        Models that differ in such tables are one program: a table is data.
        """
        changed = {}
        if self.positions.is_data:
            changed["positions"] = NoPositions()
        for part in self.parts:
            own = getattr(self, part)
            if own.get("positions", NoPositions()).is_data and "positions" in own:
                changed[part] = own.copy({"positions": NoPositions()})
        return dataclasses.replace(self, **changed)

    @property
    def scale(self) -> float:
        """The factor on embeddings."""
        return self.embedding_scale or self.d_model**0.5

    def check(self) -> None:
        """Raises ValueError for options that contradict each other."""
        check_fields(self)
        for part in self.parts:
            _check_changes(part, getattr(self, part), self)
        for part in ("encoder", "decoder"):
            if part in self.parts:
                blocks = self.stack(part)
                for block in dict.fromkeys(blocks):
                    block.check()
                    with naming(f"{part}_mixing", block.mixing):
                        block.mixing.check_direction(block, part == "decoder")
                _check_shared(part, blocks)
                _check_norms(part, blocks)
        self._check_idle()

    def _check_idle(self) -> None:
        """Raises ValueError for options of attention, where no layer has one.

        A setting without any effect would make equal models look like different rows.
        """
        if self._has_self_attention:
            return
        for name, default in OF_ATTENTION.items():
            for value in (getattr(block, name) for block in self._blocks):
                if name == "positions":
                    is_idle = value.in_layers
                else:
                    # Attention to another text reads the others.
                    is_idle = "cross" not in self.parts and value != default
                if is_idle:
                    mixers = (
                        f"{part}_mixing={getattr(self, f'{part}_mixing')}"
                        for part in self.parts
                        if part != "cross"
                    )
                    raise ValueError(
                        f"{name}={value} is of self-attention, and there is none: "
                        + ", ".join(mixers)
                    )

    @property
    def unlike_layers(self) -> str:
        """The reason why layers of a stack are not all alike, as scan needs them; or ""."""
        for part in self.parts:
            if any(OF_LAYER.fullmatch(key) for key in getattr(self, part)):
                return f"{part} has layers with options of their own"
            if part in ("encoder", "decoder") and self.stack(part)[0].norm.remembers:
                norm = self.stack(part)[0].norm
                return f"norm={norm} reads the outputs of all layers before it"
        return ""


@dataclasses.dataclass(frozen=True)
class Decoder(Stacks):
    """The options of models that have a decoder."""

    embeddings: str = one_of(EMBEDDINGS, "tied")
    """Sharing of the vocabulary matrices. tied: one for source, target and output;
    target: one for target and output; separate: three."""
    decoder_mixing: Mixer = value_of(Mixer, SelfAttention())
    """What mixes the positions of the target, looking back only. decay=feature or head: a
    decay for each feature of a key or for each head; beta_max: the largest β, at most 2;
    householders: how often a token writes to the state."""
    decoder: Mapping[str, Any] = changes("decoder")
    """What differs in the decoder's layers, or in one of them: model.decoder.N=2,
    model.decoder.h=4, model.decoder.layer_1.score=additive."""

    parts: ClassVar[tuple[str, ...]] = ("decoder",)


@dataclasses.dataclass(frozen=True)
class Transformer(Decoder):
    """The encoder-decoder of "Attention Is All You Need"; the defaults are its base model."""

    kind: ClassVar[str] = "transformer"
    parts: ClassVar[tuple[str, ...]] = ("encoder", "decoder", "cross")

    encoder_mixing: Mixer = value_of(Mixer, SelfAttention())
    """What mixes the positions of the source, as decoder_mixing, but in both directions."""
    selection: str = one_of(SELECTIONS, "soft")
    """How the last layer's attention to the source takes values. soft: their mean; argmax:
    that of the best key, with the gradient of soft attention; sampled: that of a random key
    in training, by REINFORCE, and of the best key otherwise. The last two need
    P_attention=0."""
    encoder: Mapping[str, Any] = changes("encoder")
    """What differs in the encoder's layers, as model.decoder."""
    cross: Mapping[str, Any] = changes("cross")
    """What differs in the attentions to the source, as model.decoder."""

    def cross_attentions(self) -> tuple[Attention, ...]:
        """Returns the options of each decoder layer's attention to the source."""
        layers = range(1, self.layers("decoder") + 1)
        return tuple(self._cross_attention(number) for number in layers)

    def _cross_attention(self, number: int) -> Attention:
        options = _options_of(self.of_memory(), Attention)
        return Attention(**options | _changed(self.cross, number))

    def check(self) -> None:
        super().check()
        for attention in dict.fromkeys(self.cross_attentions()):
            attention.check()
        if self.selection != "soft":
            last = self.cross_attentions()[-1]
            last.heads.check_selection(self.selection)
            _, normaliser = drawn(last.score, last.normaliser, last.h, last.d_k)
            check_selected(normaliser, self.selection)

    @property
    def unlike_layers(self) -> str:
        if self.selection != "soft":
            return f"selection={self.selection} makes the last layer differ"
        return super().unlike_layers


@dataclasses.dataclass(frozen=True)
class LanguageModel(Decoder):
    """A decoder by itself, which models the target side."""

    kind: ClassVar[str] = "language"

    # Without a source, `target` would say the same as `tied`.
    embeddings: str = one_of(("tied", "separate"), "tied")
    """Sharing of the vocabulary matrices. tied: one for input and output; separate: two."""


@dataclasses.dataclass(frozen=True)
class Classifier(Stacks):
    """An encoder, attention pooling over it, and a linear map to labels (Yang et al. 2016)."""

    kind: ClassVar[str] = "classifier"
    parts: ClassVar[tuple[str, ...]] = ("encoder",)

    encoder_mixing: Mixer = value_of(Mixer, SelfAttention())
    """What mixes the positions of the source, as decoder_mixing, but in both directions."""
    encoder: Mapping[str, Any] = changes("encoder")
    """What differs in the encoder's layers, as model.decoder."""
    pooling_score: Any = made_by("score", "additive", SCORES)
    """The function by which the learned query of the pooling compares itself with the
    encoder's states."""
    pooling_normaliser: Any = made_by("normaliser", "softmax", NORMALISERS)
    """How the pooling makes weights of scores, softmax or what stands in its place."""

    def check(self) -> None:
        super().check()
        score, normaliser = self.pooling_score, self.pooling_normaliser
        with naming("pooling", f"{score}, {normaliser}"):
            drawn(score, normaliser, 1, self.d_model)


@dataclasses.dataclass(frozen=True)
class RNN:
    """The recurrent encoder-decoder with attention."""

    kind: ClassVar[str] = "rnn"
    numbers: ClassVar[tuple[str, ...]] = ("P_drop",)
    has_stacks: ClassVar[bool] = False

    N: int = at_least(1, 6, 1000)
    """Layers in the encoder, and as many in the decoder."""
    d_model: int = at_least(2, 512, 2**16)
    """Width of embeddings and of every layer's output, in features; an even number."""
    embeddings: str = one_of(EMBEDDINGS, "tied")
    """Sharing of the vocabulary matrices, as for the Transformer."""
    score: Any = made_by("score", "scaled_dot", SCORES, "none")
    """The function by which attention compares states; none: there is no attention, and
    the encoder's last states stand in its place."""
    normaliser: Any = made_by("normaliser", "softmax", NORMALISERS)
    """How attention turns scores into weights."""
    cell: str = one_of(CELLS, "lstm")
    """The recurrent cell."""
    selection: str = one_of(SELECTIONS, "soft")
    """How attention takes states of the source, as for the Transformer."""

    def tables(self) -> dict[str, Positions]:
        """Returns none: a recurrence has no table of positions."""
        return {}

    def without_tables(self) -> "RNN":
        """Returns the model itself."""
        return self

    def check(self) -> None:
        """Raises ValueError for options that contradict each other."""
        check_fields(self)
        if self.d_model % 2:
            raise ValueError(
                f"d_model={self.d_model} must be even: each direction of a recurrence has "
                "half of it"
            )
        if self.score == "none":
            for name, default in (("selection", "soft"), ("normaliser", "softmax")):
                if getattr(self, name) != default:
                    raise ValueError(f"{name}={getattr(self, name)} needs a score")
        else:
            _, normaliser = drawn(self.score, self.normaliser, 1, self.d_model)
            check_selected(normaliser, self.selection)

    @property
    def unlike_layers(self) -> str:
        """No reason: it has no stacks."""
        return ""


Model = Transformer | LanguageModel | RNN | Classifier
MODELS = {cls.kind: cls for cls in (Transformer, RNN, LanguageModel, Classifier)}
"""The kinds of models by name."""


def _options_of(value: Any, cls) -> dict[str, Any]:
    """Returns the options of `cls`, a base of value's class, as `value` has them."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(cls)}


# Cached, because the trials of a sweep share few of them.
@functools.cache
def drawn(
    score: ScoreChoice, normaliser: ScoreChoice, h: int, d_k: int
) -> tuple[Any, Any]:
    """Returns a score and a normaliser of h heads of d_k features, by shape alone.

    Raises:
      ValueError: they cannot be drawn.
    """
    with naming("score", score):
        drawn_score = _by_shape(lambda key: score_init(score)(key, h, d_k, d_k))
    with naming("normaliser", normaliser):
        return drawn_score, _by_shape(lambda key: normaliser_init(normaliser)(key, h))


def _by_shape(init: Callable) -> Any:
    try:
        return jax.eval_shape(lambda: init(jax.random.key(0)))
    except TypeError as error:
        if "not a valid JAX type" not in str(error):
            raise
        raise ValueError(
            "it is not a score: a class with the decorator attn.score, of its own"
        ) from error


@contextlib.contextmanager
def naming(option: str, value: Any) -> Iterator[None]:
    """Adds the option and its value to what a ValueError says in this `with` block."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{option}={value}: {error}") from error


def check_fields(value: Any) -> None:
    """Raises ValueError for an option that its field does not accept."""
    for option in dataclasses.fields(value):
        given = getattr(value, option.name)
        # bool is an int to Python, and no number of features.
        if option.type in (int, float) and (
            not isinstance(given, int | option.type) or isinstance(given, bool)
        ):
            needed = "a whole number" if option.type is int else "a number"
            raise ValueError(f"{option.name}={given!r} must be {needed}")
        if "accepts" in option.metadata and not option.metadata["accepts"](given):
            raise ValueError(
                f"{option.name}={given!r} must be {option.metadata['allowed']}"
            )


def options_of_part(part: str) -> dict[str, dataclasses.Field]:
    """Returns the options that may differ in a part of a model, "cross" or a stack."""
    options = {option.name: option for option in dataclasses.fields(Block)}
    del options["d_model"]
    if part != "cross":
        return options
    own = {option.name for option in dataclasses.fields(Attention)}
    return {
        name: option
        for name, option in options.items()
        if name in own and name not in ("positions", "residual", "d_r")
    }


def _check_changes(part: str, changed: Mapping[str, Any], model: "Stacks") -> None:
    """Raises ValueError for changes of a part that it cannot have."""
    known = options_of_part(part)
    layers = model.layers("decoder" if part == "cross" else part)
    if layers < 1:
        raise ValueError(f"{part}.N={layers} must be at least 1")
    for key, value in changed.items():
        number = OF_LAYER.fullmatch(key)
        if number and int(number[1]) > layers:
            raise ValueError(f"{part}.{key}: the {part} has {layers} layers")
        inner = value if number else {key: value}
        for name, own in inner.items():
            if name not in known and not (
                name == "N" and part != "cross" and not number
            ):
                raise ValueError(
                    f"{part}.{name} is no option of the {part} (known: {', '.join(known)})"
                )
            if part == "cross" and name == "heads" and own.of_memory() != own:
                raise ValueError(
                    f"{part}.{name}={own} read a token's own text, and attention to another "
                    f"text has heads={own.of_memory()}: leave it out"
                )
            if number and name == "positions" and not own.in_layers:
                _check_layers_positions(
                    f"{part}.{key}.positions={own}", own, model.positions_of(part)
                )


def _check_layers_positions(what: str, own: Positions, of_stack: Positions) -> None:
    """Raises ValueError for `own` positions of a layer that are in no layer.

    None are allowed, where the stack's are in its layers.
    """
    if own != NoPositions():
        raise ValueError(f"{what} fill the table of the whole stack, and not one layer")
    if not of_stack.in_layers:
        raise ValueError(
            f"{what} changes nothing: positions={of_stack} of the stack are in no layer"
        )


def _check_shared(part: str, blocks: tuple[Block, ...]) -> None:
    """Raises ValueError for layers that differ in what they share."""
    shared = [
        jax.eval_shape(lambda b=block: b.residual.shared(b, 1, 1, 1, jnp.float32))
        for block in blocks
        if block.mixing.attends
    ]
    alike = len(shared) == len(blocks) and all(one == shared[0] for one in shared)
    if any(shared) and not alike:
        names = ", ".join(dict.fromkeys(str(block.residual) for block in blocks))
        raise ValueError(
            f"the {part}'s layers pass arrays from one to the next (residual: {names}): "
            "all need attention with the same residual and the same heads"
        )


def _check_norms(part: str, blocks: tuple[Block, ...]) -> None:
    """Raises ValueError for layers that differ where one reads the outputs of all."""
    norms = list(dict.fromkeys(block.norm for block in blocks))
    if len(norms) > 1 and any(norm.remembers for norm in norms):
        raise ValueError(
            f"the {part}'s layers have the norms {', '.join(map(str, norms))}, one of which "
            "reads the outputs of all layers: give all layers the same norm"
        )


def _changed(changed: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Returns what a part changes in the layer of a number."""
    of_stack = {
        k: v for k, v in changed.items() if k != "N" and not OF_LAYER.fullmatch(k)
    }
    return of_stack | dict(changed.get(f"layer_{number}", {}))
