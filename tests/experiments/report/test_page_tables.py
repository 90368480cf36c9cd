"""Which columns and pivot cells a page shows of its rows."""

import dataclasses

import pytest

from experiments.evaluation.metrics import BLEU, PERPLEXITY
from experiments.report.cells import Grid
from experiments.report.factors import Pivot
from experiments.report.page_tables import (
    MOST_SETTINGS,
    PivotCell,
    columns_of,
    pivot_cells,
)
from experiments.report.rows import Row
from experiments.report.table import VERDICTS
from experiments.report.trial_files import TrialResult
from experiments.stats.differences import Verdict

pytestmark = pytest.mark.quick

HEADINGS = ("", "seeds", "perplexity", VERDICTS)


def row(perplexity, **settings):
    result = {"perplexity": perplexity, "seconds": 12.0}
    trial = TrialResult("", settings, 0, None, {}, {}, (), result, "finished")
    return Row(settings, (trial,), settings=settings)


def grid(count, named_by=1, headings=HEADINGS):
    return Grid("Results", headings, (headings,) * count, named_by)


def shown(columns):
    return {column.heading: not column.is_hidden for column in columns}


ROWS = [row(1.2, h=1, d_k=64), row(1.1, h=2, d_k=64), row(1.1, h=2, d_k=16)]


def test_settings_and_costs_are_there_for_who_asks_and_verdicts_last():
    columns = columns_of(grid(3), ROWS, [PERPLEXITY, BLEU])
    assert shown(columns) == {
        "": True,
        "seeds": True,
        "perplexity": True,
        "h": False,
        "d_k": False,
        "seconds": False,
        VERDICTS: True,
    }
    assert [column.heading for column in columns][-1] == VERDICTS
    of = {column.heading: column for column in columns}
    assert of["h"].texts == ("1", "2", "2") and of["seconds"].texts == ["12.0"] * 3
    assert of["perplexity"].best == {1, 2} and not of["seeds"].best
    assert of[""].is_name and not of["seeds"].is_name


def test_what_is_a_column_already_is_none_again():
    # Of a product the settings name the rows; costs may have been asked for.
    headings = ("h", "d_k", "seconds", "perplexity")
    columns = columns_of(grid(3, 2, headings), ROWS, [PERPLEXITY])
    assert shown(columns) == dict.fromkeys(headings, True)
    assert [column.is_name for column in columns] == [True, True, False, False]


def test_many_settings_have_no_columns():
    names = [f"s{i}" for i in range(MOST_SETTINGS + 2)]
    rows = [
        row(1.0, **{name: i * k for k, name in enumerate(names)}) for i in (1, 2, 5)
    ]
    # None follows from another.
    varied = [dataclasses.replace(r, point={}) for r in rows]
    headings = shown(columns_of(grid(3), varied, [PERPLEXITY]))
    assert not headings.keys() & set(names)


def test_a_cell_of_a_pivot_has_its_row_mean_and_verdict():
    worse = dataclasses.replace(
        ROWS[0], base=1, verdicts={"perplexity": Verdict("worse", detail="x")}
    )
    rows = [worse, dataclasses.replace(ROWS[1], base=1), ROWS[2]]
    pivot = Pivot(("a",), "b", ("1", "2"), ((("x",), (0, 1)), (("y",), (None, 2))))
    assert pivot_cells(pivot, rows, PERPLEXITY) == [
        [PivotCell(0, "1.200", "worse"), PivotCell(1, "1.100", "base")],
        [None, PivotCell(2, "1.100", "")],
    ]
