"""Evaluates the trials of a population: while they train, and with all their weights at the end."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from attn import Positions
from experiments.data.batches import Encoded, padded
from experiments.data.corpora import Pairs
from experiments.data.dataset import Dataset, Heldout
from experiments.data.lines import as_line
from experiments.evaluation import alignment_error, head_importance
from experiments.evaluation.answers import accuracy_by, choose, choose_batch
from experiments.evaluation.attention_maps import attention_examples, attention_weights
from experiments.evaluation.attention_watch import watch_attention
from experiments.evaluation.decode import Search, search_batch, search_of, translate
from experiments.evaluation.metrics import (
    ENTROPY,
    FIRST_TOKEN_MASS,
    METRICS,
    Metric,
    OfLosses,
    Texts,
    corpus_scores,
    notes,
    of_objective,
    sentence_arrays,
    signatures,
)
from experiments.evaluation.perplexity import LOSSES, sentence_losses
from experiments.objectives import Objective
from experiments.settings import WEIGHTS, Evaluation, Settings
from experiments.trial.lanes import Lanes, over_lanes, put_lane, take_lane
from experiments.trial.program import Program, State
from experiments.trial.step import token_losses


class EvaluationFunctions(NamedTuple):
    """The compiled functions of evaluation: `weights` and `watch` are of one trial, others of a
    population."""

    token_losses: Callable
    greedy: Callable
    search: Callable
    choose: Callable
    weights: Callable
    watch: Callable


def evaluation_functions(
    program: Program, lanes: Lanes, search: Search
) -> EvaluationFunctions:
    """Returns functions that compile when first called; all trials of a process share them."""
    of_tokens, choose, weights, watch = _without_search(program, lanes)
    # One program less to compile where the beam is 1.
    return EvaluationFunctions(
        token_losses=of_tokens,
        greedy=_searched(program, lanes, search._replace(beam=1)),
        search=_searched(program, lanes, search),
        choose=choose,
        weights=weights,
        watch=watch,
    )


@functools.lru_cache(maxsize=16)
def _searched(program, lanes, search):
    # Without a prefix, which only a user of a trained model gives.
    return over_lanes(functools.partial(search_batch, program, search, ()), lanes)


# By themselves, as trials that differ in their search alone have these in common.
@functools.lru_cache(maxsize=8)
def _without_search(program, lanes):
    return (
        over_lanes(functools.partial(token_losses, program), lanes),
        over_lanes(functools.partial(choose_batch, program), lanes),
        jax.jit(functools.partial(attention_weights, program)),
        jax.jit(functools.partial(watch_attention, program)),
    )


class EndedTrial(NamedTuple):
    """Holds a trial that has made all its steps: its lane, checkpoints and directory."""

    settings: Settings
    lane: int
    checkpoints: Any
    run_dir: Any


class HeldoutScores(NamedTuple):
    """The scores of one lane, by metric, and its texts for the test set."""

    validation: dict[str, float]
    test: dict[str, float]
    texts: Sequence[str]
    """Those of its objective; of one that makes none, the test set's own texts."""


