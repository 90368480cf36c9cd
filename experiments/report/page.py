"""Renders report.html: one page that needs no network, with tables, figures and maps."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.report.cells import interval_bars, verdict_text
from experiments.report.factors import compared_in, factors_of, pivot_of
from experiments.report.figures import style as line_styles
from experiments.report.finding import finding
from experiments.report.head_measures import grids
from experiments.report.html import render
from experiments.report.packed_attention import attention_maps, first_beside
from experiments.report.page_figures import PageFigures
from experiments.report.page_tables import MARKS, columns_of, pivot_cells
from experiments.report.row_details import differing, runs_of_rows
from experiments.report.rows import Row, base_of, base_settings, report_title
from experiments.report.table import VERDICTS, Table, difference_cells, provenance
from experiments.report.trial_files import Results
from experiments.report.tuned_rows import CHOSEN, TRIED, UNTUNED_VERDICTS

LONG = 40
"""Rows of a table that gets a window of its own to scroll in."""

TEXTS = (
    VERDICTS,
    "verdict",
    "paper’s order",
    CHOSEN,
    TRIED,
    UNTUNED_VERDICTS,
)
"""The headings of columns of words, beside the first."""


def render_page(
    results: Results,
    rows: Sequence[Row],
    table: Table,
    figures: PageFigures,
    pairs: Sequence[Row] = (),
    others: Sequence[Sequence[Row]] = (),
) -> str:
    """Returns report.html.

    `pairs` are what was compared where that are not the rows, and `others` the rows compared
    with each of them, of which a reader may choose one.
    """
    metrics = results.metrics
    maps = attention_maps(figures.maps)
    factors = factors_of(rows)
    pivot = pivot_of(factors, compared_in(rows, factors))
    return render(
        "page.html.j2",
        ("page.js", "attention.js"),
        title=report_title(results),
        table=table,
        columns=columns_of(table.results, rows, metrics),
        pivot=pivot,
        pivots=pivot and {m: pivot_cells(pivot, rows, m) for m in metrics},
        provenance=provenance(results),
        settings=json.dumps(base_settings(results), indent=2),
        swatches=_swatches(figures.lined),
        places=_places(pairs, rows),
        bases=[row.name for row in rows] if others else [],
        base=base_of(rows),
        verdicts=[_verdicts_of(row) for row in rows],
        bars={metric.key: interval_bars(pairs or rows, metric) for metric in metrics},
        long=LONG,
        texts=TEXTS,
        marks=MARKS,
        figures=figures,
        heads=grids(figures.heads),
        maps=maps,
        references=True,
        maps_note=figures.maps_note,
        pairs=differing(rows, metrics),
        runs=runs_of_rows(results, rows),
        data=_data(figures, maps, rows, [_of_base(each, metrics) for each in others]),
    )


def _data(figures, maps, rows, bases) -> dict[str, Any]:
    """Returns what the page's script reads."""
    return {
        "spots": {figure.id: figure.picture.spots for figure in figures.all()},
        "attention": maps,
        "beside": first_beside(figures.maps[: len(maps)], rows),
        "bases": bases,
        "marks": MARKS,
    }


def _of_base(rows, metrics) -> dict[str, Any]:
    """Returns what a page shows of the rows compared with one of them."""
    differences = {}
    for metric in metrics:
        if any(metric.key in row.differences for row in rows):
            differences[metric.key] = {
                "cells": [difference_cells(metric, row) for row in rows],
                "bars": interval_bars(rows, metric),
            }
    return {
        "finding": finding(rows, metrics),
        "verdicts": [verdict_text(row, metrics) for row in rows],
        "kinds": [_verdicts_of(row) for row in rows],
        "differences": differences,
    }


def _places(pairs, rows) -> list[int]:
    """Returns for each line of differences the place of its row."""
    if not pairs:
        return list(range(len(rows)))
    places = {(row.name, frozenset(row.point.items())): i for i, row in enumerate(rows)}
    return [places[pair.name, frozenset(pair.point.items())] for pair in pairs]


def _verdicts_of(row) -> str:
    """Returns the kinds of a row's verdicts, as "worse undecided"."""
    return " ".join(dict.fromkeys(v.kind for v in row.verdicts.values()))


def _swatches(lined: Sequence[int]) -> Mapping[int, tuple]:
    """Returns {place of a row: (colour, dashes)} of those that the figures draw."""
    return {row: line_styles.line_style(i) for i, row in enumerate(lined)}
