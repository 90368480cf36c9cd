"""ConfigDict -> frozen, checked dataclasses: the door every experiment comes in by.

A config file fills an `ml_collections.ConfigDict` (start from `default_config()`), `resolve()` turns it
into `Settings`, and the rest of the code trusts those. Nothing else in the project reads a ConfigDict.
"""

import dataclasses
import difflib
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

import ml_collections

from experiments.errors import UserError
from experiments.settings import fields

POSITIONS = ("sinusoidal", "sinusoidal_halves", "sinusoidal_t2t", "learned", "none")
"""What is added to the embeddings."""


RELATIVE = ("rotary", "relative", "t5", "alibi")
"""What self-attention is told of distances, nothing being added to the embeddings."""


KINDS = ("transformer", "rnn", "language")


SCORES = ("dot", "scaled_dot", "bilinear", "additive", "none")


CHOICES = ("soft", "argmax", "sampled")


HEADS = ("concat", "mean")


MIXING = ("attention", "restricted", "recurrence", "convolution", "separable")


CELLS = ("gru", "lstm", "tanh")


NORMS = ("post", "post_final", "pre")


EMBEDDINGS = ("tied", "target", "separate")


ACTIVATIONS = ("relu", "gelu", "silu")


OPTIMIZERS = ("adam", "sgd")


CORPORA = ("cldr", "files", "tfds", "text")


STRATEGIES = ("pmap", "shard_map")


PRECISIONS = ("float32", "bfloat16")


WEIGHTS = ("raw", "average", "ema", "best")


NONFINITE = ("stop", "skip")


class SettingsError(UserError):
    """A setting that makes no sense; the message names the setting, its value and what is known."""


@dataclasses.dataclass(frozen=True)
class Model:
    """Shape, design and dropout of the Transformer, in the paper's letters; the defaults are its base model."""

    kind: str = fields.one_of(KINDS, "transformer")
    """rnn: the recurrent encoder-decoder with attention (`attn.RNN`), which knows N, d_model, score, embeddings, cell,
    choice and P_drop alone. language: a decoder by itself (`attn.LanguageModel`), of the corpus's target side."""
    N: int = fields.at_least(1, 6, 1000)
    """Layers in the encoder, and again in the decoder."""
    d_model: int = fields.at_least(2, 512, 2**16)
    d_ff: int = fields.at_least(1, 2048, 2**20)
    h: int = fields.at_least(1, 8, 2**12)
    d_k: int = fields.at_least(1, 64, 2**16)
    d_v: int = fields.at_least(1, 64, 2**16)
    score: str = fields.one_of(SCORES, "scaled_dot")
    """What attention compares by; none, for kind=rnn: no attention, the encoder's last states in its place."""
    positions: str = fields.one_of(POSITIONS + RELATIVE, "sinusoidal")
    norm: str = fields.one_of(NORMS, "post")
    """post: LayerNorm(x + Sublayer(x)); post_final: and one more after each stack; pre: x + Sublayer(LayerNorm(x))."""
    embeddings: str = fields.one_of(EMBEDDINGS, "tied")
    """tied: one matrix for source, target and output; target: one for target and output; separate: three."""
    scale_embeddings: bool = fields.flag(True)
    """Whether embeddings are multiplied by √d_model."""
    biases: bool = fields.flag(False)
    """Whether W_Q, W_K, W_V and W_O come with bias vectors."""
    combine: str = fields.one_of(HEADS, "concat")
    """concat: Concat(heads) W_O; mean: the mean of heads whose W_V leads to d_model, one full matrix with d_v =
    d_model, otherwise of rank d_v."""
    selection: str = fields.one_of(CHOICES, "soft")
    """Of the attention to the source, in a Transformer that of the last layer: soft; argmax, the best key alone, with
    the gradient of soft attention; sampled, a random key in training, by REINFORCE, and the best otherwise."""
    head_activation: str = fields.one_of(("none", *ACTIVATIONS), "none")
    """On the output of attention."""
    activation: str = fields.one_of(ACTIVATIONS, "relu")
    P_drop: float = fields.rate(0.1)
    """Dropout on sub-layer outputs and on the sums of embeddings and positions."""
    P_attention: float = fields.rate(0.0)
    """Dropout on attention weights."""
    P_ff: float = fields.rate(0.0)
    """Dropout on the feed-forward network's hidden units."""
    encoder_mixing: str = fields.one_of(MIXING, "attention")
    """What mixes the positions of the source, Table 1 of the paper: attention; restricted, to `radius` positions on
    each side; recurrence, in both directions; convolution, of 2·radius + 1 taps; separable, a convolution of each
    feature by itself and then a matrix."""
    decoder_mixing: str = fields.one_of(MIXING, "attention")
    """The same of the target; a decoder's restricted attention reaches `radius` back, and all taps are in the past."""
    radius: int = fields.at_least(0, 4, 2**16)
    cell: str = fields.one_of(CELLS, "lstm")
    """Of recurrences."""


