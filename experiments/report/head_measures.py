"""Reports the measures of heads: pictures of all rows, and a table of each head."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from experiments.evaluation.head_importance import PLACES
from experiments.report.cells import MISSING, Grid, number, p_value
from experiments.report.figures import heat_maps
from experiments.report.figures.style import Picture
from experiments.report.notable_rows import notable
from experiments.report.rows import Row
from experiments.report.trial_outputs import KINDS, read_heads
from experiments.stats.summary import LEVEL, holm

MAX_ROWS = 12
"""Rows whose heads are shown."""

MEASURES = (
    (
        "distance",
        "Distance of attention",
        "tokens",
        False,
        "How far from its own place each head looks: "
        "Σ p·|i − j|, p the weights as shares of their sum, the mean over the queries of "
        "the test set.",
    ),
    (
        "importance",
        "Importance of heads",
        "nats a token",
        True,
        "What switching off a head adds to the log of "
        "validation perplexity, head by head; red is worse without.",
    ),
)
"""(measure, title, unit, signed, caption) of each picture."""

HEADINGS = (
    "head",
    "entropy, nats",
    "distance, tokens",
    "looks most at",
    "share, %",
    "perplexity without, %",
    "95 % interval",
    "p",
    "verdict",
)

Measured = Mapping[str, np.ndarray]
"""{"kind/measure": (layers, heads)}, see `trial_outputs.read_heads`."""


def head_tables(rows: Sequence[Row]) -> list[tuple[str, Measured]]:
    """Reads (name, measures) of the first finished trial of each row that has any.

    At most MAX_ROWS rows are returned, those that matter most.
    """
    tables = []
    for i in notable(rows, MAX_ROWS):
        # Lazily: the heads of other seeds of the row are not read.
        arrays = map(read_heads, rows[i].finished)
        if measures := next(filter(None, arrays), None):
            tables.append((rows[i].name, measures))
    return tables


def pictures(
    tables: Sequence[tuple[str, Measured]],
) -> list[tuple[str, Picture, str]]:
    """Draws (title, picture, caption) of each of MEASURES that a trial has."""
    figures = []
    for measure, title, unit, signed, caption in MEASURES:
        rows = [(label, _kinds(measures, measure)) for label, measures in tables]
        # A run may have measured attention without importance.
        rows = [(label, kinds) for label, kinds in rows if kinds]
        if rows:
            picture = heat_maps.heads(rows, title.lower(), unit, signed)
            figures.append((title, picture, caption + " One run of each row."))
    return figures


def grids(tables: Sequence[tuple[str, Measured]]) -> list[Grid]:
    """Builds a grid for each row, a line a head.

    A line has how widely and where the head looks, and the perplexity without it.
    """
    corrected = [(label, _corrected(measures)) for label, measures in tables]
    return [Grid(label, HEADINGS, tuple(_lines(table))) for label, table in corrected]


def _corrected(measures):
    """Adds "kind/p" to a run's measures: p-values after Holm's correction over its heads.

    Runs of earlier versions hold them already.
    """
    names = [name for name in measures if name.endswith("/p_value")]
    corrected = dict(measures)
    if not names:
        return corrected
    p_values = np.concatenate([measures[name].ravel() for name in names]).astype(float)
    # NaN where a layer has no such head.
    is_head = (p_values >= 0) & (p_values <= 1)
    p_values[is_head] = holm(p_values[is_head])
    ends = np.cumsum([measures[name].size for name in names])
    for name, part in zip(names, np.split(p_values, ends[:-1]), strict=True):
        kind = name.removesuffix("/p_value")
        corrected[f"{kind}/p"] = part.reshape(measures[name].shape)
    return corrected


def _kinds(measures, measure):
    names = {kind: f"{kind}/{measure}" for kind in KINDS}
    return {kind: measures[name] for kind, name in names.items() if name in measures}


def _lines(measures) -> Iterator[tuple[str, ...]]:
    for kind, entropies in _kinds(measures, "entropy").items():
        for layer, head in zip(*np.nonzero(~np.isnan(entropies)), strict=True):
            distance = _at(measures, f"{kind}/distance", layer, head)
            yield (
                f"{kind}, layer {layer + 1}, head {head + 1}",
                number(entropies[layer, head], 2),
                number(distance, 1),
                *_place(measures, kind, layer, head),
                *_without(measures, kind, layer, head),
            )


def _place(measures, kind, layer, head):
    """Returns the place that a head looks most at, and its share in per cent."""
    shares = measures.get(f"{kind}/shares")
    # A run of another version may know other places.
    if shares is None or shares.shape[2] != len(PLACES):
        return MISSING, MISSING
    most = int(np.argmax(shares[layer, head]))
    return PLACES[most], number(100 * shares[layer, head, most], 0)


def _without(measures, kind, layer, head):
    """Returns the cells on perplexity without the head: change, interval, p, verdict."""
    added = _at(measures, f"{kind}/importance", layer, head)
    error = _at(measures, f"{kind}/error", layer, head)
    p = _at(measures, f"{kind}/p", layer, head)
    if np.isnan(added):
        return (MISSING,) * 4
    # Importance is a difference of logs; as a change of perplexity it is expm1 of that.
    # With hundreds of sentences, 1.96 is Student's quantile too.
    low = 100 * np.expm1(added - 1.96 * error)
    high = 100 * np.expm1(added + 1.96 * error)
    verdict = "no difference shown"
    if p < LEVEL:
        verdict = "needed" if added > 0 else "harmful"
    change = number(100 * np.expm1(added), 2, "+")
    return change, f"[{low:+.2f}, {high:+.2f}]", p_value(p), verdict


def _at(measures, name, layer, head):
    """Returns one head's number, NaN where there is none."""
    array = measures.get(name)
    if array is None or layer >= array.shape[0] or head >= array.shape[1]:
        return float("nan")
    return float(array[layer, head])
