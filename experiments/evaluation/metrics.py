"""The metrics of a table: each is one value that knows how it is scored, kept, resampled and shown.

S sentences, k numbers that a sentence contributes. To add a metric, write a `Metric` and
put it into `METRICS`: the evaluation writes it and the report shows it.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from experiments.data.vocabulary import NOTHING
from experiments.evaluation.bleu import (
    ORDERS,
    bleu_note,
    bleu_of_corpus,
    bleu_of_sentences,
    bleu_of_sums,
    bleu_signature,
    sacrebleu,
    signature,
)
from experiments.stats.variance_stabilising import (
    IDENTITY,
    PERCENT,
    ROOT_CROSS_ENTROPY,
    SHARE,
    Link,
)

Texts = Sequence[str]

CHRF_ORDERS = 6
CHRF_BETA = 2
"""Weight of recall against precision in chrF, sacreBLEU's default."""


@dataclasses.dataclass(frozen=True)
class Metric:
    """Holds one metric: its name, how it is computed, and how it is shown.

    Functions of text take (translations, references, tokens_of), where `tokens_of` is the
    language whose Moses tokens the texts are in, or "" for plain text.
    """

    key: str
    """The name in result.json, and of the setting's results, as "bleu"."""
    heading: str
    """The name in tables, with its unit, as "exact match, %"."""
    split: str = "test"
    """The held-out set that it is computed on: "validation" or "test"."""
    higher_is_better: bool = True
    decimals: int = 1
    """Decimals of means in tables."""
    difference_decimals: int = 2
    scale: float = 1.0
    """The factor by which values are multiplied when they are shown."""
    link: Link = IDENTITY
    """The scale on which rows are compared, where they vary alike; it knows the bounds."""
    published: bool = False
    """Whether the paper's Table 3 prints it."""
    of_corpus: Callable[[Texts, Texts, str], float | None] | None = None
    """Returns the score of a corpus; None where the metric does not apply to its text.

    A metric without this function is computed elsewhere, from losses or attention.
    """
    of_sentences: Callable[[Texts, Texts, str], np.ndarray] | None = None
    """Returns an array (S,) or (S, k): what sentences.npz holds as "SPLIT_KEY"."""
    of_sums: Callable[[np.ndarray, int], np.ndarray] | None = None
    """Returns scores (...) from sums (..., k) over S sentences, and S.

    Rows of a table are compared on resampled test sets by this function.
    """
    columns: int = 1
    """k, the numbers that a sentence contributes."""
    per_token: bool = False
    """Whether it is a token's, so that other vocabularies have other scores."""
    answers: int | None = None
    """Which of the k counts the answers of a text, where it has several; None where a
    sentence is one."""
    needs_source: bool = False
    """Whether `of_corpus` and `of_sentences` take the source sentences as a fourth argument."""
    while_training: bool = True
    """Whether it is computed at each evaluation, or, as it takes long, at the end alone."""
    signature: Callable[[str], str] | None = None
    """Returns from tokens_of a text that says how the score is computed, for result.json."""
    note: Callable[[Texts, str], str] | None = None
    """Returns from references and tokens_of what a reader of the score must know, or ""."""
    stored_as: tuple[str, ...] = ()
    """Names in sentences.npz where they are others than "SPLIT_KEY"; their columns join."""

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
    """Says scores on a line, as "BLEU 27.3  exact match 4.5%"; leaves out those that lack."""
    parts = []
    for metric in metrics:
        if (score := scores.get(metric.key)) is not None:
            number = f"{metric.scale * score:.{metric.decimals}f}"
            parts.append(f"{metric.name} {number}{metric.unit}")
    return "  ".join(parts)


def detokenize(sentences: Texts, language: str) -> list[str]:
    """Returns sentences in Moses tokens as plain text."""
    # It takes as long to import as all other metrics, and few corpora are such tokens.
    import sacremoses

    detokenizer = sacremoses.MosesDetokenizer(lang=language)
    return [detokenizer.detokenize(sentence.split()) for sentence in sentences]


def perplexity_of_sums(sums: np.ndarray, sentences: int) -> np.ndarray:
    """Computes exp(Σ nll / Σ tokens) from sums (..., 2) of both."""
    # A diverged run has a perplexity of infinity, which is shown as such.
    with np.errstate(over="ignore", invalid="ignore"):
        return np.exp(sums[..., 0] / sums[..., 1])


def detokenized_bleu(
    translations: Texts, references: Texts, tokens_of: str
) -> float | None:
    """Computes BLEU of detokenised text; None for plain text."""
    if not tokens_of:
        return None
    translations = detokenize(translations, tokens_of)
    references = detokenize(references, tokens_of)
    return bleu_of_corpus(translations, references, "", tokens_of)


