"""What the trials of a population are worth: on validation while they train, with all their weights at the end."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from attn import Positions
from experiments.data.dataset import Heldout, Prepared
from experiments.evaluation import alignment_error, head_importance
from experiments.evaluation.attention_maps import attention_examples
from experiments.evaluation.compiled import Compiled
from experiments.evaluation.decode import translate
from experiments.evaluation.metrics import corpus_scores, sentence_statistics
from experiments.evaluation.perplexity import perplexity, sentence_losses
from experiments.settings import WEIGHTS, Settings
from experiments.trial.lanes import Lanes, put_lane, take_lane
from experiments.trial.program import Program, position_encoding


class Examined(NamedTuple):
    """One trial's settings, place, checkpoints and directory, as scoring needs them."""

    settings: Settings
    lane: int
    checkpoints: Any
    directory: Any


class Judge(NamedTuple):
    """Scores the lanes of a population on the validation and test set of `prepared`."""

    functions: Compiled
    prepared: Prepared
    lanes: Lanes
    program: Program
    rows: int
    check: Callable[[], None] = lambda: None
    """Called between batches; what it raises ends the scoring."""

    @property
    def translates(self) -> bool:
        """Whether there is anything but perplexity to score."""
        return self.program.kind != "language"

    def losses(self, states, heldout: Heldout | None = None):
        """Of the validation set, or of another, see `evaluation.sentence_losses`."""
        ids = (heldout or self.prepared.validation).ids
        return sentence_losses(
            self.functions.piece_losses,
            states,
            ids,
            self.rows,
            self.program.length,
            self.check,
        )

    def validation(
        self, states, losses, chosen: dict[int, Settings]
    ) -> dict[int, dict[str, float]]:
        """For each of the lanes `chosen`: perplexity on the whole set, scores of greedy translations of its first."""
        heldout, most = (
            self.prepared.validation,
            max(s.evaluation.sentences for s in chosen.values()),
        )
        perplexities = perplexity(*losses)
        if not self.translates:
            return {lane: dict(perplexity=float(perplexities[lane])) for lane in chosen}
        translations = self._translations(
            states, self.functions.greedy, heldout.ids.source[:most], chosen
        )
        return {
            lane: dict(
                perplexity=float(perplexities[lane]),
                **_score(
                    s,
                    *(
                        side[: s.evaluation.sentences]
                        for side in (translations[lane], heldout.text.target)
                    ),
                ),
            )
            for lane, s in chosen.items()
        }

    def end(self, states, losses, ended: list[Examined]) -> list[dict[str, Any]]:
        """Scores all the weights of trials that have ended, and writes translations, examples and sentences.npz.

        `losses` are of the states as they are. Returns for each: perplexity and test scores of the weights that its
        settings name, and `beside`, those of all.
        """
        beside, alone = [{} for _ in ended], [{} for _ in ended]
        for name in WEIGHTS:
            of = [i for i, one in enumerate(ended) if _has(one.settings.training, name)]
            if not of:
                continue
            replaced, steps = states, {}
            for i in of:
                place = self.lanes.place(ended[i].lane)
                own, steps[i] = ended[i].checkpoints.weights(
                    name, take_lane(states, place), ended[i].settings.training.average
                )
                replaced = states if name == "raw" else put_lane(replaced, place, own)
            own_losses = losses if name == "raw" else self.losses(replaced)
            self._score_all(
                replaced,
                own_losses,
                name,
                [(ended[i], steps[i], beside[i], alone[i]) for i in of],
            )
        return [
            dict(
                perplexity=found[one.settings.evaluation.weights]["validation"][
                    "perplexity"
                ],
                **found[one.settings.evaluation.weights]["test"],
                **more,
                beside=found,
            )
            for one, found, more in zip(ended, beside, alone, strict=True)
        ]

    def _score_all(self, states, losses, name, wanted):
        """Scores lanes with the weights `name`, into `beside`; for those trials whose own these are, writes files, and
        into `alone` what is scored of them only."""
        if not self.translates:
            self._score_language(states, losses, name, wanted)
            return
        validation, test = self.prepared.validation, self.prepared.test
        nll, tokens = losses
        perplexities = perplexity(nll, tokens)
        lanes = [one.lane for one, *_ in wanted]
        of_validation, of_test = (
            self._translations(states, self.functions.search, side.ids.source, lanes)
            for side in (validation, test)
        )
        for one, steps, beside, alone in wanted:
            lane = one.lane
            scores = _score(one.settings, of_validation[lane], validation.text.target)
            beside[name] = dict(
                steps=steps,
                validation=dict(perplexity=float(perplexities[lane]), **scores),
                test=_score(one.settings, of_test[lane], test.text.target),
            )
            if name == one.settings.evaluation.weights:
                own = take_lane(states, self.lanes.place(lane))
                self._keep(one, own, of_test[lane])
                error = alignment_error.alignment_error(
                    self.functions.weights,
                    own,
                    self.prepared.vocabulary(),
                    test,
                    # as many as for the examples: compiled once
                    max(1, one.settings.evaluation.examples),
                    self.program.length,
                    self.check,
                )
                alone |= {} if error is None else dict(alignment_error=error)
                self._heads(one, states, nll[lane], tokens)
                one.directory.write_arrays(
                    "sentences.npz",
                    self._sentences(one, nll[lane], tokens, of_test[lane]),
                )

    def _score_language(self, states, losses, name, wanted):
        """The same of a language model: perplexities, and examples of where it looks in the test set's own text."""
        of_validation, of_test = (
            perplexity(*each)
            for each in (losses, self.losses(states, self.prepared.test))
        )
        for one, steps, beside, _ in wanted:
            beside[name] = dict(
                steps=steps,
                validation=dict(perplexity=float(of_validation[one.lane])),
                test=dict(test_perplexity=float(of_test[one.lane])),
            )
            if name == one.settings.evaluation.weights:
                self._keep(
                    one,
                    take_lane(states, self.lanes.place(one.lane)),
                    self.prepared.test.text.target,
                )
                nll, tokens = losses
                one.directory.write_arrays(
                    "sentences.npz", self._of_validation(nll[one.lane], tokens)
                )
                self._heads(one, states, nll[one.lane], tokens)

    def _heads(self, one, states, nll, tokens):
        """Writes what each head does, where the settings ask for it."""
        if not one.settings.evaluation.head_importance:
            return
        place = self.lanes.place(one.lane)
        state, others = take_lane(states, place), {}
        for head in head_importance.all_heads(state.params):
            found, _ = self.losses(
                put_lane(states, place, head_importance.without(state, head))
            )
            others[head] = found[one.lane]
        arrays = head_importance.looks(
            self.functions.weights,
            state,
            self.prepared.test,
            max(1, one.settings.evaluation.examples),
            self.program.length,
            self.check,
        )
        one.directory.write_arrays(
            "heads.npz", arrays | head_importance.importance(nll, others, tokens)
        )

    def _of_validation(self, nll, tokens):
        lengths = np.array(
            [len(s) + 1 for s in self.prepared.validation.ids.source], np.int32
        )
        return dict(
            validation_nll=nll.astype(np.float32),
            validation_tokens=tokens.astype(np.int32),
            validation_source=lengths,
        )

    def _sentences(self, one, nll, tokens, translations):
        """What each held-out sentence contributes to the scores."""
        test = self.prepared.test
        return dict(
            self._of_validation(nll, tokens),
            test_source=np.array([len(s) + 1 for s in test.ids.source], np.int32),
            test_exact=np.array(
                [t == r for t, r in zip(translations, test.text.target, strict=True)]
            ),
            test_bleu=sentence_statistics(
                translations, test.text.target, _tokens_of(one.settings)
            ),
        )

    def _keep(self, one, state, translations):
        """Writes the translations of the test set, if such they are, and a few examples of where attention looks."""
        if self.translates:
            one.directory.write_text(
                "translations.txt", "".join(line + "\n" for line in translations)
            )
        records, arrays = attention_examples(
            self.functions.weights,
            state,
            self.prepared.vocabulary(),
            self.prepared.test,
            translations,
            one.settings.evaluation.examples,
            self.program.length,
        )
        if type(position_encoding(one.settings)).table is Positions.table:
            arrays.pop("positions", None)
        one.directory.write_examples(records, arrays)

    def _translations(self, states, search, sources, lanes):
        """The best translation of each source, for each of `lanes`."""
        lanes = tuple(lanes)
        found = translate(
            search,
            states,
            self.prepared.vocabulary(),
            sources,
            self.rows,
            self.program.length,
            lanes,
            self.check,
        )
        return {
            lane: [best[0].text for best in own]
            for lane, own in zip(lanes, found, strict=True)
        }


def _has(training, name):
    return dict(
        raw=True,
        average=training.average > 0,
        ema=training.ema > 0,
        best=training.keep_best,
    )[name]


def _score(settings, translations, references):
    return corpus_scores(translations, references, _tokens_of(settings))


def _tokens_of(settings):
    return settings.data.tokenized_language
