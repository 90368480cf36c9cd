"""Packs the attention of a few sentences of each row for the page's script."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.evaluation.metrics import METRICS, Metric
from experiments.report.figures import heat_maps
from experiments.report.notable_rows import by_size, notable
from experiments.report.rows import Row
from experiments.report.trial_files import TrialResult
from experiments.report.trial_outputs import KINDS, Example, read_examples

MAX_MAPS = 24
"""Rows whose attention maps the page holds, as long as they take less than MAPS_SIZE."""

MAPS_SIZE = 16_000_000
"""Characters of packed attention maps in the page."""


class Maps(NamedTuple):
    """Holds the examples of one run, which represents its row."""

    label: str
    trial: TrialResult
    examples: Sequence[Example]
    place: int = 0
    """That of the row in the table."""


def read_maps(rows: Sequence[Row], metrics: Sequence[Metric] = METRICS) -> list[Maps]:
    """Reads the first finished trial of each row that kept any examples.

    At most MAX_MAPS rows are read, those that matter most: the files are large.
    """
    keeping = [i for i, row in enumerate(rows) if row.finished]
    chosen = notable([rows[i] for i in keeping], MAX_MAPS, metrics)
    maps = []
    for i in (keeping[i] for i in chosen):
        for trial in rows[i].finished:
            if examples := read_examples(trial):
                maps.append(Maps(rows[i].name, trial, examples, i))
                break
    return maps


def attention_maps(maps: Sequence[Maps]) -> list[dict[str, Any]]:
    """Returns what the page's script draws, for as many rows as fit in MAPS_SIZE.

    The first row is always among them.
    """
    shown = []
    size = 0
    for row in maps:
        name = f"{row.label}, seed {row.trial.seed}"
        shown.append(packed(name, row.examples))
        for example in shown[-1]["examples"]:
            size += sum(len(maps["weights"]) for maps in example["maps"].values())
        if size > MAPS_SIZE:
            # The row that was too much is left out, unless it is the only one.
            return shown[:-1] or shown
    return shown


def first_beside(maps: Sequence[Maps], rows: Sequence[Row]) -> int | None:
    """Returns which of `maps` to show beside the first, of those with a sentence of its own.

    It is the one that differs most; None for none.
    """
    sources = [{example.source for example in row.examples} for row in maps]
    shared = {
        row.place: i
        for i, row in enumerate(maps)
        if i and not sources[0].isdisjoint(sources[i])
    }
    return next((shared[i] for i in by_size(rows) if i in shared), None)


def telling_head(examples: Sequence[Mapping[str, np.ndarray]], kind: str):
    """Returns [layer, head] of the map that tells most about where its queries are.

    It is the one of the highest mutual information between query and key, with queries
    taken as equally likely: the entropy of the mean over queries less the mean of their
    entropies. It is 0 for a head that looks at one token always, or evenly at all.
    """
    scores = []
    for maps in examples:
        if kind in maps:
            weights = np.asarray(maps[kind], np.float32)
            together = heat_maps.mean_entropy([weights.mean(-2, keepdims=True)])
            scores.append(together - heat_maps.mean_entropy([weights]))
    if not scores or not scores[0].size:
        return [0, 0]
    score = np.mean(scores, axis=0)
    return [int(i) for i in np.unravel_index(np.nanargmax(score), score.shape)]


def packed(name: str, of_run: Sequence[Example]) -> dict[str, Any]:
    """Returns a run's name, and of its sentences texts, tokens and the weights of all heads."""
    examples = []
    for example in of_run:
        maps = {}
        for kind, weights in example.attention.items():
            queries, keys = example.axes(kind)
            layers, heads = weights.shape[:2]
            maps[kind] = {
                "layers": layers,
                "heads": heads,
                "there": heat_maps.is_head(weights).tolist(),
                "queries": queries,
                "keys": keys,
                "weights": heat_maps.packed_weights(weights),
            }
        texts = {
            "source": example.source,
            "reference": example.reference,
            "translation": example.translation,
        }
        examples.append({**texts, "maps": maps})
    attention = [example.attention for example in of_run]
    return {
        "name": name,
        "telling": {kind: telling_head(attention, kind) for kind in KINDS},
        "examples": examples,
    }