@dataclasses.dataclass(frozen=True)
class Data:
    """Where sentence pairs come from and how they are cut into tokens."""

    corpus: str = fields.one_of(CORPORA, "cldr")
    source: str = fields.name("en")
    """Language of the source: a CLDR locale, or the file ending `train.en`."""
    target: str = fields.name("de")
    directory: str = fields.directory("")
    """corpus=files: the folder that holds `<train>.<source>`, `<train>.<target>` and so on, plain or .gz; corpus=text:
    that holds the files `<train>`, `<validation>` and `<test>`; corpus=tfds: TFDS's data_dir, its own default where
    empty."""
    dataset: str = fields.field(
        "",
        "a data set of TFDS, as wmt14_translate/de-en",
        lambda value: bool(re.fullmatch(r"(\w+(/[\w-]+)?(:[\w.*]+)?)?", value)),
    )
    """corpus=tfds: the data set, with its config; `train`, `validation` and `test` are then its splits."""
    train: str = fields.name("train")
    validation: str = fields.name("val")
    test: str = fields.name("test")
    pairs: int = fields.at_least(100, 40_000, 10**7)
    """corpus=cldr: distinct pairs to generate for training; validation and test have `heldout` each. So they have with
    corpus=text where all three are one file: its last lines."""
    heldout: int = fields.at_least(1, 500, 10**6)
    concatenate: int = fields.at_least(1, 1, 64)
    """corpus=cldr: above 1, one to so many held-out pairs in a row are one, and one or two of training, to see what
    happens beyond the lengths of training. There are then fewer pairs."""
    corpus_seed: int = fields.at_least(0, 0)
    vocabulary_size: int = fields.at_least(400, 800, 10**6)
    """Tokens, shared by both languages."""
    max_length: int = fields.at_least(2, 48, 2**20)
    """Training pairs with a longer side, end mark included, are dropped and counted; corpus=text: longer lines, also
    those held out, are cut into parts."""
    tokenized: bool = fields.flag(False)
    """Whether the text is in Moses tokens already: BLEU is then on the tokens as they stand, and `bleu_detokenized`,
    sacreBLEU's default on both sides detokenised for the language data.target, stands beside it."""


