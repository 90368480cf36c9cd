"""What is asked of a model: to translate, write, continue, answer or label texts.

An objective is one class: the models that can do it, what they read of a batch, where and by
which loss they are trained, how texts are made of their outputs, and the metrics of these. A
corpus says which it is for. A custom one is a frozen dataclass, a subclass of `Objective`,
that data.objective or the corpus names. B rows of a batch, N source and M target tokens,
D = d_model, Y outputs to choose from, S pairs of a row.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from attn.nn.layers import output_matrix
from experiments.objectives.loss import cross_entropy, negative_log_likelihood

NOTHING = "_"
"""Stands among answers where none is asked."""

NOTHING_ID = 4
"""The id of NOTHING in a vocabulary of symbols."""

TARGETS = ("texts", "places", "labels")
"""What the targets of a corpus are: texts by themselves; an answer or NOTHING in the place of
each word of the source; one label for each source, of a closed set."""


@dataclasses.dataclass(frozen=True)
class Objective:
    """What is asked of a model; the base of such. Equal ones are one to a compiled program."""

    models: ClassVar[tuple[str, ...]] = ()
    """The kinds of models that can do it."""
    targets: ClassVar[str] = "texts"
    """What its targets are, one of TARGETS."""
    searches: ClassVar[bool] = False
    """Whether a model's texts are found by beam search."""
    answers: ClassVar[bool] = False
    """Whether the words of targets are answers, each right or wrong."""
    loss_metric: ClassVar[str] = "perplexity"
    """The metric of the loss on validation: "perplexity" or "cross_entropy"."""
    metrics: ClassVar[tuple[Any, ...]] = ()
    """The metrics of texts: keys of the library's, or instances of
    `experiments.evaluation.metrics.Metric`."""

    @property
    def chooses(self) -> bool:
        """Whether a model's text is its likeliest output at each scored place."""
        return self.targets != "texts"

    @property
    def writes(self) -> bool:
        """Whether texts are made of a model's outputs, for its metrics to score."""
        return self.searches or self.chooses

    def for_model(self, kind: str) -> "Objective":
        """Returns what is asked of a model of this kind.

        Raises:
          ValueError: the model cannot do it.
        """
        if kind in self.models:
            return self
        raise ValueError(f"model.kind={kind} must be {' or '.join(self.models)}")

    def batch(self, batch: Any, pairs: int) -> Any:
        """Returns a `data.batches.Batch` of rows of at most `pairs` pairs as models read it."""
        return batch

    def call(
        self, function: Callable, first: Any, source, target, contexts, **options
    ) -> Any:
        """Calls `function(first, ...)`, apply or init of a model.

        It gets tokens (B, N) and (B, M) of source and target, and the contexts of both, as
        far as the model reads them. The hidden states that it returns are (B, M, D).
        """
        return function(first, source, target, *contexts, **options)

    def scored(self, batch: Any) -> Any:
        """Returns where `batch.target_out` is to be predicted, bool (B, M)."""
        return batch.target_segments > 0

    def loss(self, params: Any, hidden, batch: Any, weights, eps_ls):
        """Computes the loss of hidden states, and its −log p, as `cross_entropy` does.

        Both are sums over the batch's places with weights (B, M).
        """
        tokens = hidden.reshape(-1, hidden.shape[-1])
        labels = batch.target_out.reshape(-1)
        return cross_entropy(
            tokens, output_matrix(params), labels, weights.reshape(-1), eps_ls
        )

    def token_losses(self, params: Any, hidden, batch: Any):
        """Computes −log p of each target token (B, M), in float32."""
        tokens = hidden.reshape(-1, hidden.shape[-1])
        labels = batch.target_out
        losses = negative_log_likelihood(
            tokens, output_matrix(params), labels.reshape(-1)
        )
        return losses.reshape(labels.shape)

    def shown(self, chosen, scored):
        """Returns the ids (B, M) that texts are made of: `chosen` where `scored`."""
        return chosen


@dataclasses.dataclass(frozen=True)
class Translate(Objective):
    """Writes the target of a source; a language model continues the target side alone."""

    models = ("transformer", "rnn")
    searches = True
    metrics = ("bleu", "chrf", "exact_match", "bleu_detokenized")

    def for_model(self, kind: str) -> Objective:
        return Continue() if kind in Continue.models else super().for_model(kind)


@dataclasses.dataclass(frozen=True)
class Write(Objective):
    """Writes the answers to a source: as `translate`, with answers in place of sentences."""

    models = Translate.models
    searches = True
    answers = True
    metrics = ("exact_match", "accuracy")


@dataclasses.dataclass(frozen=True)
class Continue(Objective):
    """Models each token of a text after all before it."""

    models = ("language",)
    metrics = ("bits_per_character",)

    def call(self, function, first, source, target, contexts, **options):
        return function(first, target, contexts[1], **options)


@dataclasses.dataclass(frozen=True)
class Answer(Objective):
    """Reads a text and gives an answer after each of its words where one is asked."""

    models = ("language",)
    targets = "places"
    answers = True
    metrics = ("exact_match", "accuracy")

    def call(self, function, first, source, target, contexts, **options):
        # Answers stand in the places of what they answer, so places and masks are the same.
        return function(first, source, contexts[1], **options)

    def scored(self, batch):
        return batch.target_out > NOTHING_ID

    def shown(self, chosen, scored):
        # A mark for an answer would end the text; it is wrong in any case.
        return np.where(scored & (chosen > NOTHING_ID), chosen, NOTHING_ID)


@dataclasses.dataclass(frozen=True)
class Label(Objective):
    """Gives each source one label of a closed set, that of the training data's targets.

    Targets are a label and the end mark, so that pairs are packed as others are.
    """

    models = ("classifier",)
    targets = "labels"
    loss_metric = "cross_entropy"
    metrics = ("accuracy", "macro_f1")

    def batch(self, batch, pairs):
        """Returns the batch with targets (B, pairs), the label of each source in a row."""
        labels = slice(0, 2 * pairs, 2)
        names = [name for name in batch._fields if name.startswith("target_")]
        return batch._replace(
            **{name: getattr(batch, name)[:, labels] for name in names}
        )


OBJECTIVES = {
    "translate": Translate,
    "write": Write,
    "continue": Continue,
    "answer": Answer,
    "label": Label,
}
"""The objectives by name."""