def chrf_of_corpus(translations: Texts, references: Texts, tokens_of: str) -> float:
    """Computes sacreBLEU's default chrF2 (Popović 2015), 0 to 100."""
    return sacrebleu().CHRF().corpus_score(translations, [references]).score


def chrf_of_sentences(
    translations: Texts, references: Texts, tokens_of: str
) -> np.ndarray:
    """Counts, for each order 1 to 6, character n-grams of translation, reference and both.

    Returns int32 (S, 18): three counts an order. White space is no character. Where a
    reference has no n-grams of an order, those of its translation do not count.
    """
    n_grams = sacrebleu().metrics.helpers.extract_all_char_ngrams
    rows = []
    for translation, reference in zip(translations, references, strict=True):
        ours = n_grams(translation, CHRF_ORDERS)
        theirs = n_grams(reference, CHRF_ORDERS)
        row = []
        for hypothesis, expected in zip(ours, theirs, strict=True):
            # As sacreBLEU counts, so that sums over sentences give its corpus score.
            made = hypothesis.total() if expected else 0
            row += [made, expected.total(), (hypothesis & expected).total()]
        rows.append(row)
    return np.array(rows, np.int32).reshape(-1, 3 * CHRF_ORDERS)


def chrf_of_sums(sums: np.ndarray, sentences: int) -> np.ndarray:
    """Computes sacreBLEU's corpus chrF2 from sums (..., 18) of `chrf_of_sentences`.

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


def exact_match_of_corpus(
    translations: Texts, references: Texts, tokens_of: str
) -> float:
    """Computes the share (0 to 1) of translations that are their reference."""
    pairs = zip(translations, references, strict=True)
    return sum(ours == theirs for ours, theirs in pairs) / len(references)


def exact_match_of_sentences(
    translations: Texts, references: Texts, tokens_of: str
) -> np.ndarray:
    """Returns bool (S,): whether each translation is its reference."""
    pairs = zip(translations, references, strict=True)
    return np.array([ours == theirs for ours, theirs in pairs], bool)


def accuracy_of_corpus(answers: Texts, references: Texts, tokens_of: str) -> float:
    """Computes the share (0 to 1) of answers of all texts that are right."""
    counts = accuracy_of_sentences(answers, references, tokens_of)
    return float(accuracy_of_sums(counts.sum(0), len(counts)))


def accuracy_of_sentences(
    answers: Texts, references: Texts, tokens_of: str
) -> np.ndarray:
    """Counts the right answers and all answers of each text, int32 (S, 2).

    An answer is a word of the reference other than NOTHING, and right where the same word
    stands in its place.
    """
    rows = []
    for given, reference in zip(answers, references, strict=True):
        right = list(right_answers(given, reference))
        rows.append([sum(right), len(right)])
    return np.array(rows, np.int32).reshape(-1, 2)


def accuracy_of_sums(sums: np.ndarray, sentences: int) -> np.ndarray:
    """Computes the share of answers that are right from sums (..., 2)."""
    return sums[..., 0] / np.maximum(sums[..., 1], 1)


def right_answers(given: str, reference: str) -> Iterator[bool]:
    """Yields for each answer of a reference whether the same word stands in its place."""
    words = given.split()
    for i, word in enumerate(reference.split()):
        if word != NOTHING:
            yield i < len(words) and words[i] == word


def mean_of_sums(sums: np.ndarray, sentences: int) -> np.ndarray:
    """Computes the mean over sentences from sums (..., 1)."""
    return sums[..., 0] / sentences


PERPLEXITY = Metric(
    key="perplexity",
    heading="perplexity",
    split="validation",
    higher_is_better=False,
    decimals=3,
    difference_decimals=3,
    link=ROOT_CROSS_ENTROPY,
    published=True,
    of_sums=perplexity_of_sums,
    columns=2,
    per_token=True,
    stored_as=("validation_nll", "validation_tokens"),
)
"""exp of the mean −log p per target token, end marks included (`perplexity.perplexity`)."""


@functools.cache
def bleu(language: str = "") -> Metric:
    """Returns the metric BLEU by the tokenizer of a language, see `tokenizer_of`."""
    return Metric(
        key="bleu",
        heading="BLEU",
        link=PERCENT,
        published=True,
        signature=functools.partial(bleu_signature, language=language),
        note=functools.partial(bleu_note, language=language),
        of_corpus=functools.partial(bleu_of_corpus, language=language),
        of_sentences=functools.partial(bleu_of_sentences, language=language),
        of_sums=bleu_of_sums,
        columns=2 * ORDERS + 2,
    )


BLEU = bleu()
"""What reports need of BLEU: sums over sentences know of no tokenizer."""

BLEU_DETOKENIZED = Metric(
    key="bleu_detokenized",
    heading="BLEU, detokenised",
    link=PERCENT,
    signature=lambda tokens_of: bleu_signature("", tokens_of),
    of_corpus=detokenized_bleu,
)
"""BLEU to be compared with other systems' where training data are Moses tokens."""