@dataclasses.dataclass(frozen=True)
class Training:
    """One trial's optimisation."""

    steps: int = fields.at_least(1, 100_000)
    batch_size: int = fields.at_least(1, 16, 2**20)
    """Packed rows in a batch, over all devices."""
    sequence_length: int = fields.at_least(2, 64, 2**20)
    """Tokens in a row, source and target each; a row holds as many whole pairs as fit."""
    optimizer: str = fields.one_of(OPTIMIZERS, "adam")
    learning_rate: float = fields.positive(1.0)
    """Adam: factor on d_model^-0.5 · min(step^-0.5, step · warmup^-1.5). SGD: the rate itself."""
    warmup: int = fields.at_least(1, 4000)
    beta_1: float = fields.rate(0.9)
    beta_2: float = fields.rate(0.98)
    eps: float = fields.positive(1e-9)
    """Adam's ε, beside √v̂."""
    eps_ls: float = fields.rate(0.1)
    """Label smoothing."""
    entropy_bonus: float = fields.at_least(0, 0.01, 100)
    """model.selection=sampled: what a nat of entropy of what is drawn from is worth, in nats of loss."""
    log_every: int = fields.at_least(1, 25)
    evaluate_every: int = fields.at_least(1, 250)
    save_every: int = fields.at_least(1, 500)
    bucket_by_length: bool = fields.flag(False)
    """Whether a batch has sentences of about equal lengths, as the paper's, or of all lengths."""
    strategy: str = fields.one_of(STRATEGIES, "pmap")
    accumulate: int = fields.at_least(1, 1)
    """Equal parts that a device's rows are walked in, their gradients summed for one update: the same training, in
    memory for one part."""
    precision: str = fields.one_of(PRECISIONS, "float32")
    """Of forward and backward pass; parameters, their averages, Adam's moments and the loss stay float32."""
    remat: bool = fields.flag(False)
    """Whether the backward pass computes layers again instead of keeping what is inside them."""
    scan: bool = fields.flag(False)
    """Whether a stack is compiled as one layer run N times; dropout is then drawn differently."""
    average: int = fields.at_least(0, 0)
    """Last checkpoints that are averaged at the end, save_every steps apart; 0: none."""
    ema: float = fields.rate(0.0)
    """Decay a step of the exponential moving average of the parameters; 0: none is kept."""
    keep_best: bool = fields.flag(False)
    """Whether the weights of the lowest validation perplexity are kept, and scored at the end."""
    nonfinite: str = fields.one_of(NONFINITE, "stop")
    """At a step whose loss or gradient is no number, stop: the trial ends as diverged; skip: its update is left out
    and counted, and the trial ends at the tenth in a row."""


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What is measured on validation while training, and on test at the end."""

    batch_size: int = fields.at_least(1, 64, 2**20)
    """Sentences translated at once."""
    max_length: int = fields.at_least(2, 48, 2**20)
    """A translation has at most this many tokens, end mark included."""
    max_extra: int = fields.at_least(0, 50, 2**20)
    """And at most this many more than its source, section 6.1."""
    beam: int = fields.at_least(1, 4, 1000)
    """Hypotheses kept in the searches at the end; 1 is greedy, as all searches during training are."""
    alpha: float = fields.at_least(0, 0.6, 5)
    """Length penalty of Wu et al. (2016): log-probabilities are divided by ((5 + tokens) / 6)^alpha."""
    weights: str = fields.one_of(WEIGHTS, "raw")
    """Whose scores are the trial's own: raw, the last step's; average, of training.average checkpoints; ema; best, of
    training.keep_best."""
    sentences: int = fields.at_least(1, 200)
    """Validation sentences translated at each evaluation; at the end validation and test are translated whole."""
    examples: int = fields.at_least(0, 3, 1000)
    """Test sentences whose attention is kept for the report."""
    head_importance: bool = fields.flag(False)
    """Whether it is measured at the end what each head does: how it looks over the whole test set, and what perplexity
    on the validation set is without it, which takes another pass for each."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Everything that decides a trial's result."""

    model: Model = Model()
    data: Data = Data()
    training: Training = Training()
    evaluation: Evaluation = Evaluation()
    seed: int = fields.between(0, 2**31, 0)

    def __post_init__(self):
        m, d, t, e = self.model, self.data, self.training, self.evaluation
        _require(
            m.d_model % 2 == 0 or not m.positions.startswith("sinusoidal"),
            f"model.d_model={m.d_model} must be even: sinusoidal positions come as pairs (sin, cos)",
        )
        _require(
            m.d_model >= 4 or m.positions != "sinusoidal_t2t",
            f"model.positions=sinusoidal_t2t needs a model.d_model of 4 at least, not {m.d_model}",
        )
        _require(
            m.d_k % 2 == 0 or m.positions != "rotary",
            f"model.d_k={m.d_k} must be even: rotary positions turn pairs",
        )
        _require(
            m.d_model % 2 == 0
            or (m.kind != "rnn" and m.encoder_mixing != "recurrence"),
            f"model.d_model={m.d_model} must be even: each direction of a recurrence has half of it",
        )
        _require(
            m.score != "none" or m.kind == "rnn",
            "model.score=none needs model.kind=rnn",
        )
        mixing = (
            {m.decoder_mixing}
            if m.kind == "language"
            else {m.encoder_mixing, m.decoder_mixing}
        )
        attend = mixing & {"attention", "restricted"}
        _require(
            m.selection == "soft" or m.score != "none",
            f"model.selection={m.selection} needs a model.score",
        )
        _require(
            m.selection == "soft" or m.kind == "rnn" or not (t.remat or t.scan),
            f"model.selection={m.selection} makes the last layer differ: training.remat and training.scan must be False",
        )
        _require(
            m.positions not in RELATIVE or m.kind == "rnn" or attend,
            f"model.positions={m.positions} is told to self-attention, and there is none: model.encoder_mixing="
            f"{m.encoder_mixing}, model.decoder_mixing={m.decoder_mixing}",
        )
        _require(
            t.sequence_length >= d.max_length,
            f"training.sequence_length={t.sequence_length} must hold the longest sentence, data.max_length={d.max_length}",
        )
        _require(
            t.batch_size * t.sequence_length < 2**31,
            f"training.batch_size={t.batch_size} times training.sequence_length={t.sequence_length} must be below 2^31: tokens of a "
            "batch are counted in int32",
        )
        _require(
            t.warmup <= t.steps or t.optimizer == "sgd",
            f"training.warmup={t.warmup} must not exceed training.steps={t.steps}",
        )
        _require(
            t.save_every % t.log_every == 0,
            f"training.save_every={t.save_every} must be a multiple of training.log_every={t.log_every}, "
            "for a resumed run to log what an uninterrupted one does",
        )
        _require(
            d.corpus not in ("files", "text") or d.directory,
            f"data.corpus={d.corpus} needs data.directory, the folder that holds the text files",
        )
        _require(
            d.corpus != "text" or m.kind == "language",
            f"data.corpus=text has no translations: model.kind={m.kind} must be language",
        )
        _require(
            m.selection == "soft" or m.kind != "language",
            f"model.selection={m.selection} is of attention to a source, and model.kind=language has none",
        )
        _require(
            (d.corpus == "tfds") == bool(d.dataset),
            f"data.dataset={d.dataset!r} and data.corpus={d.corpus}: corpus=tfds needs the name of a data set, such as "
            "wmt14_translate/de-en, and no other corpus has one",
        )
        _require(
            d.corpus != "cldr" or not d.directory,
            f"data.directory={d.directory!r} is read by data.corpus=files and tfds, and data.corpus is cldr",
        )
        _require(
            d.corpus != "cldr" or not d.tokenized,
            "data.tokenized=True is for data.corpus=files and tfds, and data.corpus is cldr",
        )
        _require(
            d.concatenate == 1 or d.corpus == "cldr",
            f"data.concatenate={d.concatenate} joins phrases of data.corpus=cldr, and data.corpus is {d.corpus}",
        )
        _require(
            t.batch_size % t.accumulate == 0,
            f"training.batch_size={t.batch_size} must be divisible by training.accumulate={t.accumulate}",
        )
        _require(
            e.weights in ("raw", "best") or getattr(t, e.weights) > 0,
            f"evaluation.weights={e.weights} needs training.{e.weights} above 0",
        )
        _require(
            e.weights != "best" or t.keep_best,
            "evaluation.weights=best needs training.keep_best=True",
        )
        _require(
            d.source != d.target, f"data.source and data.target are both {d.source!r}"
        )
        _require(
            e.max_length <= max(t.sequence_length, d.max_length) + 50,
            f"evaluation.max_length={e.max_length} exceeds training.sequence_length={t.sequence_length} + 50",
        )

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def digest(self) -> str:
        """Eight hexadecimal digits that two equal settings share."""
        return digest(self.to_dict())


