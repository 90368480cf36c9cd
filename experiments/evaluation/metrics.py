"""The metrics of a table: each is one class, with how it is scored, resampled and shown.

S sentences, k numbers that a sentence contributes. To add a metric, write a subclass of
`Metric` and put an instance into `METRICS`: the evaluation writes it and the report shows it.
"""

import collections
import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import ClassVar, NamedTuple

import numpy as np

from experiments.objectives import NOTHING, TARGETS, Objective, Translate
from experiments.stats.variance_stabilising import (
    IDENTITY,
    PERCENT,
    ROOT,
    ROOT_CROSS_ENTROPY,
    SHARE,
    Link,
)


class Texts(NamedTuple):
    """Holds translations, or answers, with one reference each."""

    translations: Sequence[str]
    references: Sequence[str]
    tokens_of: str = ""
    """The language whose Moses tokens the texts are in, "" for plain text."""
    sources: Sequence[str] = ()
    labels: bool = False
    """Whether each text is one label, however many words it has."""

    @property
    def pairs(self) -> Iterator[tuple[str, str]]:
        """(translation, reference) of each sentence."""
        return zip(self.translations, self.references, strict=True)


@dataclasses.dataclass(frozen=True)
class Metric:
    """One metric: its name, how it is computed from texts, and how it is shown.

    A subclass sets `key` and `heading`, and defines `of_sentences` and `of_sums`; a metric
    that is no function of sums over sentences defines `of_corpus`, with columns = 0. Options
    of a metric are fields of a dataclass.
    """

    key: ClassVar[str] = ""
    """The name in result.json, as "bleu"."""
    heading: ClassVar[str] = ""
    """The name in tables, with its unit, as "exact match, %"."""
    split: ClassVar[str] = "test"
    """The held-out set that it is computed on: "validation" or "test"."""
    higher_is_better: ClassVar[bool] = True
    decimals: ClassVar[int] = 1
    """Decimals of means in tables."""
    difference_decimals: ClassVar[int] = 2
    scale: ClassVar[float] = 1.0
    """The factor by which values are multiplied when they are shown."""
    link: ClassVar[Link] = IDENTITY
    """The scale on which rows are compared, where they vary alike; it has the bounds."""
    published: ClassVar[bool] = False
    """Whether the paper's Table 3 prints it."""
    columns: ClassVar[int] = 1
    """k, the numbers that a sentence contributes; 0 for a metric that is not resampled."""
    per_token: ClassVar[bool] = False
    """Whether it is a token's, so that other vocabularies have other scores."""
    answers: ClassVar[int | None] = None
    """Which of the k counts the answers of a text, where it has several; None where a
    sentence is one."""
    targets: ClassVar[tuple[str, ...]] = TARGETS
    """The kinds of targets that it makes sense for, see `experiments.objectives`."""
    while_training: ClassVar[bool] = True
    """Whether it is computed at each evaluation, or, as it takes long, at the end alone."""
    stored_as: ClassVar[tuple[str, ...]] = ()
    """Names in sentences.npz where they are others than "SPLIT_KEY"; their columns join."""

    def of_sentences(self, texts: Texts) -> np.ndarray:
        """Returns an array (S,) or (S, k): what sentences.npz holds as "SPLIT_KEY"."""
        raise NotImplementedError

    def of_sums(self, sums: np.ndarray, sentences: int) -> np.ndarray:
        """Returns scores (...) from sums (..., k) over S sentences, and S: by default the mean.

        Rows of a table are compared on resampled test sets by this function.
        """
        return sums[..., 0] / sentences

    def of_corpus(self, texts: Texts) -> float | None:
        """Returns the score of a corpus; None where the metric does not apply to its text."""
        numbers = self.statistics(
            {name: self.of_sentences(texts) for name in self.arrays}
        )
        return float(self.of_sums(numbers.sum(0), len(numbers)))

    def signature(self, tokens_of: str) -> str:
        """Returns for result.json how the score is computed, as papers print it; or ""."""
        return ""

    def note(self, references: Sequence[str], tokens_of: str) -> str:
        """Returns what a reader of the score must know of these references, or ""."""
        return ""

    @property
    def arrays(self) -> tuple[str, ...]:
        """The names of this metric's arrays in sentences.npz."""
        return self.stored_as or (f"{self.split}_{self.key}",)

    @property
    def name(self) -> str:
        """The heading without its unit."""
        return self.heading.partition(",")[0]

    @property
    def unit(self) -> str:
        """The unit in the heading, "%" or ""."""
        return self.heading.partition(",")[2].strip()

    @property
    def spaced_unit(self) -> str:
        """The unit behind a number, with a space: " %" or ""."""
        return f" {self.unit}" if self.unit else ""

    def amount(self, value: float, form: str) -> str:
        """Formats a value with its unit, as it is shown: "97.5 %"."""
        return f"{self.scale * value:{form}}{self.spaced_unit}"

    def statistics(self, stored: Mapping[str, np.ndarray]) -> np.ndarray | None:
        """Returns the (S, k) numbers of the sentences in a sentences.npz.

        None where an array is missing. Raises ValueError where the shapes do not fit.
        """
        # A run from before the metric was added lacks its arrays, which is no error.
        if not all(name in stored for name in self.arrays):
            return None
        arrays = [stored[name] for name in self.arrays]
        shapes = [array.shape for array in arrays]
        lengths = {shape[:1] for shape in shapes}
        flat = [array[:, None] if array.ndim == 1 else array for array in arrays]
        columns = [array.shape[1] if array.ndim == 2 else 0 for array in flat]
        if len(lengths) != 1 or 0 in columns or sum(columns) != self.columns:
            names = ", ".join(self.arrays)
            raise ValueError(f"{names}: shapes {shapes}, not (S, {self.columns})")
        return np.concatenate(flat, axis=1)


