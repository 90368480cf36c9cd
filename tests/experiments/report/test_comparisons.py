"""comparisons.csv and comparisons.json: what the table compares, as numbers."""

import csv
import dataclasses
import json
import math
import re
import sys

import pytest

from experiments.errors import UserError
from experiments.report import load
from experiments.report.questions import Question
from experiments.report.trial_files import read_results
from experiments.report.write import write_report, write_results
from tests.experiments import fakes

KEYS = {"model.score": "additive", "model.d_k": 8}


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """A product of two scores and two widths, with two seeds."""
    points = [{}, {"model.score": "additive"}, {"model.d_k": 8}, KEYS]
    trials = []
    for place, point in enumerate(points):
        for seed in range(2):
            result = fakes.finished(
                perplexity=1.25 + 0.1 * place + 0.001 * seed,
                exact_match=0.9 - 0.1 * place - 0.01 * seed,
            )
            trials.append(({**point, "seed": seed}, result, {}))
    return fakes.sweep(tmp_path_factory.mktemp("product"), trials)


def read(report):
    records = json.loads(report.comparisons.with_suffix(".json").read_text())
    with report.comparisons.open(newline="") as file:
        return records, list(csv.DictReader(file))


def test_each_comparison_is_a_record(workdir):
    report = write_report(workdir, fakes.REPORTED)
    records, lines = read(report)
    assert len(records) == len(lines) == 3 * len(fakes.REPORTED)
    record = next(r for r in records if r["metric"] == "exact_match")
    assert record["question"] == "against base"
    assert (record["row"], record["base"]) == ("score=additive", "base")
    assert (record["model.score"], record["model.d_k"]) == ("additive", 16)
    assert record["unit"] == "%" and record["seeds"] == record["base_seeds"] == [0, 1]
    assert record["values"] == pytest.approx([80, 79])
    assert record["base_values"] == pytest.approx([90, 89])
    assert (record["mean"], record["base_mean"]) == pytest.approx((79.5, 89.5))
    (row,) = [row for row in report.rows if row.name == "score=additive"]
    found = row.differences["exact_match"]
    assert record["difference"] == 100 * found.mean
    assert (record["low"], record["high"]) == (100 * found.low, 100 * found.high)
    assert (record["p"], record["runs"]) == (found.p, 2)
    assert record["verdict"] == row.verdicts["exact_match"].words
    line = next(x for x in lines if x["metric"] == "exact_match")
    assert float(line["p"]) == found.p and line["values"].split() == [
        str(value) for value in record["values"]
    ]


def test_a_question_has_its_own_comparisons(workdir, tmp_path):
    question = Question("score=scaled_dot", ("d_k",))
    results = read_results(workdir, fakes.REPORTED)
    report = write_results(results, tmp_path, question=question)
    records, _ = read(report)
    pairs = {(record["row"], record["base"]) for record in records}
    assert pairs == {("score=additive", "base"), ("score=additive, d_k=8", "d_k=8")}
    assert {record["question"] for record in records} == {
        "against score=scaled_dot within d_k"
    }
    text = report.markdown.read_text()
    assert "compared: each row with score=scaled_dot of the same d\\_k" in text or (
        "compared: each row with score=scaled_dot of the same d_k" in text
    )
    # The columns of the table say whose base is whose, its differences name them.
    assert "| score=additive, d_k=8 against d_k=8 |" in text
    assert "(against" not in text
    # A page of partners has no single base to choose.
    own = write_results(results, tmp_path / "own").html.read_text()
    assert '<select name="base">' in own
    assert '<select name="base">' not in report.html.read_text()


def test_pandas_has_trials_and_comparisons(workdir):
    pytest.importorskip("pandas")
    trials, comparisons = load(workdir, base="score=scaled_dot", within=("d_k",))
    assert len(trials) == 8 and set(trials["model.d_k"]) == {8, 16}
    assert set(comparisons["row"]) == {"score=additive", "score=additive, d_k=8"}
    bleu = comparisons[comparisons.metric == "exact_match"]
    assert bleu.difference.tolist() == pytest.approx([-10.0, -10.0], abs=0.01)
    assert (comparisons.p <= 1).all()


def test_without_pandas_the_remedy_is_named(workdir, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match="pip install pandas"):
        load(workdir)


def test_what_is_not_finite_is_missing(tmp_path):
    trials = [
        ({"seed": 0}, fakes.finished(), {}),
        ({"seed": 1}, fakes.finished(perplexity=1.26), {}),
        ({"model.h": 1, "seed": 0}, fakes.finished(perplexity=9.0), {}),
        ({"model.h": 1, "seed": 1}, fakes.DIVERGED, {}),
    ]
    report = write_report(fakes.sweep(tmp_path, trials), fakes.REPORTED)
    records, lines = read(report)
    (record,) = [r for r in records if r["metric"] == "perplexity"]
    assert record["verdict"] == "diverged in 1 of 2 runs"
    assert record["difference"] is None and record["p"] is None
    assert record["values"] == [9.0]
    (line,) = [x for x in lines if x["metric"] == "perplexity"]
    assert line["difference"] == ""
    text = report.comparisons.with_suffix(".json").read_text()
    assert "NaN" not in text and "Infinity" not in text


def test_a_sweep_of_one_row_has_no_comparisons(tmp_path):
    trials = [({"seed": seed}, fakes.finished(), {}) for seed in range(2)]
    report = write_report(fakes.sweep(tmp_path, trials), fakes.REPORTED)
    assert json.loads(report.comparisons.with_suffix(".json").read_text()) == []
    assert not math.isnan(len(report.rows))


def test_pairs_are_in_every_file(workdir, tmp_path):
    results = read_results(workdir, fakes.REPORTED)
    report = write_results(results, tmp_path, question=Question(pairs=("score",)))
    records, _ = read(report)
    assert {(record["row"], record["base"]) for record in records} == {
        ("score=additive", "base"),
        ("score=additive, d_k=8", "d_k=8"),
    }
    assert {record["question"] for record in records} == {"pairs score"}
    text = report.markdown.read_text()
    assert "compared: pairs of score" in text
    assert "| score=additive, d\\_k=8 against d\\_k=8 |" in text.replace("d_k", "d\\_k")
    page = report.html.read_text()
    # Its line leads to its row, which is the fourth.
    title = "score=additive, d_k=8 against d_k=8"
    assert re.search(rf'<tr data-row="3"><th[^>]*><a href="#row-3">{title}</a>', page)
    # All rows are in the table of results, none with a verdict.
    assert "d_k=8" in page and "(against" not in page


def test_a_question_that_the_sweep_outgrew_is_said_and_base_answers(workdir, tmp_path):
    results = read_results(workdir, fakes.REPORTED)
    asked = {"base": "score=scaled_dot"}
    report = write_results(dataclasses.replace(results, question=asked), tmp_path)
    assert report.table.finding.startswith(
        "What the sweep asks (against score=scaled_dot) does not fit its rows, which are "
        "compared with base: --base=score=scaled_dot: 2 rows have it"
    )
    records, _ = read(report)
    assert {record["base"] for record in records} == {"base"}
    fits = dataclasses.replace(results, question={**asked, "within": ["d_k"]})
    text = write_results(fits, tmp_path).table.finding
    assert "does not fit" not in text