@dataclasses.dataclass(frozen=True)
class Evaluator:
    """Scores the lanes of a population on the validation and test set of `prepared`."""

    functions: EvaluationFunctions
    prepared: Dataset
    lanes: Lanes
    program: Program
    batch_size: int
    check: Callable[[], None] = lambda: None
    """Called between batches; what it raises ends the evaluation."""

    @classmethod
    def of(
        cls,
        settings: Evaluation,
        prepared: Dataset,
        lanes: Lanes,
        program: Program,
        check: Callable[[], None] = lambda: None,
    ) -> "Evaluator":
        """Returns the evaluator that the settings ask for."""
        functions = evaluation_functions(program, lanes, search_of(settings))
        return cls(functions, prepared, lanes, program, settings.batch_size, check)

    @property
    def objective(self) -> Objective:
        """What is asked of the models."""
        return self.program.objective

    def losses(self, states, heldout: Heldout | None = None):
        """Computes `perplexity.sentence_losses` of all lanes on `heldout`, else validation."""
        return sentence_losses(
            self.functions.token_losses,
            states,
            (heldout or self.prepared.validation).ids,
            self.batch_size,
            self.program.length,
            self.check,
            self.objective,
        )

    def validation(
        self, states, losses, chosen: Mapping[int, Settings]
    ) -> dict[int, dict[str, float]]:
        """Computes the validation scores of the lanes `chosen`, each with its settings.

        The loss is over the whole set, from its `losses`; other scores are of the texts of
        the first evaluation.sentences, translations by greedy search.
        """
        heldout = self.prepared.validation
        scores = {lane: self._loss(losses, lane, heldout) for lane in chosen}
        for lane, settings in chosen.items():
            if settings.evaluation.watch_attention:
                scores[lane] |= self._watched(states, lane)
        if not self.objective.writes:
            return scores
        # Lanes search together, so all translate as many as the one that asks for most.
        most = max(settings.evaluation.sentences for settings in chosen.values())
        pairs = Encoded(*(side[:most] for side in heldout.ids))
        translations = self.translate(states, self.functions.greedy, pairs, chosen)
        for lane, settings in chosen.items():
            count = settings.evaluation.sentences
            ours = translations[lane][:count]
            metrics = [m for m in metrics_of(settings) if m.while_training]
            texts = _texts(
                settings, ours, Pairs(*(side[:count] for side in heldout.text))
            )
            scores[lane] |= corpus_scores(texts, metrics)
        return scores

    def final(
        self, states, losses, trials: Sequence[EndedTrial]
    ) -> list[dict[str, Any]]:
        """Scores all kinds of weights that the trials keep, and writes their files.

        `losses` are those of the states as they are on the validation set. Returns for each
        trial the loss and test scores of the weights that its settings name, and in
        `beside` the scores of all its weights.
        """
        beside = {trial.lane: {} for trial in trials}
        of_attention = {}
        for name in WEIGHTS:
            keeping = [
                trial
                for trial in trials
                if name in trial.settings.training.kept_weights
            ]
            if not keeping:
                continue
            replaced, steps = self._replace_weights(name, states, keeping)
            # The raw weights are those that the last validation has just evaluated.
            its_losses = losses if replaced is states else self.losses(replaced)
            scores = self._score(replaced, its_losses, keeping)
            for trial in keeping:
                lane = trial.lane
                beside[lane][name] = dict(
                    steps=steps[lane],
                    validation=scores[lane].validation,
                    test=scores[lane].test,
                )
                # Files and attention are of the weights whose scores are the trial's.
                if name == trial.settings.evaluation.weights:
                    of_attention[lane] = self._write_files(
                        trial, replaced, its_losses, scores[lane].texts
                    )
        return [
            self._result(trial.settings, beside[trial.lane], of_attention[trial.lane])
            for trial in trials
        ]

    def _result(self, settings, beside, of_attention) -> dict[str, Any]:
        """Returns what result.json has of the scores of all weights, and of attention."""
        chosen = beside[settings.evaluation.weights]
        on_validation = {m.key for m in METRICS if m.split == "validation"}
        result = {k: x for k, x in chosen["validation"].items() if k in on_validation}
        result |= dict(**chosen["test"], **of_attention, beside=beside)
        if self.objective.writes:
            result["signatures"] = signatures(
                chosen["test"], _tokens_of(settings), metrics_of(settings)
            )
        return result | dict(notes=score_notes(settings, self.prepared))

    def _watched(self, states, lane) -> dict[str, float]:
        """Returns statistics of a lane's attention over the first validation sentences."""
        ids = self.prepared.validation.ids
        pairs = Encoded(*(side[: self.batch_size] for side in ids))
        length = self.program.length
        ((_, batch),) = padded(pairs, self.batch_size, length, self.objective)
        sides = (batch.source_segments, batch.target_segments)
        lengths = [(segments > 0).sum(-1) for segments in sides]
        state = take_lane(states, self.lanes.place(lane))
        found = self.functions.watch(state, batch.source, batch.target_in, lengths)
        return {f"attention/{name}": float(value) for name, value in found.items()}

    def _replace_weights(self, name, states, trials):
        """Returns the states with the weights `name` of these trials, and steps by lane."""
        steps = {}
        replaced = states
        for trial in trials:
            place = self.lanes.place(trial.lane)
            state, steps[trial.lane] = trial.checkpoints.weights(
                name, take_lane(states, place), trial.settings.training.average
            )
            # The raw weights are in their lane already.
            if name != "raw":
                replaced = put_lane(replaced, place, state)
        return replaced, steps

    def _score(self, states, losses, trials) -> dict[int, HeldoutScores]:
        """Scores the states of these trials' lanes on both held-out sets."""
        test = self.prepared.test
        validation = self.prepared.validation
        if not self.objective.writes:
            of_test = self.losses(states, test)
            return {
                trial.lane: HeldoutScores(
                    self._loss(losses, trial.lane, validation),
                    self._loss(of_test, trial.lane, test, "test_"),
                    # It reads the text itself, so its attention is that over the text.
                    test.text.target,
                )
                for trial in trials
            }
        lanes = [trial.lane for trial in trials]
        search = self.functions.search
        for_validation = self.translate(states, search, validation.ids, lanes)
        for_test = self.translate(states, search, test.ids, lanes)
        scores = {}
        for trial in trials:
            lane = trial.lane
            metrics = metrics_of(trial.settings)
            ours = _texts(trial.settings, for_validation[lane], validation.text)
            of_validation = corpus_scores(ours, metrics)
            ours = _texts(trial.settings, for_test[lane], test.text)
            of_test = corpus_scores(ours, metrics)
            scores[lane] = HeldoutScores(
                self._loss(losses, lane, validation) | of_validation,
                of_test,
                for_test[lane],
            )
        return scores

    @property
    def _loss_metric(self):
        (metric,) = [m for m in METRICS if m.key == self.objective.loss_metric]
        return metric

    def _loss(self, losses, lane, heldout, prefix=""):
        """Returns {name: score} of a lane's losses on a held-out set."""
        name = self.objective.loss_metric
        scores = {name: LOSSES[name](*losses)}
        for metric in self._of_losses:
            scores[metric.key] = metric.of_losses(losses[0], heldout.text.target)
        return {f"{prefix}{name}": float(score[lane]) for name, score in scores.items()}

    @property
    def _of_losses(self):
        return [m for m in of_objective(self.objective) if isinstance(m, OfLosses)]

    def translate(self, states, search: Callable, pairs: Encoded, lanes):
        """Returns {lane: the text for each source} for each of `lanes`."""
        lanes = tuple(lanes)
        common = (self.batch_size, self.program.length, lanes, self.check)
        vocabulary = self.prepared.vocabulary()
        if self.objective.chooses:
            outputs = self.functions.choose
            vocabulary = self.prepared.target_vocabulary()
            texts = choose(outputs, states, vocabulary, pairs, *common, self.objective)
            return dict(zip(lanes, texts, strict=True))
        translations = translate(search, states, vocabulary, pairs.source, *common)
        best = {}
        for lane, of_lane in zip(lanes, translations, strict=True):
            best[lane] = [hypotheses[0].text for hypotheses in of_lane]
        return best

    def _write_files(self, trial, states, losses, texts) -> dict[str, float]:
        """Writes a trial's translations with the test set, examples, heads and sentences.npz.

        Returns further scores: of its attention, where the corpus has alignments, and of a
        task's answers by their place.
        """
        nll, tokens = losses
        nll = nll[trial.lane]
        state = take_lane(states, self.lanes.place(trial.lane))
        if self.objective.writes:
            test = self.prepared.test.text
            trial.run_dir.write_text("translations.txt", _lines(texts))
            # Beside it line by line, as other tools that score translations want them.
            trial.run_dir.write_text("sources.txt", _lines(test.source))
            trial.run_dir.write_text("references.txt", _lines(test.target))
        self._write_examples(trial, state, texts)
        more = {}
        error = self._alignment_error(trial, state)
        if error is not None:
            more["alignment_error"] = error
        if self.objective.answers:
            test = self.prepared.test
            more["accuracy_by"] = accuracy_by(texts, test.text.target, test.distances)
        if trial.settings.evaluation.head_importance:
            more |= self._write_heads(trial, states, state, nll, tokens)
        arrays = self._sentences(trial, nll, tokens, texts)
        trial.run_dir.write_arrays("sentences.npz", arrays)
        return more

    def _write_examples(self, trial, state: State, texts):
        records, arrays = attention_examples(
            self.functions.weights,
            state,
            self.prepared.vocabulary(),
            self.prepared.test,
            texts,
            trial.settings.evaluation.examples,
            self.program.length,
            self.objective,
            self.prepared.target_vocabulary(),
        )
        # Encodings that are part of attention have a table of zeros, with nothing to
        # draw.
        tables = sorted(trial.settings.model.tables().items())
        if not tables or type(tables[0][1]).table is Positions.table:
            arrays.pop("positions", None)
        trial.run_dir.write_examples(records, arrays)

    def _alignment_error(self, trial, state):
        if not self.objective.searches:
            return None
        return alignment_error.alignment_error(
            self.functions.weights,
            state,
            self.prepared.vocabulary(),
            self.prepared.test,
            _attention_batch(trial),
            self.program.length,
            self.check,
        )

    def _write_heads(self, trial, states, state, nll, tokens) -> dict[str, float]:
        place = self.lanes.place(trial.lane)
        without = {}
        for head in head_importance.all_heads(state.params, self.program.model):
            # The compiled function is of all lanes, so it evaluates all for one that is
            # changed.
            changed = put_lane(states, place, head_importance.without(state, head))
            losses, _ = self.losses(changed)
            without[head] = losses[trial.lane]
        arrays = head_importance.attention_statistics(
            self.functions.weights,
            state,
            self.prepared.test,
            _attention_batch(trial),
            self.program.length,
            self.check,
            self.objective,
        )
        arrays |= head_importance.importance(nll, without, tokens)
        trial.run_dir.write_arrays("heads.npz", arrays)
        if "decoder/first" not in arrays:
            return {}
        return {
            FIRST_TOKEN_MASS.key: float(np.nanmean(arrays["decoder/first"])),
            ENTROPY.key: float(np.nanmean(arrays["decoder/entropy"])),
        }

    def _sentences(self, trial, nll, tokens, texts):
        """Returns what each held-out sentence contributes to the scores, and its length."""
        of_nll, of_tokens = self._loss_metric.arrays
        arrays = {
            # A report sums them in float64 again.
            of_nll: nll.astype(np.float32),
            of_tokens: tokens.astype(np.int32),
            "validation_source": _lengths(self.prepared.validation),
        }
        for metric in self._of_losses:
            _, counted = metric.arrays
            arrays[counted] = metric.counts(self.prepared.validation.text.target)
        if self.objective.writes:
            test = self.prepared.test
            arrays["test_source"] = _lengths(test)
            ours = _texts(trial.settings, texts, test.text)
            arrays |= sentence_arrays(ours, metrics_of(trial.settings))
        return arrays


