"""The report as a person asks for it."""

import re

import pytest

from experiments.evaluation.metrics import METRICS
from tests.calls import call
from tests.experiments import fakes


def report(*flags):
    return call("report", *flags)


def test_rows_within_the_interest_are_equal(tmp_path):
    fakes.table_3(tmp_path)
    wide = report(f"--workdir={tmp_path}", "--interest=perplexity:9,bleu:50")
    assert (wide.returncode, wide.stderr) == (0, "")
    lines = wide.stdout.splitlines()
    assert lines[1].startswith("base  ")
    names = ["report.md", "report.csv", "comparisons.csv", "report.tex", "report.html"]
    assert lines[-5:] == [str(tmp_path / name) for name in names]
    (learned,) = [line for line in lines if "(E)" in line]
    assert learned.endswith("; undecided (chrF, exact match)")
    assert "equal within 9 (perplexity); equal within 50 (BLEU)" in learned


def test_a_question_is_answered_in_one_command(tmp_path):
    fakes.table_3(tmp_path)
    done = report(f"--workdir={tmp_path}", "--base=big")
    assert (done.returncode, done.stderr) == (0, "")
    assert "compared: each row with big" in done.stdout
    wrong = report(f"--workdir={tmp_path}", "--base=bigg")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "--base=bigg: no row is called so" in wrong.stderr
    assert wrong.stderr.endswith("did you mean big?\n")


def test_figures_are_as_wide_as_a_column_of_print(tmp_path):
    fakes.table_3(tmp_path, seeds=2)
    flags = (f"--workdir={tmp_path}", "--figures")
    done = report(*flags, "--width=84mm")
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("differences", "training-curves", "quality-and-cost"):
        text = (tmp_path / f"figures/{name}.svg").read_text("utf-8")
        width = float(re.search(r'<svg[^>]* width="([\d.]+)pt"', text)[1])
        assert width == pytest.approx(84 / 25.4 * 72, abs=0.1)
    for wrong in ("3.3", "9000mm"):
        failed = report(*flags, f"--width={wrong}")
        assert (
            failed.returncode == 2 and f"--width={wrong} is no width" in failed.stderr
        )


@pytest.mark.parametrize(
    ("interest", "message"),
    (
        [
            (
                "ter:1",
                f"'ter' is no metric; {', '.join(metric.key for metric in METRICS)} are",
            ),
            ("bleu:a", "'a' is no number above 0; write bleu:0.5"),
            ("bleu", "'' is no number above 0"),
            ("bleu:-1", "'-1' is no number above 0"),
        ]
    ),
)
def test_a_mistaken_interest_is_one_line(tmp_path, interest, message):
    done = report(f"--workdir={tmp_path}", f"--interest={interest}")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: --interest={interest}: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
