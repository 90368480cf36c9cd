"""All settings of a trial as frozen dataclasses, which check themselves and each other."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from attn import config
from attn.nn.selection import check_nothing_to_drop
from experiments.objectives import Objective
from experiments.optim import Optimizer, Schedule
from experiments.settings import fields
from experiments.settings.choices import (
    METRICS,
    OBJECTIVES,
    OPTIMIZERS,
    SCHEDULES,
    choice,
    choices_of,
)
from experiments.settings.corpora import CldrData, Data
from experiments.settings.fields import SettingsError, require
from experiments.settings.user_code import Outside

STRATEGIES = ("pmap", "shard_map")
PRECISIONS = ("float32", "bfloat16")
NONFINITE = ("stop", "skip")
WEIGHTS = ("raw", "average", "ema", "best")
UNTIL = ("steps", "flat")

SCORING = ("beam", "alpha", "weights", "examples", "head_importance")
"""The settings of `Evaluation` on which nothing depends before a trial's end."""

FLAT_EVALUATIONS = 6
"""A trial that ends when flat has at least this many evaluations."""


@dataclasses.dataclass(frozen=True)
class Rates:
    """Holds the numbers of the model's dropout, which lanes of one program may vary.

    As settings they are among those of the model: model.P_drop.
    """

    P_drop: float = fields.rate(0.1)
    """Probability of dropout of sub-layer outputs and of the sums of embeddings and positions;
    in an RNN of embeddings, between layers and before the output."""
    # The paper has neither this dropout nor that of hidden units, section 5.4.
    P_attention: float = fields.rate(0.0)
    """Probability of dropout of attention weights."""
    P_ff: float = fields.rate(0.0)
    """Probability of dropout of the feed-forward network's hidden units."""


