"""Reads what runs translated, beside sources and references, and finds where rows differ."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from experiments.evaluation.metrics import CHRF, METRICS, Metric
from experiments.report.choice import notable
from experiments.report.comparison import Row
from experiments.report.results import ResultsError, TrialResult, read_sentences

MOST_PAIRS = 12
"""Rows that are compared with the base sentence by sentence."""

MOST_SENTENCES = 6
"""Sentences of each."""

LARGEST_FILE = 2**28
"""The most bytes of a file of texts."""

_FILES = ("sources.txt", "references.txt", "translations.txt")

_QUANTILES = (0.5, 0.75, 0.95)
"""Lengths of the sentences that are shown of every run: short ones show nothing."""


class Texts(NamedTuple):
    """Holds a test set and one run's translations of it."""

    sources: tuple[str, ...]
    references: tuple[str, ...]
    translations: tuple[str, ...]


class Differing(NamedTuple):
    """Holds the sentences in which a row differs most from another."""

    label: str
    other: str
    seed: int | None
    """The seed of both runs."""
    metric: Metric
    sentences: tuple[tuple[str, str, str, str, float, float], ...]
    """(source, reference, the other's translation, the row's, and the score of each)."""


def read_texts(trial: TrialResult) -> Texts | None:
    """Reads the test set with the trial's translations.

    None where the trial has none, as a language model or a run of an earlier version.
    Raises ResultsError for files of different lengths.
    """
    columns = []
    for name in _FILES:
        path = trial.directory / name
        try:
            if path.stat().st_size > LARGEST_FILE:
                raise ResultsError(f"{path} is larger than any test set; remove it")
            # Not read_text, for which other characters end a line too.
            text = path.read_bytes().decode(errors="replace")
        except OSError:
            return None
        columns.append(tuple(text.removesuffix("\n").split("\n")))
    if len({len(column) for column in columns}) != 1:
        counts = ", ".join(
            f"{name} {len(column)}"
            for name, column in zip(_FILES, columns, strict=True)
        )
        message = f"{trial.directory}: lines that do not belong together: {counts}"
        raise ResultsError(f"{message}; restore the files or remove them")
    return Texts(*columns)


def some(texts: Texts) -> list[tuple[str, str, str]]:
    """Returns (source, reference, translation) of a few sentences, the same in all runs."""
    lengths = [len(source) for source in texts.sources]
    order = np.argsort(lengths, kind="stable")
    places = {int(quantile * (len(order) - 1)) for quantile in _QUANTILES}
    return [tuple(column[order[i]] for column in texts) for i in sorted(places)]


def differing(
    labels: Sequence[str], rows: Sequence[Row], metrics: Sequence[Metric] = METRICS
) -> list[Differing]:
    """Returns for the rows that matter most where they differ most from their base.

    [] without a base, and where the runs kept no texts.
    """
    places = {id(row.group): i for i, row in enumerate(rows)}
    pairs = []
    for i in notable(rows, MOST_PAIRS + 1, metrics):
        place = places.get(id(rows[i].base), i)
        if i != place:
            pairs.append(
                _compare(rows[i], rows[place], labels[i], labels[place], metrics)
            )
    return [pair for pair in pairs if pair is not None]


def _compare(row, base, label, other, metrics):
    ours = {trial.seed: trial for trial in row.group.finished}
    theirs = {trial.seed: trial for trial in base.group.finished}
    seeds = [seed for seed in ours if seed in theirs]
    if not seeds:
        return None
    pair = (theirs[seeds[0]], ours[seeds[0]])
    texts = [read_texts(trial) for trial in pair]
    # Runs on different corpora have no sentence in common.
    if None in texts or texts[0][:2] != texts[1][:2]:
        return None
    for metric in _per_sentence(metrics):
        scores = [_scores(trial, metric, len(texts[0].sources)) for trial in pair]
        if all(score is not None for score in scores):
            sentences = tuple(_largest(texts, *scores))
            return Differing(label, other, seeds[0], metric, sentences)
    return None


def _per_sentence(metrics):
    """Returns the metrics of test sentences, the one that says most of a single one first."""
    of_test = [
        metric for metric in metrics if metric.split == "test" and metric.of_sums
    ]
    return sorted(of_test, key=lambda metric: metric is not CHRF)


def _scores(trial, metric, count):
    statistics = metric.statistics(read_sentences(trial, [metric]))
    if statistics is None or len(statistics) != count:
        return None
    with np.errstate(all="ignore"):
        scores = metric.scale * metric.of_sums(statistics.astype(float), 1)
    return scores if np.isfinite(scores).all() else None


def _largest(texts, theirs, ours) -> Iterator[tuple]:
    base, row = texts
    seen = set()
    for i in np.argsort(-np.abs(ours - theirs), kind="stable"):
        if ours[i] == theirs[i] or len(seen) == MOST_SENTENCES:
            return
        # A test set may repeat a sentence.
        if base.sources[i] not in seen:
            seen.add(base.sources[i])
            translations = (base.translations[i], row.translations[i])
            pair = (base.sources[i], base.references[i])
            yield *pair, *translations, float(theirs[i]), float(ours[i])
