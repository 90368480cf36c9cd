"""Which lines and maps a report finds in the product of sweeps, and what rows cost."""

import pytest

from experiments.report.over_settings import find_lines, pictures_over_settings
from experiments.report.trial_files import read_results
from experiments.report.write import compare_rows, write_report
from tests.experiments import fakes


def product_of(folder, points, seeds=2):
    trials = []
    for i, point in enumerate(points):
        for seed in range(seeds):
            scores = fakes.finished(1.2 + 0.1 * i + 0.01 * seed, 90 - i, 95 - i)
            cost = {"training_flops": (i + 1) * 10**12, "peak_memory": 2**28}
            trials.append(({**point, "seed": seed}, scores | cost, {}))
    results = read_results(fakes.sweep(folder, trials), fakes.REPORTED)
    return results, compare_rows(results)


def grid(*values):
    """The points of a product, its first key slowest."""
    points = [{}]
    for key, settings in values:
        points = [point | {key: value} for point in points for value in settings]
    return points


def test_a_line_for_each_score_along_d_k(tmp_path):
    points = grid(("model.score", ("dot", "additive")), ("model.d_k", (16, 4, 64)))
    results, rows = product_of(tmp_path, points)
    product = find_lines(results, rows)
    assert (product.key, product.others) == ("model.d_k", ("model.score",))
    assert product.rows == {
        ("dot",): {4.0: 1, 16.0: 0, 64.0: 2},
        ("additive",): {4.0: 4, 16.0: 3, 64.0: 5},
    }
    (picture,) = pictures_over_settings(results, rows)
    assert picture.name == "over d_k" and "score=additive" in picture.svg
    said = [text for *_, text in picture.spots]
    # The base's own difference has no interval, as it has none.
    assert said[0].startswith("score=dot, d_k=4: 1.305") and len(said) == 4 * 6


def test_two_numeric_settings_have_a_map_too(tmp_path):
    points = grid(("model.d_ff", (64, 256)), ("model.d_k", (4, 16, 32)))
    results, rows = product_of(tmp_path, points, seeds=1)
    pictures = pictures_over_settings(results, rows)
    assert [picture.name for picture in pictures] == ["over d_k", "d_ff by d_k"]
    assert pictures[1].spots[0][-1] == "d_ff=64, d_k=4: 1.200"


def test_settings_that_go_together_are_one(tmp_path):
    points = [{"model.h": h, "model.d_k": 64 // h} for h in (1, 2, 8)]
    results, rows = product_of(tmp_path, [{}, *points], seeds=1)
    product = find_lines(results, rows)
    assert product.along == ("model.d_k",) and product.others == ()
    assert list(product.rows[()].values()) == [1, 2, 0, 3]


@pytest.mark.parametrize(
    "points",
    [
        [{}, {"model.h": 2}, {"model.positions": "none"}],
        # Not along d_k, with which h changes only once.
        [{}, {"model.d_k": 4}, {"model.h": 1, "model.d_k": 64}],
        grid(("model.positions", ("none", "learned"))),
    ],
)
def test_rows_that_make_no_line_have_no_figure(tmp_path, points):
    results, rows = product_of(tmp_path, points, seeds=1)
    assert pictures_over_settings(results, rows) == []


def test_cost_is_shown_where_it_is_asked_for(tmp_path):
    # Of these settings no figure is drawn but that of cost.
    product_of(tmp_path, [{}, {"model.h": 2}, {"model.positions": "none"}], seeds=1)
    without = write_report(tmp_path, fakes.REPORTED)
    assert "seconds" not in without.table.results.headings
    assert "Quality and cost" not in without.html.read_text()
    written = write_report(tmp_path, fakes.REPORTED, cost=True)
    headings = written.table.results.headings
    costs = headings.index("training TFLOPs")
    assert headings[costs : costs + 4] == (
        "training TFLOPs",
        "seconds",
        "tokens/s",
        "peak memory, MiB",
    )
    assert [row[costs : costs + 4] for row in written.table.results.rows] == [
        ("1.00", "21.5", "31,000", "256"),
        ("2.00", "21.5", "31,000", "256"),
        ("3.00", "21.5", "31,000", "256"),
    ]
    page = written.html.read_text()
    # All take as long and as much memory, so arithmetic alone has a panel.
    figure = page[page.index('id="figure-quality-and-cost"') :].partition("</figure>")[
        0
    ]
    assert "training TFLOPs</text>" in figure and "tokens/s</text>" not in figure
    assert "training TFLOPs" in written.latex.read_text()


def test_flops_that_are_not_known_are_said_to_be(tmp_path):
    points = [{}, {"model.h": 2}, {"model.h": 8}]
    trials = []
    for flops, point in zip((None, 10**12, 2 * 10**12), points, strict=True):
        result = fakes.finished() | {"training_flops": flops}
        trials.append((point | {"seed": 0}, result, {}))
    fakes.sweep(tmp_path, trials)
    written = write_report(tmp_path, fakes.REPORTED, cost=True)
    column = written.table.results.headings.index("training TFLOPs")
    cells = [row[column] for row in written.table.results.rows]
    assert cells == ["unknown", "1.00", "2.00"]
    assert "unknown" in written.latex.read_text()
    first, *others = written.csv.read_text().splitlines()
    at = first.split(",").index("training_flops")
    assert [line.split(",")[at] for line in others] == [
        "",
        str(10**12),
        str(2 * 10**12),
    ]
    assert "training TFLOPs</text>" in written.html.read_text()