@dataclasses.dataclass(frozen=True)
class Training:
    """Holds the settings of one trial's optimisation."""

    steps: int = fields.at_least(1, 100_000)
    """Updates of the parameters; with until=flat the most."""
    until: str = fields.one_of(UNTIL, "steps")
    """When a trial ends. steps: after all steps; flat: once validation perplexity has stopped
    falling, see training/early_stopping.py."""
    batch_size: int = fields.at_least(1, 16, 2**20)
    """Rows of a batch, over all devices. A row holds several pairs."""
    sequence_length: int = fields.at_least(2, 64, 2**20)
    """Length of a row in tokens, source and target each. It holds as many whole pairs as
    fit."""
    # Section 5.3 has this optimizer with its options, and this schedule.
    optimizer: str = choice(OPTIMIZERS, "adam")
    """The optimizer, such as adamw(weight_decay=0.1), or any of optax by its name. Weight
    decay leaves norms and biases alone, unless mask=all (of Muon weight_decay_mask=all).
    Muon updates the matrices, Adam the rest. A custom one is a function of learning_rate and
    options that returns an optax.GradientTransformation."""
    learning_rate: float = fields.positive(1.0)
    """Learning rate: a factor on the schedule `paper`, the highest rate of constant, cosine,
    linear and warmup_stable_decay, a factor on optax's and custom schedules."""
    schedule: str = choice(SCHEDULES, "paper")
    """The learning rate over the steps, such as paper(warmup=4000), or any of optax by its
    name. A custom one is a function of options that returns an optax.Schedule."""
    clip: float = fields.at_least(0, 0.0, 1e30)
    """Largest norm of all gradients together, to which greater ones are scaled; 0 for no
    clipping."""
    # Section 5.4 has this value.
    eps_ls: float = fields.rate(0.1)
    """Label smoothing: probability that is spread over the whole vocabulary."""
    entropy_bonus: float = fields.at_least(0, 0.01, 100)
    """Weight of the policy's entropy, subtracted from the loss. Only for
    model.selection=sampled."""
    log_every: int = fields.at_least(1, 25)
    """Steps from one line of metrics to the next."""
    evaluate_every: int = fields.at_least(1, 250)
    """Steps from one evaluation on validation to the next."""
    save_every: int = fields.at_least(1, 500)
    """Steps from one checkpoint to the next, a multiple of log_every."""
    bucket_by_length: bool = fields.flag(False)
    """Whether a batch has sentences of about equal lengths, as the paper's."""
    strategy: str = fields.one_of(STRATEGIES, "pmap")
    """JAX's function that spreads lanes, or a batch, over devices."""
    accumulate: int = fields.at_least(1, 1)
    """Equal parts in which a batch is computed, whose gradients are summed for one update; a
    divisor of batch_size. Training is the same, in the memory of one part."""
    precision: str = fields.one_of(PRECISIONS, "float32")
    """Precision of the forward and backward pass; parameters, their averages, moments and the
    loss stay float32."""
    remat: bool = fields.flag(False)
    """Whether layers are computed again in the backward pass, which saves memory."""
    scan: bool = fields.flag(False)
    """Whether a stack is compiled as one layer that runs N times; dropout is then drawn
    differently."""
    average: int = fields.at_least(0, 0)
    """Number of last checkpoints that are averaged at the end; 0 for none. Averaged weights
    are scored beside the raw ones."""
    ema: float = fields.rate(0.0)
    """Decay of the parameters' exponential moving average a step; 0 for none."""
    keep_best: bool = fields.flag(False)
    """Whether to keep and score the weights of the lowest validation perplexity too."""
    nonfinite: str = fields.one_of(NONFINITE, "stop")
    """What to do after a step whose loss or gradient is NaN or infinite. stop: end the trial
    as diverged; skip: leave the update out, and end the trial at the tenth in a row."""

    @property
    def earliest_end(self) -> int:
        """The first step at which a trial with until=flat may end."""
        # What is gained while the rate still rises says nothing of how it goes on: the
        # last third of the evaluations comes after the warm-up.
        within = -(-self.schedule_choice.warmup // self.evaluate_every)
        return self.evaluate_every * max(FLAT_EVALUATIONS, 3 * (within - 1) // 2 + 1)

    @property
    def kept_weights(self) -> tuple[str, ...]:
        """The kinds of weights that are kept, and scored at the end, of WEIGHTS."""
        kept = dict(
            raw=True, average=self.average > 0, ema=self.ema > 0, best=self.keep_best
        )
        return tuple(name for name in WEIGHTS if kept[name])

    @property
    def optimizer_choice(self) -> Optimizer:
        """The value that `optimizer` names."""
        return OPTIMIZERS.value(self.optimizer, "training.optimizer")

    @property
    def schedule_choice(self) -> Schedule:
        """The value that `schedule` names."""
        return SCHEDULES.value(self.schedule, "training.schedule")

    def check(self) -> None:
        """Raises SettingsError for settings that contradict each other."""
        require(
            self.batch_size * self.sequence_length < 2**31,
            f"training.batch_size={self.batch_size} times training.sequence_length="
            f"{self.sequence_length} must be below 2^31: tokens of a batch are counted in "
            "int32",
        )
        require(
            self.schedule_choice.fits(self.steps),
            f"training.schedule={self.schedule}: warmup={self.schedule_choice.warmup}, with "
            f"the decay if any, does not fit into training.steps={self.steps}",
        )
        require(
            self.save_every % self.log_every == 0,
            f"training.save_every={self.save_every} must be a multiple of "
            f"training.log_every={self.log_every}, for a resumed run to log what an "
            "uninterrupted one does",
        )
        require(
            self.batch_size % self.accumulate == 0,
            f"training.batch_size={self.batch_size} must be divisible by "
            f"training.accumulate={self.accumulate}",
        )
        if self.until == "flat":
            self._check_flat()

    def _check_flat(self):
        require(
            not self.schedule_choice.decays,
            f"training.schedule={self.schedule} decays to the end of training.steps, which "
            "training.until=flat does not wait for: training.schedule must be paper or "
            "constant, or training.until=steps",
        )
        require(
            self.evaluate_every % self.log_every == 0,
            f"training.evaluate_every={self.evaluate_every} must be a multiple of "
            f"training.log_every={self.log_every} with training.until=flat, for the last "
            "steps of a trial to be logged wherever it ends",
        )
        require(
            self.earliest_end < self.steps,
            f"training.until=flat can end a trial at step {self.earliest_end} at the "
            f"earliest ({FLAT_EVALUATIONS} evaluations, the last third of them after "
            f"the warm-up of training.schedule={self.schedule}), and "
            f"training.steps={self.steps} does before: "
            "raise training.steps, or lower training.evaluate_every",
        )


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Holds the settings of what is measured while training and at the end."""

    batch_size: int = fields.at_least(1, 64, 2**20)
    """Sentences that are translated at once."""
    max_length: int = fields.at_least(2, 48, 2**20)
    """Longest translation, in tokens with the end mark."""
    max_extra: int = fields.at_least(0, 50, 2**20)
    """Tokens that a translation may have beyond its source's length."""
    # Section 6.1 has this beam and this length penalty.
    beam: int = fields.at_least(1, 4, 1000)
    """Hypotheses of the searches at the end; 1 is greedy, as searches during training are."""
    alpha: float = fields.at_least(0, 0.6, 5)
    """Length penalty of Wu et al. (2016): log-probabilities are divided by
    ((5 + tokens) / 6)^alpha."""
    weights: str = fields.one_of(WEIGHTS, "raw")
    """The weights whose scores are the trial's. raw: of the last step; average: of the last
    training.average checkpoints; ema; best: of training.keep_best."""
    sentences: int = fields.at_least(1, 200)
    """Validation sentences that are translated at each evaluation; all are at the end."""
    examples: int = fields.at_least(0, 3, 1000)
    """Test sentences whose attention is kept for the report."""
    head_importance: bool = fields.flag(False)
    """Whether to measure at the end how each head attends over the test set, and the
    validation perplexity without it, which takes a pass for each head."""
    watch_attention: bool = fields.flag(False)
    """Whether each evaluation writes to metrics.jsonl and trackers, of each layer's attention
    over the first evaluation.batch_size validation sentences, the mean entropy, the mean
    weight of the first token and the highest score."""
    metric: str = choice(METRICS, "none", "none")
    """A custom metric, file.py:Name or module:Name, beside those that every run has."""

    @property
    def own_metrics(self) -> tuple[Any, ...]:
        """The custom metrics."""
        if self.metric == "none":
            return ()
        return (METRICS.value(self.metric, "evaluation.metric"),)

    def check(self) -> None:
        """Raises SettingsError for settings that contradict each other; there are none."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Holds everything that decides a trial's result."""

    model: config.Model = config.Transformer()
    rates: Rates = Rates()
    data: Data = CldrData()
    training: Training = Training()
    evaluation: Evaluation = Evaluation()
    seed: int = fields.between(0, 2**31, 0)
    """Seed of initial values, dropout and the order of the data."""

    def __post_init__(self):
        # Each group comes first by itself: what two of them say is compared only if
        # both make sense.
        self._check_model()
        for group in (self.data, self.training, self.evaluation):
            group.check()
        self._check_model_with_data()
        self._check_model_with_training()
        self._check_lengths()
        self._check_weights()

    def _check_model(self):
        try:
            self.model.check()
            check_nothing_to_drop(
                getattr(self.model, "selection", "soft"), self.rates.P_attention
            )
            if self.rates.P_attention and not getattr(self.model, "attends", True):
                raise ValueError(
                    f"P_attention={self.rates.P_attention} drops weights of attention, and "
                    "no layer has any: it must be 0"
                )
        except ValueError as error:
            # Most messages begin with an option and its value.
            begins = re.match(r"\w+=", str(error))
            raise SettingsError(f"model{'.' if begins else ': '}{error}") from error

    def _check_model_with_data(self):
        try:
            objective = self.objective
        except ValueError as error:
            form = {"labels": "pairs", "pairs": "labels"}.get(
                getattr(self.data, "form", "")
            )
            raise SettingsError(
                f"data.corpus={self.data.corpus} has "
                f"objective={OBJECTIVES.text_of(self.data.asked)}: {error}"
                + (f", or data.form {form}" if form else "")
            ) from None
        for metric in self.evaluation.own_metrics:
            require(
                objective.writes and objective.targets in metric.targets,
                f"evaluation.metric={self.evaluation.metric} is no metric of "
                f"objective={OBJECTIVES.text_of(objective)}, which has "
                f"{', '.join((objective.loss_metric, *map(_key, objective.metrics)))}",
            )

    @property
    def objective(self) -> Objective:
        """What the data ask of this kind of model.

        Raises:
          ValueError: the model cannot do it.
        """
        return self.data.asked.for_model(self.model.kind)

    def _check_model_with_training(self):
        for key in ("remat", "scan"):
            value = getattr(self.training, key)
            require(
                self.model.has_stacks or not value,
                f"model.kind={self.model.kind} has no stacks of layers: "
                f"training.{key}={value} must be False",
            )
        unlike = self.model.unlike_layers
        require(
            not (unlike and self.training.scan),
            f"model: {unlike}: training.scan={self.training.scan} must be False",
        )

    def _check_lengths(self):
        length = self.training.sequence_length
        sentence = self.data.max_length
        translation = self.evaluation.max_length
        named = [field.name for field in dataclasses.fields(self.data)]
        is_set = "max_length" in named
        require(
            length >= sentence,
            f"training.sequence_length={length} must hold the longest text of training: "
            + (f"data.max_length={sentence}" if is_set else f"give it {sentence}"),
        )
        require(
            # A source is no longer than a row, and section 6.1 allows 50 tokens more.
            translation <= max(length, self.data.longest) + 50,
            f"evaluation.max_length={translation} exceeds "
            f"training.sequence_length={length} + 50",
        )

    def _check_weights(self):
        weights = self.evaluation.weights
        require(
            weights != "best" or self.training.keep_best,
            "evaluation.weights=best needs training.keep_best=True",
        )
        require(
            # The other two have the name of the setting that makes them.
            weights in ("raw", "best") or getattr(self.training, weights) > 0,
            f"evaluation.weights={weights} needs training.{weights} above 0",
        )

    def outside(
        self, groups: Sequence[str] = ("model", "data", "training", "evaluation")
    ) -> list[Outside]:
        """Returns the custom classes that `groups` name, with their sources."""
        classes = []
        for group_name in groups:
            for field, value in _values(getattr(self, group_name)):
                if choices := choices_of(field):
                    classes += choices.origins_of(value)
        return classes

    def to_dict(self) -> dict[str, Any]:
        """Returns the settings as nested dictionaries of numbers and texts."""
        values = {}
        for group in dataclasses.fields(self):
            value = getattr(self, group.name)
            values[group.name] = _as_dict(value)
        rates = values.pop("rates")
        known = self.model.numbers
        values["model"] |= {name: rates[name] for name in known}
        return values

    def __reduce__(self):
        # As texts: another process loads code from outside by its place.
        return _from_dict, (self.to_dict(),)

    def training_key(self) -> tuple:
        """Returns what a trial's training depends on: all but the settings SCORING."""
        groups = dataclasses.fields(self)
        values = [
            getattr(self, group.name) for group in groups if group.name != "evaluation"
        ]
        evaluation = dataclasses.fields(self.evaluation)
        kept = [field.name for field in evaluation if field.name not in SCORING]
        return *values, *(getattr(self.evaluation, name) for name in kept)

    def digest(self) -> str:
        """Returns eight hexadecimal digits that two equal settings share."""
        return digest(self.to_dict())


def _key(metric):
    return metric if isinstance(metric, str) else metric.key


def without_scoring(config: dict[str, Any]) -> dict[str, Any]:
    """Returns settings, or changes to them, without SCORING: those that training depends on."""
    evaluation = config.get("evaluation")
    # A file may hold anything.
    if not isinstance(evaluation, dict):
        return config
    kept = {name: x for name, x in evaluation.items() if name not in SCORING}
    rest = {group: values for group, values in config.items() if group != "evaluation"}
    # Changes of none of the others are no changes.
    return {**rest, "evaluation": kept} if kept else rest


def digest(value) -> str:
    """Returns eight hexadecimal digits that two equal JSON values share."""
    # In one order and without spaces, so that equal values are equal texts.
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:8]


def _from_dict(values):
    """Returns the Settings whose `to_dict` gives these values."""
    from experiments.settings.resolve import resolve

    return resolve(values)


def _values(group):
    """Yields (field, value) of each option of a group, and of what parts of a model change."""
    for field in dataclasses.fields(group):
        value = getattr(group, field.name)
        if "part" not in field.metadata:
            yield field, value
            continue
        options = config.options_of_part(field.name)
        for inner in (value, *filter(_is_mapping, value.values())):
            for name, own in inner.items():
                if name in options:
                    yield options[name], own


def _is_mapping(value):
    return isinstance(value, Mapping)


def _as_dict(value):
    """Returns a group of settings as JSON holds it, with choices as texts."""
    if not dataclasses.is_dataclass(value):
        return value
    values = {}
    if hasattr(value, "kind"):
        values["kind"] = value.kind
    for field in dataclasses.fields(value):
        own = getattr(value, field.name)
        if "part" in field.metadata:
            values[field.name] = _changes_as_dict(
                own, config.options_of_part(field.name)
            )
        else:
            values[field.name] = _as_json(field, own)
    return values


def _changes_as_dict(changes, options):
    return {
        name: _changes_as_dict(own, options)
        if _is_mapping(own)
        else _as_json(options.get(name), own)
        for name, own in changes.items()
    }


def _as_json(field, value):
    choices = choices_of(field) if field else None
    return choices.text_of(value) if choices else value
