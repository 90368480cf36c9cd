"""Scores trained models on text of any files, one model or two on the same text.

S texts, k numbers that a text contributes, R resampled sets of texts.
"""

import functools
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.data import corpora
from experiments.data.batches import Encoded
from experiments.data.lines import as_text
from experiments.data.vocabulary import Labels
from experiments.errors import UserError
from experiments.evaluation.evaluator import metrics_of
from experiments.evaluation.metrics import (
    BITS_PER_CHARACTER,
    CROSS_ENTROPY,
    PERPLEXITY,
    Metric,
    Texts,
    signatures,
)
from experiments.evaluation.perplexity import sentence_losses
from experiments.inference import Labeller, TrainedModel, Translator, load_model
from experiments.stats.resampling import resampled_scores, resamples
from experiments.trial.lanes import Lanes, over_lanes
from experiments.trial.step import token_losses

BUCKETS = 4
"""The parts that texts are put into by their length, as many texts in each."""


class Scored(NamedTuple):
    """Holds a model's texts and what each contributes to each metric."""

    workdir: Path
    texts: tuple[str, ...]
    """What it wrote, or gave; those of a language model are what it read."""
    metrics: tuple[Metric, ...]
    tables: Mapping[str, np.ndarray]
    """(S, k) by the key of a metric."""
    whole: Mapping[str, float]
    """Scores of metrics that are no sums over texts, by key."""
    lengths: np.ndarray
    """The tokens of each source, (S,)."""
    signatures: Mapping[str, str]
    vocabulary: str
    """The digest of the vocabulary, which says what a token is."""
    unseen: str
    """A line on characters that the model has never seen, or ""."""
    empty: int = 0
    """Lines without a text, or a reference, which are not scored; of `texts` they are ""."""

    @property
    def summed(self) -> list[Metric]:
        """The metrics that are functions of sums over texts."""
        return [metric for metric in self.metrics if metric.key in self.tables]

    def score(self, metric: Metric, chosen: Any = slice(None)) -> float:
        """Returns a score, of all texts or of those chosen."""
        if metric.key in self.whole:
            return self.whole[metric.key]
        table = np.asarray(self.tables[metric.key][chosen], np.float64)
        return float(metric.of_sums(table.sum(0), len(table)))

    def draws(self, metric: Metric) -> np.ndarray | None:
        """Returns the scores (R,) of resampled sets of texts; None where they have none.

        Those of two models on the same texts are of the same sets (Koehn 2004, "Statistical
        significance tests for machine translation evaluation").
        """
        if metric.key not in self.tables or len(self.lengths) < 2:
            return None
        table = self.tables[metric.key]
        return resampled_scores(metric.of_sums, [table], resamples(len(table)))[0]

    def buckets(self) -> list[tuple[int, int, np.ndarray]]:
        """Returns (shortest, longest, numbers) of the texts by their sources' lengths.

        There are as many in each as may be where texts of one length stay together.
        """
        ordered = np.sort(self.lengths)
        parts = np.array_split(ordered, min(BUCKETS, len(ordered)))
        starts = np.unique([part[0] for part in parts])
        bucket_of = np.searchsorted(starts, self.lengths, side="right") - 1
        found = []
        for bucket in range(len(starts)):
            (numbers,) = np.nonzero(bucket_of == bucket)
            lengths = self.lengths[numbers]
            found.append((int(lengths.min()), int(lengths.max()), numbers))
        return found


def score(
    workdir: Path,
    sources: Sequence[str],
    references: Sequence[str] | None = None,
    *,
    beam: int | None = None,
    alpha: float | None = None,
) -> Scored:
    """Scores the model in a trial's directory on some texts.

    A translator and a labeller need a reference, or a label, for each; of a language model
    the texts are its own. A text too long for the model is cut, with a warning; one of a
    language model is read in parts.

    Raises:
      UserError: references that are missing, too many or unknown labels, no texts, or a
        model whose answers stand in places. And what `load_model` raises.
    """
    model = load_model(workdir)
    sides = [[as_text(text) for text in sources]]
    if references is not None:
        sides.append([as_text(text) for text in references])
    _check_given(model, workdir, *sides)
    objective = model.program.objective
    source = corpora.class_of(model.settings.data)
    if not objective.writes and hasattr(source, "texts_of"):
        # All lines together are texts.
        return _language(workdir, model, sources)
    there = [i for i, line in enumerate(zip(*sides, strict=True)) if all(line)]
    if not there:
        raise UserError("there is no text with a reference to score")
    given = [[side[i] for i in there] for side in sides]
    if not objective.writes:
        scored = _language(workdir, model, *given)
    elif objective.targets == "labels":
        scored = _labels(workdir, model, *given)
    else:
        translator = Translator(workdir, beam=beam, alpha=alpha)
        scored = _translated(workdir, model, translator, *given)
    of_lines = dict(zip(there, scored.texts, strict=True))
    return scored._replace(
        texts=tuple(of_lines.get(i, "") for i in range(len(sources))),
        unseen=model.unseen(sides[0]),
        # A trial's own evaluation has no pair with an empty side either.
        empty=len(sources) - len(there),
    )