def summary(scores: Mapping[str, float], metrics: Sequence[Metric]) -> str:
    """Returns scores on a line, as "BLEU 27.3  exact match 4.5%", without missing ones."""
    parts = []
    for metric in metrics:
        if (score := scores.get(metric.key)) is not None:
            shown = metric.scale * score
            # A perplexity may have hundreds of digits.
            number = f"{shown:.{metric.decimals}f}" if shown < 1e7 else f"{shown:.3g}"
            parts.append(f"{metric.name} {number}{metric.unit}")
    return "  ".join(parts)


class Perplexity(Metric):
    """exp of the mean −log p per target token, end marks included (`perplexity.perplexity`)."""

    key = "perplexity"
    heading = "perplexity"
    split = "validation"
    higher_is_better = False
    decimals = difference_decimals = 3
    link = ROOT_CROSS_ENTROPY
    published = True
    columns = 2
    per_token = True
    stored_as = ("validation_nll", "validation_tokens")

    def of_sums(self, sums, sentences):
        """Computes exp(Σ nll / Σ tokens)."""
        # A diverged run has a perplexity of infinity, which is shown as such.
        with np.errstate(over="ignore", invalid="ignore"):
            return np.exp(sums[..., 0] / sums[..., 1])


class CrossEntropy(Metric):
    """The mean −log p per label, in nats (`perplexity.cross_entropy`)."""

    key = "cross_entropy"
    heading = "cross-entropy"
    split = "validation"
    higher_is_better = False
    decimals = difference_decimals = 3
    link = ROOT
    columns = 2
    stored_as = ("validation_label_nll", "validation_labels")

    def of_sums(self, sums, sentences):
        """Computes Σ nll / Σ labels."""
        return sums[..., 0] / sums[..., 1]


class OfLosses(Metric):
    """A metric of the losses of texts and of something that is counted in each; a base."""

    split = "validation"
    columns = 2

    def counts(self, texts: Sequence[str]) -> np.ndarray:
        """Returns what is counted in each text, int32 (S,)."""
        raise NotImplementedError

    def of_losses(self, nll: np.ndarray, texts: Sequence[str]) -> np.ndarray:
        """Returns the scores (L,) of L lanes from −log p (L, S) of S texts, in nats."""
        counts = np.full(len(nll), self.counts(texts).sum())
        return self.of_sums(np.stack([nll.sum(-1), counts], -1), len(texts))


