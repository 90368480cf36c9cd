"""The accuracy of a task's answers, from result.json to the page."""

import pytest

from experiments.report.figures.lines import accuracy_by
from experiments.report.trial_files import ResultsError, read_results
from experiments.report.trial_outputs import ANSWERS_BY, read_accuracies
from experiments.report.write import write_report
from tests.experiments import fakes

pytestmark = pytest.mark.quick


def written(**accuracies):
    """What result.json has of buckets by their names."""
    buckets = accuracies.items()
    return {name: dict(accuracy=share, answers=7) for name, share in buckets}


NEAR = {
    "distance": written(**{"8-15": 0.5, "1": 1.0, "2-3": 0.75}),
    "position": written(**{"1": 0.8}),
}
FAR = {"distance": written(**{"1": 0.5, "16-31": 0.25})}


def sweep(workdir, *results):
    trials = [
        ({"seed": i}, fakes.finished(accuracy_by=result), {})
        for i, result in enumerate(results)
    ]
    return fakes.sweep(workdir, trials)


def test_buckets_are_read_in_the_order_of_their_numbers(tmp_path):
    near, none = read_results(sweep(tmp_path, NEAR, {})).trials
    assert read_accuracies(near) == {
        "distance": {1: ("1", 100), 2: ("2-3", 75), 8: ("8-15", 50)},
        "position": {1: ("1", 80)},
    }
    assert [*read_accuracies(near)["distance"]] == [1, 2, 8]
    assert read_accuracies(none) == {}


@pytest.mark.parametrize(
    "damaged",
    [
        {"distance": []},
        {"distance": {"near": dict(accuracy=1.0)}},
        {"distance": {"1": {}}},
        {"distance": {"1": dict(accuracy="high")}},
        {"distance": {"1": dict(accuracy=float("nan"))}},
        {"distance": {"1": dict(accuracy=100.0)}},
        [1],
    ],
)
def test_what_no_run_writes_is_refused(tmp_path, damaged):
    (trial,) = read_results(sweep(tmp_path, damaged)).trials
    with pytest.raises(ResultsError, match="accuracy_by has what no run writes"):
        read_accuracies(trial)


def test_a_line_is_the_mean_over_the_seeds_that_have_a_bucket(tmp_path):
    seeds = [*map(read_accuracies, read_results(sweep(tmp_path, NEAR, FAR)).trials)]
    picture = accuracy_by([("a", seeds), ("b", seeds[1:]), ("c", [])], ANSWERS_BY)
    said = [text for _, _, text in picture.spots]
    assert said == [
        "a, distance 1: 75 %",
        "a, distance 2-3: 75 %",
        "a, distance 8-15: 50 %",
        "a, distance 16-31: 25 %",
        "b, distance 1: 50 %",
        "b, distance 16-31: 25 %",
    ]
    # One bucket, as of the positions, is no curve.
    assert "accuracy by distance, %" in picture.svg
    assert "accuracy by position" not in picture.svg
    assert accuracy_by([("a", [{}]), ("b", [])], ANSWERS_BY) is None


def test_the_page_has_the_figure_for_a_task_alone(tmp_path):
    task = write_report(sweep(tmp_path / "task", NEAR, FAR), fakes.REPORTED)
    assert "Accuracy of answers" in task.html.read_text()
    other = write_report(sweep(tmp_path / "other", {}), fakes.REPORTED)
    assert "Accuracy of answers" not in other.html.read_text()