def _require(condition, message):
    if not condition:
        raise SettingsError(message)


def digest(value) -> str:
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:8]


def default_config() -> ml_collections.ConfigDict:
    """A ConfigDict with every setting at its default: what a config file starts from."""
    return ml_collections.ConfigDict(Settings().to_dict())


def resolve(
    config: Mapping[str, Any] | ml_collections.ConfigDict, point: Mapping[str, Any] = {}
) -> Settings:
    """Settings of `config` with the flat `{dotted key: value}` of `point` on top.

    Raises SettingsError for an unknown key, a value of the wrong type or out of range, or settings that
    contradict each other.
    """
    values = _copy(
        config.to_dict() if isinstance(config, ml_collections.ConfigDict) else config
    )
    for key, value in point.items():
        *path, last = check_key(key).split(".")
        group = values
        for name in path:
            group = group.setdefault(name, {})
            _require(
                isinstance(group, dict),
                f"{name} must be a group of settings, not {_shown(group)}",
            )
        group[last] = value
    return _build(Settings, values, "")


def _copy(values):
    _require(
        isinstance(values, Mapping),
        f"a config must be a ConfigDict of settings, not {_shown(values)}",
    )
    return {k: _copy(v) if isinstance(v, Mapping) else v for k, v in values.items()}


