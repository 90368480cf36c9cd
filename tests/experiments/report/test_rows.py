"""The rows of a table: trials of one point, of one code."""

import csv
import io
import json
import math

import pytest
import rich.console

from experiments.report.rows import of_one_code, rows_of
from experiments.report.terminal import print_table
from experiments.report.trial_files import read_results
from experiments.report.write import write_report
from experiments.stats.summary import Summary
from tests.experiments import fakes

pytestmark = pytest.mark.quick

OLD = "0ld0ld0ld0ld0ld0"
NEW = "11e311e311e311e3"


def workdir_of(tmp_path, codes):
    """Trials of base and h=1, each with a code; None for one that has not ended."""
    entries = []
    for (label, seed), name in codes.items():
        point = {"seed": seed} | ({"model.h": 1} if label else {})
        bleu = 20.0 + seed / 10 + (5.0 if name == NEW else 0.0)
        result = fakes.finished(bleu=bleu) if name else None
        entries.append((point, result, {}))
    workdir = fakes.sweep(tmp_path / "sweep", entries)
    for trial, name in zip(read_results(workdir).trials, codes.values(), strict=True):
        path = trial.directory / "record.json"
        record = json.loads(path.read_text()) | {"code": name or NEW}
        path.write_text(json.dumps(record))
    return workdir


MIXED = {
    ("", 0): OLD,
    ("", 1): NEW,
    ("", 2): NEW,
    ("h", 0): NEW,
    ("h", 1): NEW,
    ("h", 2): None,
}


def test_rows_are_points_without_seed_in_order_of_appearance(tmp_path):
    trials = [
        ({"model.h": 8, "seed": 0}, fakes.finished(perplexity=2.0), {}),
        ({"seed": 0}, fakes.finished(), {}),
        ({"seed": 1, "model.h": 8, "label": "(A)"}, fakes.finished(perplexity=4.0), {}),
        ({"model.h": 8, "seed": 2}, None, {}),
        # What the base has, so the same point.
        ({"seed": 1, "model.h": 4}, fakes.finished(bleu=None), {}),
        ({"model.d_k": 4}, None, None),
    ]
    h8, base, d_k4 = rows = rows_of(read_results(fakes.sweep(tmp_path, trials)))
    assert [dict(row.point) for row in rows] == [{"model.h": 8}, {}, {"model.d_k": 4}]
    assert [len(row.trials) for row in rows] == [3, 2, 1]
    assert [row.label for row in rows] == ["(A)", "", ""]
    assert [row.name for row in rows] == ["(A)", "base", "d_k=4"]
    assert [trial.seed for trial in h8.finished] == [0, 1]
    summary = h8.summary("perplexity")
    assert (summary.mean, summary.spread) == (3.0, math.sqrt(2.0))
    assert base.summary("bleu") == Summary(90.0, None, 1)
    assert d_k4.summary("perplexity") is None


def test_names_have_what_sets_rows_apart(tmp_path):
    """Not the rest of what a sweep sets with it, nor where a class lies."""
    sizes = ({"model.d_model": d, "model.d_ff": 4 * d} for d in (16, 32))
    scores = ("lib/my_score.py:Q(t=2)", "softcap(inner=a.py:B)")
    points = [{}, *sizes, *({"model.score": score} for score in scores)]
    trials = [(point | {"seed": 0}, None, None) for point in points]
    rows = rows_of(read_results(fakes.sweep(tmp_path, trials)))
    assert [row.name for row in rows] == [
        "base",
        "d_model=16",
        "d_model=32",
        "score=Q(t=2)",
        "score=softcap(inner=B)",
    ]
    assert rows[1].settings == {
        "model.d_model": 16,
        "model.d_ff": 64,
        "model.score": "scaled_dot",
    }


def test_classes_of_one_name_in_two_files_are_told_apart(tmp_path):
    trials = [({"model.score": f"{x}.py:Q", "seed": 0}, None, None) for x in "ab"]
    rows = rows_of(read_results(fakes.sweep(tmp_path, trials)))
    assert [row.name for row in rows] == ["score=a.py:Q", "score=b.py:Q"]


def test_one_code_is_told_of_in_no_word(tmp_path):
    results = read_results(workdir_of(tmp_path, dict.fromkeys(MIXED, NEW)))
    assert of_one_code(results) == (results, "")


def test_trials_of_other_code_are_left_out_and_named(tmp_path):
    results = read_results(workdir_of(tmp_path, MIXED))
    kept, sentence = of_one_code(results)
    assert [trial.name for trial in kept.trials] == [
        trial.name for trial in results.trials[1:]
    ]
    assert sentence == (
        "1 of 5 trials were made by other code than the rest and are left out (seed=0); "
        "--mixed_code takes them together."
    )
    both, sentence = of_one_code(results, mixed_code=True)
    assert both == results
    assert sentence.startswith(
        "The trials were made by 2 codes, and are compared as if"
    )


def test_the_code_of_most_trials_of_the_base_is_compared(tmp_path):
    codes = {("", 0): OLD, ("", 1): OLD, ("h", 0): NEW, ("h", 1): NEW, ("h", 2): NEW}
    kept, _ = of_one_code(read_results(workdir_of(tmp_path, codes)))
    assert [trial.record["code"] for trial in kept.trials] == [OLD, OLD]


@pytest.mark.usefixtures("undrawn")
def test_the_report_says_so_above_the_table_and_in_its_finding(tmp_path):
    workdir = workdir_of(tmp_path, MIXED)
    report = write_report(workdir)
    assert report.table.finding.startswith("1 of 5 trials were made by other code")
    for file in (report.markdown, report.html, report.latex):
        text = file.read_text()
        assert text.index("were made by other code") < text.index("25.1")
    printed = io.StringIO()
    print_table(report.table, rich.console.Console(file=printed))
    first, *_, last = printed.getvalue().splitlines()
    assert first.startswith("1 of 5 trials") and last.startswith("1 of 5 trials")
    base = report.rows[0]
    assert [trial.seed for trial in base.finished] == [1, 2]
    # All trials stay in the data, each with its code.
    lines = list(csv.DictReader(report.csv.read_text().splitlines()))
    assert [line["code"] for line in lines[:2]] == [OLD, NEW]
    both = write_report(workdir, mixed_code=True)
    assert len(both.rows[0].finished) == 3
