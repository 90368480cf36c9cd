"""Which rows were still improving, from curves that can be reckoned by hand."""

import dataclasses
import json
import math

import pytest

from experiments.report.convergence import improving_note, late_share, row_share
from experiments.report.formats import to_markdown
from experiments.report.latex import to_latex
from experiments.report.trial_files import read_results
from experiments.report.write import compare_rows, write_report
from tests.experiments import fakes

pytestmark = pytest.mark.quick


def perplexity(log_loss):
    return math.exp(math.exp(log_loss))


def log_curve(trial_directory, curve):
    """Writes metrics.jsonl of validation alone, from {step: log of the cross-entropy}."""
    lines = []
    for step, log_loss in curve.items():
        line = dict(step=step, split="validation", perplexity=perplexity(log_loss))
        lines.append(json.dumps(line | dict(seconds=1.0)) + "\n")
    (trial_directory / "metrics.jsonl").write_text("".join(lines))


def sweep(workdir, rows, base=None):
    """Makes a sweep of rows [(point, curve, result)]."""
    fakes.sweep(workdir, [(point, result, {}) for point, _, result in rows], base=base)
    for i, (_, curve, _) in enumerate(rows):
        log_curve(workdir / f"trials/{i:02d}", curve)
    return read_results(workdir, fakes.REPORTED)


def trial(workdir, curve):
    return sweep(workdir, [({}, curve, fakes.finished())]).trials[0]


EVEN = {25: 1.0, 50: 0.0, 75: -0.9, 100: -1.0}
"""A fall of 2, a tenth of 1 of which is in the last quarter."""


@pytest.mark.parametrize(
    ("curve", "share"),
    [
        (EVEN, 0.05),
        ({25: 0.0, 50: -1.0, 75: -2.0, 100: -3.0}, 1 / 3),
        # Step 75 lies half way between evaluations, and so does what had fallen by then.
        ({20: 2.0, 40: 1.0, 60: 1.0, 90: 0.0, 100: 0.0}, 0.25),
        # It rose at the end: nothing of its fall was then.
        ({25: 1.0, 50: 0.0, 75: -1.0, 100: -0.5}, 0.0),
        # All of it was, and more: it had risen before.
        ({25: 0.0, 50: 0.5, 75: 1.0, 100: -1.0}, 1.0),
        # A power of the steps: ln(4/3) / ln(4).
        ({s: -0.5 * math.log(s) for s in (25, 50, 75, 100)}, math.log(4 / 3, 4)),
    ],
)
def test_the_share_of_the_fall_in_the_last_quarter(tmp_path, curve, share):
    assert late_share(trial(tmp_path, curve)) == pytest.approx(share, abs=1e-9)


@pytest.mark.parametrize(
    "curve",
    [
        {},
        {25: 1.0, 50: 0.0, 100: -1.0},
        {25: 0.0, 50: 0.0, 75: 0.0, 100: 0.0},
        {25: 0.0, 50: -1.0, 75: 0.0, 100: 0.5},
    ],
    ids=["none", "three", "level", "risen"],
)
def test_what_says_nothing(tmp_path, curve):
    assert late_share(trial(tmp_path, curve)) is None


def test_a_perplexity_that_is_no_number_of_a_model_says_nothing(tmp_path):
    run = trial(tmp_path, EVEN)
    path = run.directory / "metrics.jsonl"
    line = dict(step=60, split="validation", perplexity=0.5, seconds=1.0)
    path.write_text(path.read_text() + json.dumps(line) + "\n")
    # A cross-entropy below 0 is taken for none; the curve still has its ends.
    assert late_share(read_results(tmp_path).trials[0]) == pytest.approx(0.05)
    path.write_text(path.read_text().replace("0.5,", "-3.0,"))
    assert late_share(read_results(tmp_path).trials[0]) is None


LATE = {25: 0.0, 50: -1.0, 75: -2.0, 100: -3.0}
DONE = {25: 1.0, 50: 0.0, 75: -0.99, 100: -1.0}


def two_rows(workdir):
    result = fakes.finished()
    rows = [
        ({"seed": 0}, DONE, result),
        ({"seed": 1}, EVEN, result),
        ({"model.h": 1, "seed": 0}, EVEN, result),
        ({"model.h": 1, "seed": 1}, LATE, result),
        ({"model.h": 2, "seed": 0}, LATE, fakes.DIVERGED),
        ({"model.h": 8, "seed": 0}, LATE, result),
        ({"model.h": 8, "seed": 1}, {25: 0.0}, result),
    ]
    return sweep(workdir, rows)


def test_a_row_is_the_mean_over_its_finished_runs(tmp_path):
    groups = compare_rows(two_rows(tmp_path))
    shares = [row_share(group) for group in groups]
    assert shares[0] == pytest.approx((0.005 + 0.05) / 2)
    assert shares[1] == pytest.approx((0.05 + 1 / 3) / 2)
    # A run that diverged was not improving, and one with a single evaluation is not heard.
    assert shares[2] is None
    assert shares[3] == pytest.approx(1 / 3)
    groups[3] = dataclasses.replace(groups[3], name="50 % more")
    note = improving_note(groups)
    assert note.startswith(
        "still improving at the end: h=1 (19 % of its fall in the last quarter of its "
        "steps), 50 % more (33 %)"
    )


@pytest.mark.usefixtures("undrawn")
def test_the_report_names_them(tmp_path):
    results = two_rows(tmp_path)
    report = write_report(tmp_path)
    note = "still improving at the end: h=1 (19 % of its fall"
    assert any(text.startswith(note) for text in report.table.notes)
    assert note in to_markdown(results, report.table)
    assert note in report.html.read_text()
    rows = compare_rows(results)
    latex = to_latex(results, rows, report.table)
    assert r"Still improving at the end: h=1 (19 \% of" in latex


@pytest.mark.usefixtures("undrawn")
def test_a_report_without_such_rows_says_nothing(tmp_path):
    sweep(tmp_path, [({}, DONE, fakes.finished())])
    assert "improving" not in write_report(tmp_path).markdown.read_text()


@pytest.mark.usefixtures("undrawn")
def test_a_run_that_ended_flat_is_not_still_improving(tmp_path):
    base = fakes.settings.resolve(
        fakes.QUICK, {"training.until": "flat", "training.evaluate_every": 25}
    ).to_dict()
    rows = [
        ({"seed": 0}, LATE, fakes.finished(steps=600)),
        ({"model.h": 1, "seed": 0}, LATE, fakes.finished(steps=750)),
    ]
    rows.append(({"seed": 1}, LATE, fakes.finished(steps=725)))
    rows.append(({"model.h": 2, "seed": 0}, LATE, fakes.DIVERGED))
    groups = compare_rows(sweep(tmp_path, rows, base))
    assert [row_share(group) for group in groups] == [0.0, pytest.approx(1 / 3), None]
    grid = write_report(tmp_path).table.results
    steps = grid.headings.index("steps")
    assert [row[steps] for row in grid.rows] == ["600 to 725", "750", "–"]


@pytest.mark.usefixtures("undrawn")
def test_a_table_of_equal_steps_has_no_column_for_them(tmp_path):
    two_rows(tmp_path)
    assert "steps" not in write_report(tmp_path).table.results.headings