class BitsPerCharacter(OfLosses):
    """Σ −log2 p of all tokens, over the characters of the text.

    End marks are predicted, and are no characters. As it is no token's, models of different
    vocabularies have one scale.
    """

    key = "bits_per_character"
    heading = "bits per character"
    higher_is_better = False
    decimals = difference_decimals = 3
    link = ROOT
    stored_as = ("validation_nll", "validation_characters")

    def counts(self, texts):
        """Counts the characters of each text."""
        return np.array([len(text) for text in texts], np.int32)

    def of_sums(self, sums, sentences):
        """Computes Σ nll / (ln 2 · Σ characters)."""
        return sums[..., 0] / (math.log(2) * sums[..., 1])


ORDERS = 4
"""BLEU counts 1 to 4 tokens in a row."""

TOKENIZERS = {
    "zh": ("zh", "zho", "cmn", "yue"),
    "char": (
        *("ja", "jpn", "ko", "kor"),
        *("th", "tha", "lo", "lao", "km", "khm", "my", "mya", "bo", "bod", "dz", "dzo"),
    ),
}
"""sacreBLEU's tokenizers and the languages, in ISO 639, that have one other than 13a."""


def tokenizer_of(language: str) -> str:
    """Returns the name of sacreBLEU's tokenizer for a language, such as "de" or "zh_Hans".

    13a, the default, splits at blanks and punctuation, so that it takes a sentence of a
    script without blanks for a word. Chinese has zh, which splits at each of its characters.
    Others of that kind, and Korean, have char, which splits at every character: what sacreBLEU
    itself has for Japanese and Korean needs MeCab, and two machines, one with it and one
    without, would give one table two BLEUs. "" and all others have 13a.
    """
    # The ending of a file may be more than a language: tok.zh, zh-CN.
    code = re.split(r"[-_]", language.rpartition(".")[2])[0].lower()
    for tokenizer, languages in TOKENIZERS.items():
        if code in languages:
            return tokenizer
    return "13a"


@dataclasses.dataclass(frozen=True)
class Bleu(Metric):
    """BLEU (Papineni et al. 2002), 0 to 100, as sacreBLEU computes it.

    It is by the tokenizer of the target's language, and of Moses tokens as they stand: papers
    that publish tokenised text give BLEU over those tokens.
    """

    key = "bleu"
    heading = "BLEU"
    link = PERCENT
    published = True
    targets = ("texts",)
    columns = 2 * ORDERS + 2

    language: str = ""

    def of_corpus(self, texts):
        metric = self._sacrebleu(texts.tokens_of)
        return metric.corpus_score(texts.translations, [texts.references]).score

    def of_sentences(self, texts):
        """Counts correct 1- to 4-grams, all 1- to 4-grams, length and reference length.

        Returns int32 (S, 10).
        """
        # sacreBLEU warns of sentence scores without effective_order; the counts are the
        # same.
        metric = self._sacrebleu(texts.tokens_of, effective_order=True)
        rows = []
        for translation, reference in texts.pairs:
            score = metric.sentence_score(translation, [reference])
            rows.append([*score.counts, *score.totals, score.sys_len, score.ref_len])
        return np.array(rows, np.int32).reshape(-1, self.columns)

    def of_sums(self, sums, sentences):
        """Computes sacreBLEU's corpus BLEU, smoothed by its "exp".

            BLEU = 100 · min(1, e^(1 − reference length / length)) · (Π p_k)^(1/4)

        with p_k = correct / total k-grams, from sums (..., 10). The z-th order without a
        correct k-gram has p_k = 1 / (2^z · total). Without any correct k-gram, or without
        4-grams, BLEU is 0.
        """
        correct = sums[..., :ORDERS]
        total = sums[..., ORDERS : 2 * ORDERS]
        length = sums[..., -2]
        reference = sums[..., -1]
        missed = correct == 0
        # The sum counts the orders without a match so far: the z of the formula.
        smoothed = np.where(missed, 0.5 ** np.cumsum(missed, axis=-1), correct)
        mean_log = np.log(smoothed / np.maximum(total, 1)).mean(-1)
        brevity = np.minimum(0, 1 - reference / np.maximum(length, 1))
        defined = (total > 0).all(-1) & ~missed.all(-1)
        return np.where(defined, 100 * np.exp(mean_log + brevity), 0.0)

    def signature(self, tokens_of):
        return _signature(self._sacrebleu(tokens_of))

    def note(self, references, tokens_of):
        """Returns why BLEU is 0 for all translations with these references; "" if it is not."""
        # No tokenizer joins what blanks part, and most texts need no tokenizer to tell.
        if any(len(reference.split()) >= ORDERS for reference in references):
            return ""
        tokenize = self._sacrebleu(tokens_of).tokenizer
        if any(len(tokenize(reference).split()) >= ORDERS for reference in references):
            return ""
        return (
            f"BLEU counts {ORDERS} tokens in a row and no reference has as many (tokenizer "
            f"{self._tokenizer(tokens_of)}), so that right translations have BLEU 0 too; "
            "data.target names the language, which chooses the tokenizer"
        )

    def _tokenizer(self, tokens_of):
        return "none" if tokens_of else tokenizer_of(self.language)

    def _sacrebleu(self, tokens_of, **options):
        # sacreBLEU advises against text that ends in " .", as tokenised text does.
        tokenize = self._tokenizer(tokens_of)
        return sacrebleu().BLEU(tokenize=tokenize, force=True, **options)


