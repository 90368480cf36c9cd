"""Reads what a finished trial kept beside its scores: sentences, texts, attention, heads.

Each reader returns nothing where the trial kept none, or where a file was cut short, and
raises ResultsError for what no run writes.
"""

import dataclasses
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.errors import one_line
from experiments.evaluation.metrics import METRICS, Metric
from experiments.report.trial_files import ResultsError, TrialResult, read_json

KINDS = ("encoder", "decoder", "cross")
"""Encoder self-attention, decoder self-attention, and the decoder's attention to the encoder."""

ANSWERS_BY = {
    "distance": "symbols back to what decides the answer",
    "position": "number of the answer in its text",
}
"""How `experiments.evaluation.answers.accuracy_by` groups answers: {name: what it counts}."""

_TEXTS = ("sources.txt", "references.txt", "translations.txt")

_QUANTILES = (0.5, 0.75, 0.95)
"""Lengths of the sentences that are shown of every run: short ones show nothing."""

_UNREADABLE = (
    OSError,
    ValueError,
    EOFError,
    KeyError,
    NotImplementedError,
    zipfile.BadZipFile,
    zlib.error,
)


@dataclasses.dataclass(frozen=True)
class Example:
    """Holds a test sentence with its attention.

    Shapes: encoder (N, h, n, n), decoder (N, h, m, m), cross (N, h, m, n), with N layers,
    h heads, n source tokens and m target tokens.
    """

    source: str
    reference: str
    translation: str
    source_tokens: tuple[str, ...]
    target_tokens: tuple[str, ...]
    """What the decoder read, the start mark first: the m queries of the decoder."""
    attention: Mapping[str, np.ndarray]

    def axes(self, kind: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns (queries, keys): the tokens along the rows and the columns of a map."""
        queries = self.source_tokens if kind == "encoder" else self.target_tokens
        keys = self.target_tokens if kind == "decoder" else self.source_tokens
        return queries, keys


class Texts(NamedTuple):
    """Holds a test set and one run's translations of it."""

    sources: tuple[str, ...]
    references: tuple[str, ...]
    translations: tuple[str, ...]

    def some(self) -> list[tuple[str, str, str]]:
        """Returns (source, reference, translation) of a few sentences, the same in all runs."""
        lengths = [len(source) for source in self.sources]
        order = np.argsort(lengths, kind="stable")
        places = {int(quantile * (len(order) - 1)) for quantile in _QUANTILES}
        return [tuple(column[order[i]] for column in self) for i in sorted(places)]


def read_sentences(
    trial: TrialResult, metrics: Sequence[Metric] = METRICS
) -> dict[str, np.ndarray]:
    """Reads what each validation and test sentence contributes to the metrics.

    Trials on the same corpus have the same sentences in the same order. Returns the arrays
    of sentences.npz, {} where `trial` kept none; a run older than a metric lacks its array.

    - validation_nll (V,) Σ −log p over a sentence's target tokens and validation_tokens
      (V,) their number, both with the end mark: perplexity is exp(Σ nll / Σ tokens);
    - validation_source (V,) and test_source (S,), the tokens of the source;
    - for every other metric its `arrays`, (S,) or (S, k), see `Metric.of_sentences`.
    """
    arrays = _arrays(trial, "sentences.npz")
    path = trial.directory / "sentences.npz"
    for split in ("validation", "test"):
        part = {name: array for name, array in arrays.items() if name.startswith(split)}
        # Every figure by length needs the lengths of a split's sentences.
        lengths = part.get(f"{split}_source", np.zeros(()))
        shapes = {name: array.shape for name, array in part.items()}
        are_alike = {shape[:1] for shape in shapes.values()} == {lengths.shape}
        if part and not (are_alike and lengths.dtype.kind in "iu"):
            raise ResultsError(
                f"{path}: the arrays of {split} have the shapes {shapes}"
            )
    for metric in metrics:
        try:
            metric.statistics(arrays)
        except ValueError as error:
            raise ResultsError(
                f"{path}: the arrays of {metric.split}: {error}"
            ) from None
    return arrays


def read_texts(trial: TrialResult) -> Texts | None:
    """Reads the test set with the trial's translations.

    None where the trial has none, as a language model or a run of an earlier version.
    """
    columns = []
    for name in _TEXTS:
        try:
            # Not read_text, for which other characters end a line too.
            text = (trial.directory / name).read_bytes().decode(errors="replace")
        except OSError:
            return None
        columns.append(tuple(text.removesuffix("\n").split("\n")))
    if len({len(column) for column in columns}) != 1:
        counted = zip(_TEXTS, columns, strict=True)
        counts = ", ".join(f"{name} {len(column)}" for name, column in counted)
        message = f"{trial.directory}: lines that do not belong together: {counts}"
        raise ResultsError(f"{message}; restore the files or remove them")
    return Texts(*columns)


def read_examples(trial: TrialResult) -> list[Example]:
    """Reads the test sentences whose attention `trial` kept; [] where it kept none."""
    texts = read_json(trial.directory / "examples.json", list)
    return examples_of(str(trial.directory), texts, _arrays(trial, "examples.npz"))


def examples_of(
    place: str, records: Sequence[Mapping[str, Any]], arrays: Mapping[str, np.ndarray]
) -> list[Example]:
    """Returns the sentences of examples.json and examples.npz, which are in `place`."""
    examples = []
    for i, text in enumerate(records):
        # A model may lack a kind: a language model has only the decoder's.
        names = {kind: f"{i}/{kind}" for kind in KINDS}
        attention = {
            kind: arrays[name] for kind, name in names.items() if name in arrays
        }
        # A run may keep texts without their maps.
        if attention:
            examples.append(_example(place, i, text, attention))
    return examples


def _example(place, i, text, attention):

    def read():
        sentences = [text[name] for name in ("source", "reference", "translation")]
        tokens = [text[name] for name in ("source_tokens", "target_tokens")]
        for list_of_texts in (sentences, *tokens):
            # Other values than texts would fail in the page alone.
            "".join(list_of_texts)
        return Example(*sentences, *map(tuple, tokens), attention)

    example = written_by_a_run(f"{place}/examples.json: sentence {i}", read)
    for kind, weights in attention.items():
        queries, keys = map(len, example.axes(kind))
        if weights.ndim != 4 or weights.shape[2:] != (queries, keys):
            raise ResultsError(
                f"{place}/examples.npz: {i}/{kind} has shape {weights.shape}, but "
                f"examples.json gives it {queries} queries and {keys} keys"
            )
    return example


def read_positions(trial: TrialResult) -> np.ndarray | None:
    """Reads the encoder's position table (L, d_model) at the end of training, if any."""
    arrays = _arrays(trial, "examples.npz", "positions")
    _check_axes(trial, "examples.npz", arrays, lambda name: 2)
    return arrays.get("positions")


def read_heads(trial: TrialResult) -> dict[str, np.ndarray]:
    """Reads what `evaluation.head_importance` measured of the trial, by "kind/measure".

    Shapes are (layers, heads), and one axis more for shares. {} where nothing was measured.
    """
    arrays = _arrays(trial, "heads.npz")
    # Shares have an axis for the places that a head looks at.
    _check_axes(trial, "heads.npz", arrays, lambda name: 2 + name.endswith("/shares"))
    return arrays


def read_accuracies(trial: TrialResult) -> dict[str, dict[int, tuple[str, float]]]:
    """Returns {one of ANSWERS_BY: {first of a bucket: (its name, accuracy in percent)}}.

    Empty where the trial has no answers.
    """

    def read():
        written = (trial.result or {}).get("accuracy_by") or {}
        return {
            kind: dict(sorted(map(_bucket, written[kind].items())))
            for kind in ANSWERS_BY
            if written.get(kind) is not None
        }

    return written_by_a_run(f"{trial.directory}/result.json: accuracy_by", read)


def _bucket(item):
    name, values = item
    accuracy = float(values["accuracy"])
    if not 0 <= accuracy <= 1:
        raise ValueError(f"an accuracy of {accuracy}")
    return int(name.partition("-")[0]), (one_line(name), 100 * accuracy)


def written_by_a_run(what: str, read: Callable[[], Any]) -> Any:
    """Returns `read()`; raises ResultsError, which names `what`, where it fails."""
    try:
        return read()
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ResultsError(
            f"{what} has what no run writes ({one_line(error)}); restore the file"
        ) from None


def _check_axes(trial, file, arrays, axes_of):
    for name, array in arrays.items():
        if array.ndim != axes_of(name) or array.dtype.kind != "f" or not array.size:
            path = trial.directory / file
            raise ResultsError(f"{path}: {one_line(name)} has shape {array.shape}")


def _arrays(trial, file, only=None):
    """Reads the arrays of an .npz file, or the one named `only`; {} for a broken file."""
    try:
        # Opened here, as numpy leaves a broken file open.
        with open(trial.directory / file, "rb") as packed:
            arrays = np.load(packed, allow_pickle=False)
            names = [name for name in arrays if only in (None, name)]
            return {name: arrays[name] for name in names}
    except _UNREADABLE:
        return {}
