"""Renders report.html: one page that needs no network, with tables, figures and maps."""

import base64
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from experiments.report.cells import interval_bars, verdict_text
from experiments.report.factors import compared_in, factors_of, pivot_of
from experiments.report.figures import style as line_styles
from experiments.report.finding import finding
from experiments.report.head_measures import grids
from experiments.report.packed_attention import attention_maps, first_beside
from experiments.report.page_figures import PageFigures
from experiments.report.page_tables import MARKS, columns_of, pivot_cells
from experiments.report.row_details import differing, runs_of_rows
from experiments.report.rows import Row, base_of, base_settings, report_title
from experiments.report.table import VERDICTS, Table, difference_cells, provenance
from experiments.report.trial_files import Results
from experiments.report.tuned_rows import CHOSEN, TRIED, UNTUNED_VERDICTS

SCRIPTS = ("page.js", "attention.js")

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
    # The scripts are within the page, which so needs no other file and no network.
    script = "\n".join(_read(name) for name in SCRIPTS)
    digest = hashlib.sha256(script.encode()).digest()
    return _template().render(
        # The browser runs this script and no other, whatever the page may come to hold.
        script=script,
        script_digest=base64.b64encode(digest).decode(),
        style=_read("page.css"),
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


@functools.cache
def _template():
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        # What files say is text, never markup.
        autoescape=True,
        # A misspelt name in the template is an error, and not an empty place in the
        # page.
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["verdict_parts"] = verdict_parts
    return environment.get_template("page.html.j2")


@functools.cache
def _read(name):
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def verdict_parts(text: str) -> list[tuple[str, str]]:
    """Splits a cell of verdicts into (kind, words), where the kind is its first word."""
    parts = text.split("; ")
    return [(part.partition(" ")[0].strip(":,"), part) for part in parts]


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