class DetokenizedBleu(Metric):
    """BLEU to be compared with other systems' where training data are Moses tokens."""

    key = "bleu_detokenized"
    heading = "BLEU, detokenised"
    link = PERCENT
    targets = ("texts",)
    columns = 0

    def of_corpus(self, texts):
        """Computes BLEU of detokenised text; None for plain text."""
        if not texts.tokens_of:
            return None
        return Bleu(texts.tokens_of).of_corpus(detokenized(texts))

    def signature(self, tokens_of):
        return Bleu(tokens_of).signature("")


def sacrebleu() -> ModuleType:
    """Imports sacreBLEU: a run begins without it, and it takes a fifth of a second."""
    import sacrebleu

    return sacrebleu


def _signature(metric) -> str:
    """Returns the signature of a metric of sacreBLEU, as papers print it."""
    # It knows the number of references only once it has scored something.
    metric.corpus_score(["a"], [["a"]])
    return metric.get_signature().format()


def detokenized(texts: Texts) -> Texts:
    """Returns texts in Moses tokens as plain text; sources stay as they are."""
    # It takes as long to import as all other metrics, and few corpora are such tokens.
    import sacremoses

    detokenizer = sacremoses.MosesDetokenizer(lang=texts.tokens_of)
    ours, theirs = (
        [detokenizer.detokenize(sentence.split()) for sentence in sentences]
        for sentences in texts[:2]
    )
    return Texts(ours, theirs, "", texts.sources)


CHRF_ORDERS = 6
CHRF_BETA = 2
"""Weight of recall against precision in chrF, sacreBLEU's default."""


