"""The simulation of tables whose true differences are known."""

import dataclasses

import numpy as np
import pytest

from launch.bench.verdicts import command, simulation
from launch.bench.verdicts.simulation import Cell, Counts, simulate

CELL = command.CELLS[2]


def test_counts_are_of_the_tables():
    counts = simulate(CELL, 32)
    assert (counts.nulls, counts.tables) == (32, 8)
    assert counts.intervals == (32 + 8) * 7
    # 3 of 7 rows differ.
    assert counts.real == 8 * 3
    # With 5 seeds and equal spreads, 4 standard deviations are hard to miss.
    assert counts.shown > 0.9 * counts.real
    assert counts.false <= 6
    assert counts.intervals_covered > 0.9 * counts.intervals
    assert 0 < counts.claims_true <= counts.claims


def in_units(table, columns):
    """The columns in units of a usual run's standard deviation."""
    scaled = []
    for column, scale in zip(columns, table.scales, strict=True):
        values = (column.values - scale.metric.link.forward(scale.base)) / scale.run
        squares = [
            x / scale.run**2 for x in (column.shared, column.level, column.cross)
        ]
        names = ("shared", "level", "cross")
        more = dict(zip(names, squares, strict=True))
        scaled.append(dataclasses.replace(column, values=values, **more))
    return scaled


def test_rows_near_a_bound_are_where_the_cell_says():
    cell = Cell(6, 3000, spread=0.0, kind="bound")
    rng = np.random.default_rng(0)
    table = simulation.make_table(cell, True, rng)
    found = []
    for column, bound in zip(table.columns(rng), table.scales, strict=True):
        scores = bound.metric.link.inverse(np.median(column.values, axis=1))
        np.testing.assert_allclose(scores[::2], bound.base, rtol=0.01, atol=1e-12)
        found.append(scores[1])
    assert found[0] - 1 == pytest.approx(1e-4, rel=0.02)
    # None or one of 500 answers is wrong.
    assert found[1] in (0.998, 1.0) and found[2] == pytest.approx(0.2, rel=0.03)


@pytest.mark.parametrize(
    ("kind", "seeds", "widest"),
    [("bound", 5, 1.35), ("plain", 5, 1.35), ("bound", 3, 1.7)],
)
def test_printed_intervals_hold_the_truth(kind, seeds, widest, monkeypatch):
    # A quarter, which makes limits vary by 4 %.
    monkeypatch.setattr(simulation, "DRAWS", 500)
    counts = simulate(Cell(8, seeds, kind=kind), 40)
    # 50 tables of which 5 % may miss: with a probability of 0.1 % more than 8 do.
    assert counts.covered >= 50 - 8
    assert counts.intervals_covered > 0.97 * counts.intervals
    assert 1.0 < counts.median_width() < widest


def test_who_knows_all_spreads_has_dunnetts_intervals():
    """Of rows of one spread, with more seeds than matter."""
    cell = Cell(4, 10, spread=0.0, metrics=1)
    table = simulation.make_table(cell, True, np.random.default_rng(0))
    (known,) = table.known()
    (widths,) = simulation.of_known_spreads(table, [known], np.random.default_rng(1))
    # Dunnett (1955): 2.35 for three rows and a base, all spreads known.
    (scale,) = table.scales
    slope = 2 * np.sqrt(np.log(scale.base)) * scale.base
    expected = 2 * 2.35 * scale.run * np.sqrt(2 / 10) * slope
    np.testing.assert_allclose(widths[1:], expected, rtol=0.05)


def test_parts_draw_other_tables_and_add_up():
    first = simulate(CELL, 3, part=0)
    second = simulate(CELL, 3, part=1)
    assert first == simulate(CELL, 3, part=0)
    assert first != second
    total = dataclasses.asdict(sum([first, second], Counts()))
    assert sum(total.pop("widths")) == sum(first.widths) + sum(second.widths)
    for name, value in total.items():
        assert value == getattr(first, name) + getattr(second, name)


