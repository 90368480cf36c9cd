"""The report as a person asks for it."""

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
    paths = [str(tmp_path / f"report.{end}") for end in ("md", "csv", "tex", "html")]
    assert lines[-4:] == paths
    (learned,) = [line for line in lines if "(E)" in line]
    assert learned.endswith("; undecided (chrF, exact match)")
    assert "equal within 9 (perplexity); equal within 50 (BLEU)" in learned


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