def _check_given(model, workdir, sources, references=None):
    """Raises UserError for texts that the model cannot be scored on."""
    objective = model.program.objective
    if not any(sources):
        raise UserError("there are no texts to score")
    if objective.targets == "places":
        raise UserError(
            f"{workdir} has a model that answers in places of a task, whose test it has "
            "scored: result.json has its accuracy"
        )
    if not objective.writes and references is not None:
        raise UserError(f"{workdir} has a language model: it needs no references")
    if objective.writes and references is None:
        raise UserError(f"{workdir} has a model that writes: give it references")
    if references is not None and len(references) != len(sources):
        raise UserError(
            f"{len(sources):,} sources for {len(references):,} references: a line each"
        )


def _translated(workdir, model, translator, sources, references) -> Scored:
    tokens_of = model.settings.data.tokenized_language
    texts = Texts(translator(sources), references, tokens_of, sources)
    return _written(workdir, model, texts, sources)


def _language(workdir, model, lines) -> Scored:
    texts, parts_of = _as_in_training(model, lines)
    parts = [*itertools.chain(*parts_of)]
    numbers = np.repeat(np.arange(len(texts)), [*map(len, parts_of)])
    nll, tokens = _losses(model, Encoded(parts, parts))
    of_texts = functools.partial(np.bincount, numbers, minlength=len(texts))
    nll, tokens = of_texts(weights=nll), of_texts(weights=tokens)
    characters = BITS_PER_CHARACTER.counts(texts)
    tables = {
        PERPLEXITY.key: np.stack([nll, tokens], 1),
        BITS_PER_CHARACTER.key: np.stack([nll, characters], 1),
    }
    metrics = (PERPLEXITY, BITS_PER_CHARACTER)
    of_model = model.vocabulary.digest, model.unseen(lines)
    return Scored(workdir, tuple(texts), metrics, tables, {}, tokens, {}, *of_model)


def _as_in_training(model, lines):
    """Returns the texts that lines are, and the parts of each, (S,) lists of ids.

    Where lines are one text, each part of it stands for itself.
    """
    data, count = model.settings.data, len(lines)
    source = corpora.class_of(data)
    if hasattr(source, "texts_of"):
        lines = source.texts_of([*lines], data)
    texts = [*map(as_text, lines)]
    cuts = getattr(source, "cuts_long_texts", False)
    length = (data.max_length if cuts else model.program.length) - 1
    parts_of = [
        [ids[start : start + length] for start in range(0, max(len(ids), 1), length)]
        for ids in model.vocabulary.encode(texts)
    ]
    if len(texts) == count:
        return texts, parts_of
    texts = [*itertools.chain(*map(model.vocabulary.decode_parts, parts_of))]
    return texts, [[part] for parts in parts_of for part in parts]


def _labels(workdir, model, sources, references) -> Scored:
    if unknown := sorted({*references} - {*model.labels}):
        raise UserError(
            f"{unknown[0]!r} is none of the labels of {workdir}: {', '.join(model.labels)}"
        )
    texts = Texts(Labeller(workdir)(sources), references, "", sources, labels=True)
    return _written(workdir, model, texts, sources)


def _written(workdir, model, texts: Texts, sources) -> Scored:
    labels = Labels(model.labels) if model.labels else model.vocabulary
    target = labels.encode(texts.references)
    ids = [x[: model.program.length - 1] for x in model.vocabulary.encode(sources)]
    # References are not cut, as their losses would be those of others.
    fits = np.array([len(y) < model.program.length for y in target])
    tables, whole = {}, {}
    metrics = metrics_of(model.settings)
    loss = CROSS_ENTROPY if model.labels else PERPLEXITY
    if fits.all():
        tables[loss.key] = np.stack(_losses(model, Encoded(ids, target)), 1)
        metrics = (loss, *metrics)
    for metric in metrics:
        if metric.key in tables:
            continue
        if metric.columns:
            table = np.asarray(metric.of_sentences(texts))
            tables[metric.key] = table.reshape(len(sources), -1)
        elif (value := metric.of_corpus(texts)) is not None:
            whole[metric.key] = value
    metrics = tuple(m for m in metrics if m.key in tables or m.key in whole)
    scores = {metric.key: 0.0 for metric in metrics}
    lengths = np.array([len(x) for x in ids])
    signed = signatures(scores, texts.tokens_of, metrics)
    return Scored(
        workdir,
        tuple(texts.translations),
        metrics,
        tables,
        whole,
        lengths,
        signed,
        model.vocabulary.digest,
        model.unseen(sources),
    )