CHRF = Metric(
    key="chrf",
    heading="chrF",
    link=PERCENT,
    signature=lambda tokens_of: signature(sacrebleu().CHRF()),
    of_corpus=chrf_of_corpus,
    of_sentences=chrf_of_sentences,
    of_sums=chrf_of_sums,
    columns=3 * CHRF_ORDERS,
)

EXACT_MATCH = Metric(
    key="exact_match",
    heading="exact match, %",
    scale=100.0,
    link=SHARE,
    of_corpus=exact_match_of_corpus,
    of_sentences=exact_match_of_sentences,
    of_sums=mean_of_sums,
    stored_as=("test_exact",),
)

ACCURACY = Metric(
    key="accuracy",
    heading="accuracy, %",
    scale=100.0,
    link=SHARE,
    of_corpus=accuracy_of_corpus,
    of_sentences=accuracy_of_sentences,
    of_sums=accuracy_of_sums,
    columns=2,
    answers=1,
)
"""Of answers to tasks, which have those of a text in their places."""

ALIGNMENT_ERROR = Metric(
    key="alignment_error",
    heading="alignment error, %",
    higher_is_better=False,
    scale=100.0,
    link=SHARE,
)
"""Computed from attention (`alignment_error.alignment_error`), so only of some models."""

FIRST_TOKEN_MASS = Metric(
    key="first_token_mass",
    heading="first-token mass, %",
    higher_is_better=False,
    scale=100.0,
    link=SHARE,
)
"""The weight of the first token in the decoder's self-attention, the mean over all queries of
the test set, heads and layers: near 100 where heads rest on it as a sink. Weights that sum to
more than 1 are divided by their sum. With evaluation.head_importance alone, as all in
heads.npz."""

ENTROPY = Metric(
    key="attention_entropy",
    heading="entropy, nats",
    decimals=2,
)
"""The entropy of the weights of the decoder's self-attention, as shares of their sum, likewise."""

OF_ATTENTION = (ALIGNMENT_ERROR, FIRST_TOKEN_MASS, ENTROPY)
"""What is measured of attention, in tables beside the metrics, where there is any."""

METRICS = (
    PERPLEXITY,
    BLEU,
    CHRF,
    EXACT_MATCH,
    ACCURACY,
)
"""The metrics that rows of a table are compared by, in the table's order."""

OF_TEXT = (BLEU, CHRF, EXACT_MATCH, BLEU_DETOKENIZED)
"""The metrics that translations into a language without a name are scored by."""

OF_ANSWERS = (EXACT_MATCH, ACCURACY)
"""The metrics that answers to tasks are scored by."""


def of_text(language: str) -> tuple[Metric, ...]:
    """Returns the metrics that translations into a language are scored by."""
    return (bleu(language), *OF_TEXT[1:])


def corpus_scores(
    translations: Texts,
    references: Texts,
    tokens_of: str = "",
    metrics: Sequence[Metric] = OF_TEXT,
    sources: Texts = (),
) -> dict[str, float]:
    """Computes {key: score} of translations against one reference each.

    Metrics that do not apply to such text are left out. `sources` are for the metrics that
    need them. Raises ValueError where the numbers of translations and references differ.
    """
    if len(translations) != len(references):
        counts = f"{len(translations)} translations for {len(references)} references"
        raise ValueError(counts)
    scores = {}
    for metric in metrics:
        more = (sources,) if metric.needs_source else ()
        score = metric.of_corpus(translations, references, tokens_of, *more)
        if score is not None:
            scores[metric.key] = score
    return scores


def signatures(
    scores: Mapping[str, float], tokens_of: str, metrics: Sequence[Metric] = OF_TEXT
) -> dict[str, str]:
    """Returns {key: signature} of the metrics among `scores` that have one."""
    return {
        metric.key: metric.signature(tokens_of)
        for metric in metrics
        if metric.signature and metric.key in scores
    }


def notes(
    references: Texts, tokens_of: str, metrics: Sequence[Metric] = OF_TEXT
) -> dict[str, str]:
    """Returns {key: note} of the metrics that have something to say of these references."""
    found = {m.key: m.note(references, tokens_of) for m in metrics if m.note}
    return {key: note for key, note in found.items() if note}


def sentence_arrays(
    translations: Texts,
    references: Texts,
    tokens_of: str = "",
    metrics: Sequence[Metric] = OF_TEXT,
    sources: Texts = (),
) -> dict[str, np.ndarray]:
    """Computes what each sentence contributes, by the names that sentences.npz has."""
    arrays = {}
    for metric in metrics:
        # Metrics without it, as BLEU of detokenised text, are not resampled.
        if metric.of_sentences:
            (name,) = metric.arrays
            more = (sources,) if metric.needs_source else ()
            arrays[name] = metric.of_sentences(
                translations, references, tokens_of, *more
            )
    return arrays
