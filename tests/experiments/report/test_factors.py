"""Which tables are products, and how those stand in a pivot table."""

import itertools

import pytest

from experiments.report.factors import (
    compared_in,
    factors_of,
    numbers,
    pivot_of,
)
from experiments.report.rows import Row

pytestmark = pytest.mark.quick


def rows_of_product(**values):
    """Rows with parts, the last factor fastest."""
    texts = itertools.product(*values.values())
    rows = []
    for i, each in enumerate(texts):
        parts = dict(zip(values, each, strict=True))
        rows.append(Row({"row": i}, (), name=f"row {i}", parts=parts))
    return rows


SYSTEMS = {"systems": ["attention", "GRU"], "d_model": ["64", "16"], "length": ["32"]}


def test_factors_are_what_the_sweeps_say_as_far_as_it_varies():
    assert factors_of(rows_of_product(**SYSTEMS)) == {
        "systems": ("attention", "attention", "GRU", "GRU"),
        "d_model": ("64", "16", "64", "16"),
    }


def test_without_parts_they_are_settings_that_vary_by_themselves():
    rows = []
    for h, score in itertools.product((1, 2), ("dot", "my/file.py:Own")):
        point = {"model.h": h, "model.d_k": 64 // h, "model.score": score}
        rows.append(Row(point, (), settings=point))
    assert factors_of(rows) == {
        "h": ("1", "1", "2", "2"),
        "score": ("dot", "Own", "dot", "Own"),
    }


@pytest.mark.parametrize(
    "settings",
    [
        # One change each.
        [{"h": 4, "d": 16}, {"h": 2, "d": 16}, {"h": 4, "d": 8}, {"h": 1, "d": 16}],
        # One factor.
        [{"h": h, "d": 1} for h in (1, 2, 4)],
        # Eleven of 25 cells.
        [{"h": i // 5, "d": i % 5} for i in (0, 1, 2, 3, 4, 6, 11, 12, 18, 20, 24)],
    ],
)
def test_other_tables_are_none(settings):
    rows = [Row(dict(each), (), settings=each) for each in settings]
    assert factors_of(rows) == {} and pivot_of(factors_of(rows)) is None


def test_a_pivot_has_a_place_for_each_row_and_numbers_in_their_order():
    pivot = pivot_of(factors_of(rows_of_product(**SYSTEMS)))
    assert (pivot.headings, pivot.across) == (("systems",), "d_model")
    assert pivot.columns == ("16", "64")
    assert pivot.lines == ((("attention",), (1, 0)), (("GRU",), (3, 2)))


def test_what_is_compared_is_across_and_a_row_there_is_not_is_left_empty():
    values = {"a": ["x", "y"], "b": ["1", "2", "3"], "c": ["p", "q"]}
    rows = rows_of_product(**values)[:-1]
    factors = factors_of(rows)
    based = [
        Row(r.point, (), base=i % 6 // 1, parts=r.parts) for i, r in enumerate(rows)
    ]
    # Each y is compared with the x at the same b and c.
    assert compared_in(based, factors) == ["a"]
    pivot = pivot_of(factors, ["a"])
    assert (pivot.headings, pivot.across) == (("b", "c"), "a")
    assert pivot.lines[0] == (("1", "p"), (0, 6))
    assert pivot.lines[-1] == (("3", "q"), (5, None))
    # Without a question the most columns that fit.
    assert pivot_of(factors).across == "b"


def test_a_factor_of_many_values_is_down():
    values = {"a": [str(i) for i in range(20)], "b": ["p", "q"]}
    pivot = pivot_of(factors_of(rows_of_product(**values)), ["a"])
    assert (pivot.across, len(pivot.lines)) == ("b", 20)


def test_numbers_are_finite():
    assert numbers(["1", "2.5", "1e-3"]) == [1, 2.5, 0.001]
    assert numbers(["1", "none"]) is None and numbers(["nan"]) is None