@pytest.mark.parametrize(
    ("kind", "variance"), [("plain", 1.0), ("tails", 1.0), ("blocks", 1.0)]
)
def test_runs_vary_as_the_cell_says(kind, variance):
    cell = Cell(2, 4000, spread=0.0, metrics=2, kind=kind)
    table = simulation.Table(cell, np.ones(2), np.array([0.0, 4.0]))
    columns = in_units(table, table.columns(np.random.default_rng(0)))
    gaps = columns[0].values[1] - columns[0].values[0]
    assert gaps.mean() == pytest.approx(4.0, abs=0.1)
    # What a seed adds to all rows is not in their differences.
    assert gaps.var() == pytest.approx(2 * variance, rel=0.1)
    base = columns[0].values[0], columns[1].values[0]
    assert np.corrcoef(*base)[0, 1] == pytest.approx(0.8, abs=0.03)
    expected = 2.0 if kind == "blocks" else 1.0
    assert base[0].var() == pytest.approx(expected, rel=0.1)


def test_sentences_are_half_of_a_differences_variance():
    cell = Cell(2, 5, spread=0.0, metrics=1, kind="sentences")
    rng = np.random.default_rng(0)
    table = simulation.Table(cell, np.ones(2), np.zeros(2))
    tables = [in_units(table, table.columns(rng))[0] for _ in range(4000)]
    means = np.array([column.values.mean(1) for column in tables])
    variance = (means[:, 1] - means[:, 0]).var()
    assert variance == pytest.approx(2 * 2 / 5, rel=0.1)
    said = np.mean([column.shared[1] for column in tables])
    assert said == pytest.approx(variance / 2, rel=0.1)
    # Half of that is the base's, which its difference has with the other sign.
    for column in tables[:5]:
        assert column.level == pytest.approx(column.shared[0] / 2)
        np.testing.assert_allclose(column.cross, -column.shared / 2)


def test_one_row_varies_ten_times_as_much():
    cell = Cell(8, 2, spread=0.0, kind="odd")
    table = simulation.make_table(cell, True, np.random.default_rng(0))
    assert table.spreads.tolist() == [1.0] * 7 + [10.0]


def test_copies_vary_a_tenth_as_much_as_their_originals():
    cell = Cell(4, 4000, metrics=1, kind="copies")
    rng = np.random.default_rng(0)
    table = simulation.make_table(cell, True, rng)
    assert table.originals.tolist() == [0, 0, 2, 2]
    (column,) = in_units(table, table.columns(rng))
    gaps = (column.values[1::2] - column.values[::2]).std(1)
    assert gaps == pytest.approx(table.spreads[::2] / 10, rel=0.05)
    assert column.values.std(1)[::2] == pytest.approx(table.spreads[::2], rel=0.05)
    # A copy of the base is compared with it as if nothing else varied.
    (result,) = table.judge([column])
    widths = (result.high - result.low)[1:]
    assert widths[0] < 0.2 * widths[1]


def test_the_table_has_a_row_for_each_cell():
    widths = np.bincount([np.searchsorted(simulation.BINS, 1.23)], minlength=122)
    counts = Counts(
        nulls=200,
        false=10,
        tables=200,
        covered=392,
        real=100,
        shown=46,
        widths=tuple(widths.tolist()),
    )
    filled = command.table({CELL: counts})
    assert filled.headings[:2] == ("tables", "false [1]")
    row = (
        "8 rows, 5 seeds, 1 metric, e^0",
        "5.0 %",
        "98.0 %",
        "–",
        "1.22",
        "46.0 %",
        "0.0 %",
        "–",
    )
    assert filled.rows == [row]


def test_cells_have_names_of_their_own():
    names = [cell.name for cell in command.CELLS]
    assert len(set(names)) == len(names) == 72
