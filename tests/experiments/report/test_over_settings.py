"""Which lines and maps a report finds in the product of sweeps, and what rows cost."""

import pytest

from experiments.evaluation.metrics import ACCURACY, PERPLEXITY
from experiments.report.over_settings import find_lines, pictures_over_settings
from experiments.report.questions import Question
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
    _, rows = product_of(tmp_path, points)
    product = find_lines(rows)
    assert (product.along, product.others, product.panels) == ("d_k", ("score",), "")
    assert product.rows == {
        ("", ("dot",)): {"4": 1, "16": 0, "64": 2},
        ("", ("additive",)): {"4": 4, "16": 3, "64": 5},
    }
    (picture,) = pictures_over_settings(rows, fakes.REPORTED)
    assert picture.name == "over d_k" and ">additive<" in picture.svg
    said = [text for *_, text in picture.spots]
    # The base's own difference has no interval, as it has none.
    assert said[0].startswith("dot, d_k=4: 1.305") and len(said) == 4 * 6


def test_two_numeric_settings_have_a_map_too(tmp_path):
    points = grid(("model.d_ff", (64, 256)), ("model.d_k", (4, 16, 32)))
    _, rows = product_of(tmp_path, points, seeds=1)
    pictures = pictures_over_settings(rows, fakes.REPORTED)
    assert [picture.name for picture in pictures] == ["over d_k", "d_ff by d_k"]
    assert pictures[1].spots[0][-1] == "d_ff=64, d_k=4: 1.200"
    assert pictures[0].spots[0][-1] == "d_ff=64, d_k=4: 1.2"


def test_settings_that_go_together_are_one(tmp_path):
    points = [{"model.h": h, "model.d_k": 64 // h} for h in (1, 2, 8)]
    _, rows = product_of(tmp_path, [{}, *points], seeds=1)
    product = find_lines(rows)
    assert (product.along, product.others) == ("h", ())
    assert [*product.rows["", ()].values()] == [1, 2, 0, 3]
    (picture,) = pictures_over_settings(rows, fakes.REPORTED)
    assert "h (with d_k)" in picture.svg


def test_of_three_factors_one_that_rows_share_with_their_base_has_panels(tmp_path):
    """The figure answers the question: what is compared are the lines of a panel."""
    scores = ("model.score", ("scaled_dot", "dot"))
    others = (("model.positions", ("none", "learned")), ("model.d_k", (4, 16, 64)))
    product_of(tmp_path, grid(scores, *others))
    results = read_results(tmp_path, fakes.REPORTED)
    question = Question("score=scaled_dot", ("d_k", "positions"))
    compared = compare_rows(results, question=question)
    product = find_lines(compared)
    assert (product.panels, product.others) == ("positions", ("score",))
    # However the sweeps were named.
    question = Question("positions=none", ("d_k", "score"))
    product = find_lines(compare_rows(results, question=question))
    assert (product.panels, product.others) == ("score", ("positions",))
    pictures = pictures_over_settings(compared, fakes.REPORTED)
    names = ["over d_k", "over d_k, other metrics"]
    assert [picture.name for picture in pictures] == names
    # Two metrics, two panels, two lines of three rows.
    assert len(pictures[0].spots) == 2 * 2 * 6
    assert "positions=learned" in pictures[0].svg


def test_a_product_without_numbers_has_names_along_the_axis(tmp_path):
    scores = ("model.score", ("scaled_dot", "dot", "additive"))
    points = grid(scores, ("model.positions", ("none", "learned")))
    _, rows = product_of(tmp_path, points)
    product = find_lines(rows)
    assert (product.along, product.is_numeric) == ("score", False)
    (picture,) = pictures_over_settings(rows, fakes.REPORTED)
    assert picture.spots[1][-1] == "none, score=dot: 1.405"


@pytest.mark.parametrize("others", [0.25, 0.5])
def test_a_task_marks_chance_and_the_best_possible(tmp_path, others):
    trials = []
    for d_k in (4, 16, 64):
        for seed in (0, 1):
            chance = 0.25 if d_k == 4 else others
            result = fakes.finished(1.2) | {
                "accuracy": 0.5 + seed / 10,
                "chance": chance,
            }
            trials.append(({"model.d_k": d_k, "seed": seed}, result, {}))
    results = read_results(fakes.sweep(tmp_path, trials), (PERPLEXITY, ACCURACY))
    (picture,) = pictures_over_settings(compare_rows(results), results.metrics)
    perplexity, accuracy = picture.figure.axes
    marked = {text.get_text(): text.get_position()[1] for text in accuracy.texts}
    # Rows of several chances have no one line for it.
    assert marked == ({"chance": 25, "best possible": 100} if others == 0.25 else {})
    assert not perplexity.texts
    dots = [line for line in accuracy.lines if line.get_linestyle() == "None"]
    assert [list(line.get_ydata()) for line in dots] == [pytest.approx([50, 60])] * 3


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
    _, rows = product_of(tmp_path, points, seeds=1)
    assert pictures_over_settings(rows, fakes.REPORTED) == []


def test_cost_is_shown_where_it_is_asked_for(tmp_path):
    # Of these settings no figure is drawn but that of cost.
    product_of(tmp_path, [{}, {"model.h": 2}, {"model.positions": "none"}], seeds=1)
    without = write_report(tmp_path, fakes.REPORTED)
    assert "seconds" not in without.table.results.headings
    # The page has the column, which a reader may show.
    assert " hidden>seconds</th>" in without.html.read_text()
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
