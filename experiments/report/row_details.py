"""Describes each row's runs, and the sentences in which it differs most from its base."""

import os
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.errors import one_line
from experiments.evaluation.metrics import CHRF, METRICS, Metric
from experiments.report.cells import MISSING, Grid, measured
from experiments.report.costs import COSTS
from experiments.report.notable_rows import notable
from experiments.report.rows import Row
from experiments.report.trial_files import Results, look_up_setting
from experiments.report.trial_outputs import read_sentences, read_texts
from experiments.stats.summary import summarise

FILES = ("metrics.jsonl", "translations.txt")
"""The files of a run that its row links to, where they are."""

MOST_PAIRS = 12
"""Rows that are compared with the base sentence by sentence."""

MOST_SENTENCES = 6
"""Sentences of each."""


class Link(NamedTuple):
    """Holds a file's name, and its address as seen from the report."""

    text: str
    href: str


class RunsOfRow(NamedTuple):
    """Holds the description of one row's runs."""

    label: str
    changes: tuple[tuple[str, str, str], ...]
    """(setting, the base's value, the row's)."""
    seeds: Grid
    links: tuple[tuple[Link, ...], ...]
    """For each seed its directory, then its files."""
    translations: tuple[tuple[str, str, str], ...]
    """(source, reference, translation) of a few sentences by the first seed."""


class Differing(NamedTuple):
    """Holds the sentences in which a row differs most from another."""

    label: str
    other: str
    seed: int | None
    """The seed of both runs."""
    metric: Metric
    sentences: tuple[tuple[str, str, str, str, float, float], ...]
    """(source, reference, the other's translation, the row's, and the score of each)."""


def runs_of_rows(results: Results, rows: Sequence[Row]) -> list[RunsOfRow]:
    """Describes the runs of all rows, in the table's order."""
    described = []
    for row in rows:
        texts = next(filter(None, map(read_texts, row.finished)), None)
        described.append(
            RunsOfRow(
                label=row.name,
                changes=tuple(_changes(results, row)),
                seeds=_seeds(row, results.metrics),
                links=tuple(_links(results.workdir, trial) for trial in row.trials),
                translations=tuple(texts.some()) if texts else (),
            )
        )
    return described


def _changes(results, row):
    for key, value in row.point.items():
        base = one_line(str(look_up_setting(results.base, key)))
        yield one_line(key), base, one_line(str(value))


def _seeds(row, metrics):
    """Returns a line for each trial, with the columns that any of them has."""
    columns = {
        "seed": [str(trial.seed) for trial in row.trials],
        "status": [trial.status for trial in row.trials],
    }
    for shown in (*metrics, *COSTS):
        cells = []
        for trial in row.trials:
            value = trial.result.get(shown.key) if trial.status == "finished" else None
            if value is None:
                cells.append(MISSING)
            elif isinstance(shown, Metric):
                cells.append(measured(summarise([value]), shown))
            else:
                cells.append(shown.text(summarise([value])))
        if set(cells) != {MISSING}:
            columns[shown.heading] = cells
    return Grid.of(row.name, columns)


def _links(workdir, trial):
    """Returns links that work where the report is in its workdir."""
    # A report may be written elsewhere.
    directory = Path(os.path.relpath(trial.directory, workdir)).as_posix()
    # A directory may be called anything, "javascript:" too: ./ makes it a path.
    address = f"./{urllib.parse.quote(directory)}"
    names = [name for name in FILES if (trial.directory / name).is_file()]
    files = [Link(name, f"{address}/{name}") for name in names]
    return (Link(one_line(directory), f"{address}/"), *files)


def differing(
    rows: Sequence[Row], metrics: Sequence[Metric] = METRICS
) -> list[Differing]:
    """Returns for the rows that matter most where they differ most from their base.

    [] without a base, and where the runs kept no texts.
    """
    pairs = []
    for i in notable(rows, MOST_PAIRS + 1, metrics):
        base = rows[i].base
        if base not in (None, i):
            pairs.append(_compare(rows[i], rows[base], metrics))
    return [pair for pair in pairs if pair is not None]


def _compare(row, base, metrics):
    ours = {trial.seed: trial for trial in row.finished}
    theirs = {trial.seed: trial for trial in base.finished}
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
            return Differing(row.name, base.name, seeds[0], metric, sentences)
    return None


def _per_sentence(metrics):
    """Returns the metrics of test sentences; chrF first, the best of a single sentence."""
    of_test = [
        metric for metric in metrics if metric.split == "test" and metric.columns
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