def score_notes(settings: Settings, prepared: Dataset) -> dict[str, str]:
    """Returns the notes on the test scores of this text, by metric or setting."""
    if not settings.objective.writes:
        return {}
    references = prepared.test.text.target
    found = notes(references, _tokens_of(settings), metrics_of(settings))
    if settings.objective.searches and (note := _limit_note(settings, prepared)):
        found |= {"max_length": note}
    return found


def _limit_note(settings, prepared):
    """Says how many references are longer than a translation may be; "" where none is."""
    e = settings.evaluation
    sources, targets = (
        np.array([len(ids) + 1 for ids in side]) for side in prepared.test.ids
    )
    too_long = targets > np.minimum(sources + e.max_extra, e.max_length)
    if not too_long.any():
        return ""
    return (
        f"{too_long.sum():,} of {len(targets):,} references of the test are longer than a "
        f"translation may be, by evaluation.max_length={e.max_length} and "
        f".max_extra={e.max_extra}: the longest has {targets.max()} tokens"
    )


def _attention_batch(trial):
    """Returns the batch size of the measures of attention: that of the examples."""
    # So the function is compiled once for both.
    return max(1, trial.settings.evaluation.examples)


def _lines(texts):
    return "".join(as_line(text) + "\n" for text in texts)


def _lengths(heldout):
    """Counts the tokens of each source, its end mark included."""
    return np.array([len(source) + 1 for source in heldout.ids.source], np.int32)


def metrics_of(settings: Settings) -> tuple[Metric, ...]:
    """Returns the metrics of a trial's texts: those of its objective, and its own."""
    of_texts = of_objective(settings.objective, settings.data.language)
    return (*of_texts, *settings.evaluation.own_metrics)


def _texts(settings, translations, pairs) -> Texts:
    """Returns texts for held-out pairs, with their references and sources."""
    are_labels = settings.objective.targets == "labels"
    source, target = pairs
    return Texts(translations, target, _tokens_of(settings), source, are_labels)


def _tokens_of(settings):
    """Returns the language whose Moses tokens the target is in, "" for plain text."""
    return settings.data.tokenized_language