def check_key(key: str) -> str:
    """Returns `key` if it is a setting's dotted name; raises SettingsError naming what is known."""
    _require(
        isinstance(key, str),
        f"{_shown(key)} is no setting: a dotted name is wanted, such as model.h",
    )
    cls, path = Settings, ""
    *groups, last = key.split(".")
    for name in groups:
        cls = _known(cls, name, path, key).type
        path = f"{path}{name}."
        _require(
            dataclasses.is_dataclass(cls),
            f"{key}: {path[:-1]} is a value, not a group of settings",
        )
    field = _known(cls, last, path, key)
    _require(
        not dataclasses.is_dataclass(field.type),
        f"{key} is a group of settings, not one setting",
    )
    return key


def _known(cls, name, path, key):
    fields = {f.name: f for f in dataclasses.fields(cls)}
    if name not in fields:
        near = difflib.get_close_matches(str(name)[:100], fields, n=1)
        hint = f"; did you mean {path}{near[0]}?" if near else ""
        raise SettingsError(
            f"{_cut(key)}: no such setting{hint} (known: {', '.join(path + n for n in fields)})"
        )
    return fields[name]


def _build(cls, values, path):
    _require(
        isinstance(values, Mapping),
        f"{path[:-1]} must be a group of settings, not {_shown(values)}",
    )
    built = {}
    for name, value in values.items():
        field = _known(cls, name, path, f"{path}{name}")
        if dataclasses.is_dataclass(field.type):
            built[name] = _build(field.type, value, f"{path}{name}.")
        else:
            built[name] = _checked(field, value, f"{path}{name}")
    return cls(**built)


def _checked(field, value, key):
    number = field.type is float and type(value) is int
    _require(
        type(value) is field.type or number,
        f"{key}={_shown(value)} must be {field.type.__name__}, not {type(value).__name__}",
    )
    _require(
        field.metadata["accepts"](value),
        f"{key}={_shown(value)} must be {field.metadata['allowed']}",
    )
    return field.type(value)


def _shown(value) -> str:
    """`value` in a message, whatever it is: on one line and not long."""
    try:
        return _cut(repr(value))
    except ValueError:  # an int of thousands of digits
        return f"a {type(value).__name__} too long to show"


def _cut(text, most=200):
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[:most]}…"