def _losses(model: TrainedModel, pairs: Encoded) -> tuple[np.ndarray, np.ndarray]:
    """Returns −log p and the tokens of each target, (S,) each."""
    program = model.program
    nll, tokens = sentence_losses(
        over_lanes(functools.partial(token_losses, program)),
        Lanes().stack([model.state]),
        pairs,
        min(model.settings.evaluation.batch_size, len(pairs.target)),
        program.length,
        objective=program.objective,
    )
    return nll[0], tokens


def lines_of(scored: Scored) -> list[str]:
    """Returns a model's scores with intervals and signatures, and those by length."""
    lines = []
    for metric in scored.metrics:
        text = (
            f"{metric.name:20} {metric.amount(scored.score(metric), _form(metric)):>10}"
        )
        ends = interval(scored.draws(metric))
        if ends:
            text += f"  {_shown(metric, ends)}"
        if metric.key in scored.signatures:
            text += f"  {scored.signatures[metric.key]}"
        lines.append(text.rstrip())
    for shortest, longest, numbers in scored.buckets():
        scores = "  ".join(
            f"{metric.name} {metric.amount(scored.score(metric, numbers), _form(metric))}"
            for metric in scored.summed
        )
        lines.append(
            f"{len(numbers)} with {shortest} to {longest} tokens of source: {scores}"
        )
    if scored.empty:
        lines.append(
            f"note: {scored.empty:,} lines without a text or a reference are left out, as in "
            "a trial's own evaluation"
        )
    if scored.unseen:
        lines.append(f"note: {scored.unseen}")
    return lines


def differences(ours: Scored, theirs: Scored) -> list[str]:
    """Returns the differences of two models' scores, with intervals over the same texts."""
    lines = []
    for metric in ours.metrics:
        if metric not in theirs.metrics:
            continue
        if metric.per_token and ours.vocabulary != theirs.vocabulary:
            lines.append(
                f"{metric.name:20} of tokens of two vocabularies: not compared"
            )
            continue
        difference = ours.score(metric) - theirs.score(metric)
        text = f"{metric.name:20} {metric.amount(difference, '+' + _form(metric)):>10}"
        one, other = ours.draws(metric), theirs.draws(metric)
        if len(ours.lengths) != len(theirs.lengths):
            text += "  of other parts of the text: no interval"
        elif one is not None and other is not None and (ends := interval(one - other)):
            text += f"  {_shown(metric, ends, '+')}  {verdict(metric, *ends)}"
        lines.append(text)
    return lines


def verdict(metric: Metric, low: float, high: float) -> str:
    """Says what an interval of a difference decides."""
    if low <= 0 <= high:
        return "undecided by this text"
    return "better" if (low > 0) == metric.higher_is_better else "worse"


def interval(draws: np.ndarray | None) -> tuple[float, float] | None:
    """Returns the middle 95 % of resampled scores."""
    if draws is None or not np.isfinite(draws).all():
        return None
    low, high = np.percentile(draws, (2.5, 97.5))
    return float(low), float(high)


def _form(metric: Metric) -> str:
    """Returns how the metric's numbers are written, two digits at least."""
    return f".{max(metric.decimals, 2)}f"


def _shown(metric: Metric, ends: tuple[float, float], sign: str = "") -> str:
    """Returns an interval as it is printed."""
    low, high = (f"{metric.scale * end:{sign}{_form(metric)}}" for end in ends)
    return f"[{low}, {high}]"


def as_json(found: Sequence[Scored]) -> list[dict[str, Any]]:
    """Returns all of it as data, on the metrics' own scales."""
    records = []
    for scored in found:
        scores = {}
        for metric in scored.metrics:
            ends = interval(scored.draws(metric))
            value = dict(score=scored.score(metric), interval=ends and list(ends))
            signature = scored.signatures.get(metric.key)
            scores[metric.key] = value | (
                dict(signature=signature) if signature else {}
            )
        by_length = []
        for shortest, longest, numbers in scored.buckets():
            own = {m.key: scored.score(m, numbers) for m in scored.summed}
            bounds = dict(shortest=shortest, longest=longest, texts=len(numbers))
            by_length.append(bounds | own)
        records.append(
            dict(workdir=str(scored.workdir), scores=scores, by_length=by_length)
        )
    return records
