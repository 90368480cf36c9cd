"""A table of trials that one code has made."""

import csv
import io
import json

import pytest
import rich.console

from experiments.report.codes import of_one_code
from experiments.report.results import read_results
from experiments.report.terminal import print_table
from experiments.report.write import write_report
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
    base = report.rows[0].group
    assert [trial.seed for trial in base.finished] == [1, 2]
    # All trials stay in the data, each with its code.
    lines = list(csv.DictReader(report.csv.read_text().splitlines()))
    assert [line["code"] for line in lines[:2]] == [OLD, NEW]
    both = write_report(workdir, mixed_code=True)
    assert len(both.rows[0].group.finished) == 3