class Chrf(Metric):
    """sacreBLEU's default chrF2 (Popović 2015), 0 to 100."""

    key = "chrf"
    heading = "chrF"
    link = PERCENT
    targets = ("texts",)
    columns = 3 * CHRF_ORDERS

    def of_corpus(self, texts):
        chrf = sacrebleu().CHRF()
        return chrf.corpus_score(texts.translations, [texts.references]).score

    def of_sentences(self, texts):
        """Counts, for each order 1 to 6, character n-grams of translation, reference and both.

        Returns int32 (S, 18): three counts an order. White space is no character. Where a
        reference has no n-grams of an order, those of its translation do not count.
        """
        n_grams = sacrebleu().metrics.helpers.extract_all_char_ngrams
        rows = []
        for translation, reference in texts.pairs:
            ours = n_grams(translation, CHRF_ORDERS)
            theirs = n_grams(reference, CHRF_ORDERS)
            row = []
            for hypothesis, expected in zip(ours, theirs, strict=True):
                # As sacreBLEU counts, so that sums over sentences give its corpus score.
                made = hypothesis.total() if expected else 0
                row += [made, expected.total(), (hypothesis & expected).total()]
            rows.append(row)
        return np.array(rows, np.int32).reshape(-1, 3 * CHRF_ORDERS)

    def of_sums(self, sums, sentences):
        """Computes sacreBLEU's corpus chrF2 from sums (..., 18).

            chrF = 100 · (1 + β²) · P·R / (β²·P + R)

        with P and R the means of precision and recall over the orders that both sides have
        n-grams of; 0 where both are 0.
        """
        made = sums[..., 0::3]
        expected = sums[..., 1::3]
        matched = sums[..., 2::3]
        counted = (made > 0) & (expected > 0)
        orders = np.maximum(counted.sum(-1), 1)
        precisions = np.where(counted, matched / np.maximum(made, 1), 0.0)
        recalls = np.where(counted, matched / np.maximum(expected, 1), 0.0)
        precision = precisions.sum(-1) / orders
        recall = recalls.sum(-1) / orders
        factor = CHRF_BETA**2
        weighted = factor * precision + recall
        product = (1 + factor) * precision * recall
        # Where there is no match the product is 0, whatever it is divided by.
        return 100 * product / np.where(weighted > 0, weighted, 1.0)

    def signature(self, tokens_of):
        return _signature(sacrebleu().CHRF())


class ExactMatch(Metric):
    """The share (0 to 1) of translations that are their reference."""

    key = "exact_match"
    heading = "exact match, %"
    scale = 100.0
    link = SHARE
    stored_as = ("test_exact",)

    def of_sentences(self, texts):
        """Returns bool (S,): whether each translation is its reference."""
        return np.array([ours == theirs for ours, theirs in texts.pairs], bool)


class Accuracy(Metric):
    """The share (0 to 1) of answers to a task that are right, of all texts."""

    key = "accuracy"
    heading = "accuracy, %"
    scale = 100.0
    link = SHARE
    columns = 2
    answers = 1

    def of_sentences(self, texts):
        """Counts the right answers and all answers of each text, int32 (S, 2).

        An answer is a word of the reference other than NOTHING, and right where the same
        word is in its place; or a whole label.
        """
        rows = []
        for given, reference in texts.pairs:
            right = list(right_answers(given, reference))
            if texts.labels:
                right = [given == reference]
            rows.append([sum(right), len(right)])
        return np.array(rows, np.int32).reshape(-1, 2)

    def of_sums(self, sums, sentences):
        return sums[..., 0] / np.maximum(sums[..., 1], 1)


def right_answers(given: str, reference: str) -> Iterator[bool]:
    """Yields for each answer of a reference whether the same word is in its place."""
    words = given.split()
    for i, word in enumerate(reference.split()):
        if word != NOTHING:
            yield i < len(words) and words[i] == word


class MacroF1(Metric):
    """The mean of the F1 (0 to 1) of all labels that texts have or are given.

        F1 = 2·right / (given + due)

    of each label (Sokolova and Lapalme 2009, table 3, with the F of each label averaged), so
    that rare labels count as much as frequent ones.
    """

    key = "macro_f1"
    heading = "macro-F1, %"
    scale = 100.0
    link = SHARE
    targets = ("labels",)
    columns = 0

    def of_corpus(self, texts):
        given = collections.Counter(texts.translations)
        due = collections.Counter(texts.references)
        right = collections.Counter(
            ours for ours, theirs in texts.pairs if ours == theirs
        )
        both = given + due
        scores = [2 * right[label] / count for label, count in both.items()]
        return sum(scores) / len(scores)


class AlignmentError(Metric):
    """Computed from attention (`alignment_error.alignment_error`), so only of some models."""

    key = "alignment_error"
    heading = "alignment error, %"
    higher_is_better = False
    scale = 100.0
    link = SHARE
    columns = 0


