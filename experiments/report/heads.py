"""What a report says of heads: pictures of all rows, and a table of each head."""

from collections.abc import Sequence

import numpy as np

from experiments.evaluation.head_importance import PLACES
from experiments.report import figures, statistics
from experiments.report.comparison import Row
from experiments.report.results import KINDS, read_heads
from experiments.report.table import Grid, Table, number, p_value

MOST = 12
"""Rows whose heads are shown."""


MEASURES = (
    (
        "distance",
        "Distance of attention",
        "tokens",
        False,
        "How far from its own place each head looks: "
        "Σ w·|i − j|, the mean over the queries of the test set.",
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


def head_tables(
    table: Table, rows: Sequence[Row]
) -> list[tuple[str, dict[str, np.ndarray]]]:
    """(label, what was measured) of the first finished trial of each row that has any; for the first MOST rows."""
    found = []
    for label, row in zip(table.labels, rows, strict=True):
        kept = next(
            (kept for trial in row.group.finished if (kept := read_heads(trial))), None
        )
        if kept and len(found) < MOST:
            found.append((label, kept))
    return found


def pictures(
    found: Sequence[tuple[str, dict[str, np.ndarray]]],
) -> list[tuple[str, str, str]]:
    """(title, SVG, caption) of each of MEASURES that there is."""
    drawn = []
    for name, title, unit, signed, caption in MEASURES:
        rows = [
            (label, kinds) for label, kept in found if (kinds := _kinds(kept, name))
        ]
        if rows:
            drawn.append(
                (
                    title,
                    figures.heads(rows, title.lower(), unit, signed),
                    caption + " One run of each row.",
                )
            )
    return drawn


def grids(found: Sequence[tuple[str, dict[str, np.ndarray]]]) -> list[Grid]:
    """For each row a line a head: how it looks, where most, and what perplexity is without it."""
    return [Grid(label, HEADINGS, tuple(_lines(_corrected(k)))) for label, k in found]


def _corrected(arrays):
    """Adds "kind/p" to a run's arrays: p-values after Holm's correction over all its heads.

    Runs of earlier versions have them already.
    """
    raw = {name: x for name, x in arrays.items() if name.endswith("/p_value")}
    values = [float(p) for x in raw.values() for p in x.flat if 0 <= p <= 1]
    corrected = dict(zip(values, statistics.holm(values), strict=True))
    result = dict(arrays)
    for name, x in raw.items():
        kind = name.partition("/")[0]
        adjusted = [corrected.get(float(p), np.nan) for p in x.flat]
        result[f"{kind}/p"] = np.array(adjusted).reshape(x.shape)
    return result


def _kinds(kept, name):
    return {kind: kept[f"{kind}/{name}"] for kind in KINDS if f"{kind}/{name}" in kept}


def _lines(kept):
    for kind, entropies in _kinds(kept, "entropy").items():
        shares = kept.get(f"{kind}/shares")
        for layer, head in np.ndindex(entropies.shape):
            own = [] if shares is None else shares[layer, head]
            most = int(np.argmax(own)) if len(own) == len(PLACES) else None
            yield (
                f"{kind}, layer {layer + 1}, head {head + 1}",
                number(entropies[layer, head], 2),
                number(_at(kept, kind, "distance", layer, head), 1),
                PLACES[most] if most is not None else "–",
                number(100 * own[most], 0) if most is not None else "–",
                *_without(kept, kind, layer, head),
            )


def _without(kept, kind, layer, head):
    r, error, p = (
        _at(kept, kind, name, layer, head) for name in ("importance", "error", "p")
    )
    if np.isnan(r):
        return ("–",) * 4
    low, high = (100 * np.expm1(r + side * 1.96 * error) for side in (-1, 1))
    verdict = (
        "no difference shown"
        if p >= statistics.LEVEL
        else "needed"
        if r > 0
        else "harmful"
    )
    return (
        number(100 * np.expm1(r), 2, "+"),
        f"[{low:+.2f}, {high:+.2f}]",
        p_value(p),
        verdict,
    )


def _at(kept, kind, name, layer, head):
    array = kept.get(f"{kind}/{name}")
    inside = array is not None and layer < array.shape[0] and head < array.shape[1]
    return float(array[layer, head]) if inside else float("nan")