class FirstTokenMass(Metric):
    """The weight of the first token in the decoder's self-attention, a mean.

    It is the mean over all queries of the test set, heads and layers: near 100 where heads
    rest on it as a sink. Weights that sum to more than 1 are divided by their sum. With
    evaluation.head_importance alone, as all in heads.npz.
    """

    key = "first_token_mass"
    heading = "first-token mass, %"
    higher_is_better = False
    scale = 100.0
    link = SHARE
    columns = 0


class Entropy(Metric):
    """The entropy of the weights of the decoder's self-attention, as shares of their sum."""

    key = "attention_entropy"
    heading = "entropy, nats"
    decimals = 2
    columns = 0


PERPLEXITY = Perplexity()
CROSS_ENTROPY = CrossEntropy()
BITS_PER_CHARACTER = BitsPerCharacter()
BLEU = Bleu()
"""What reports need of BLEU: sums over sentences know of no tokenizer."""
CHRF = Chrf()
EXACT_MATCH = ExactMatch()
ACCURACY = Accuracy()
MACRO_F1 = MacroF1()
ALIGNMENT_ERROR = AlignmentError()
FIRST_TOKEN_MASS = FirstTokenMass()
ENTROPY = Entropy()

OF_ATTENTION = (ALIGNMENT_ERROR, FIRST_TOKEN_MASS, ENTROPY)
"""What is measured of attention, in tables beside the metrics, where there is any."""

METRICS = (
    PERPLEXITY,
    BITS_PER_CHARACTER,
    CROSS_ENTROPY,
    BLEU,
    CHRF,
    EXACT_MATCH,
    ACCURACY,
    MACRO_F1,
)
"""The metrics that rows of a table are compared by, in the table's order."""


def of_objective(objective: Objective, language: str = "") -> tuple[Metric, ...]:
    """Returns the metrics that texts are scored by, those with a target in `language`."""
    known = {metric.key: metric for metric in (*METRICS, DetokenizedBleu())}
    known[BLEU.key] = Bleu(language)
    return tuple(known.get(metric, metric) for metric in objective.metrics)


OF_TRANSLATIONS = of_objective(Translate())


def corpus_scores(
    texts: Texts, metrics: Sequence[Metric] = OF_TRANSLATIONS
) -> dict[str, float]:
    """Computes {key: score} of translations against one reference each.

    Metrics that do not apply to such text are left out. Raises ValueError where the numbers
    of translations and references differ.
    """
    if len(texts.translations) != len(texts.references):
        counts = f"{len(texts.translations)} translations for {len(texts.references)}"
        raise ValueError(f"{counts} references")
    scores = {metric.key: metric.of_corpus(texts) for metric in metrics}
    return {key: score for key, score in scores.items() if score is not None}


def signatures(
    scores: Mapping[str, float],
    tokens_of: str,
    metrics: Sequence[Metric] = OF_TRANSLATIONS,
) -> dict[str, str]:
    """Returns {key: signature} of the metrics among `scores` that have one."""
    signed = {m.key: m.signature(tokens_of) for m in metrics if m.key in scores}
    return {key: signature for key, signature in signed.items() if signature}


def notes(
    references: Sequence[str],
    tokens_of: str,
    metrics: Sequence[Metric] = OF_TRANSLATIONS,
) -> dict[str, str]:
    """Returns {key: note} of the metrics that have a note on these references."""
    found = {metric.key: metric.note(references, tokens_of) for metric in metrics}
    return {key: note for key, note in found.items() if note}


def sentence_arrays(
    texts: Texts, metrics: Sequence[Metric] = OF_TRANSLATIONS
) -> dict[str, np.ndarray]:
    """Computes what each sentence contributes, by the names that sentences.npz has."""
    arrays = {}
    for metric in metrics:
        # Metrics without columns, as BLEU of detokenised text, are not resampled.
        if metric.columns:
            (name,) = metric.arrays
            arrays[name] = metric.of_sentences(texts)
    return arrays
