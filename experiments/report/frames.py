"""Gives what a report has as pandas DataFrames."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.errors import UserError
from experiments.report.comparisons import comparison_records
from experiments.report.formats import trial_table
from experiments.report.questions import USUAL, Question, fitting
from experiments.report.rows import of_one_code
from experiments.report.trial_files import read_results
from experiments.report.tuned_rows import compared_rows
from experiments.report.write import compare_rows


class Frames(NamedTuple):
    """Holds two DataFrames of a workdir."""

    trials: Any
    """A line a trial, as report.csv has them."""
    comparisons: Any
    """A line for each compared row and metric, as comparisons.json has them."""


def load(
    workdir: str | Path,
    base: str = "",
    within: Sequence[str] = (),
    pairs: Sequence[str] = (),
) -> Frames:
    """Returns the trials and the comparisons of a sweep's or a run's workdir.

    `base`, `within` and `pairs` say which rows are compared with which, as in
    `launch.report`; without them the sweep's own question does. Nothing is written.

    Raises:
      UserError: without pandas, and for a question that the table has no rows for.
      ResultsError: if `workdir` holds neither a sweep nor a single run.
    """
    try:
        import pandas
    except ImportError as error:
        raise UserError("load() returns DataFrames: pip install pandas") from error
    results = read_results(workdir)
    columns, records = trial_table(results)
    trials = pandas.DataFrame(records, columns=columns)
    question = Question(base, tuple(within), tuple(pairs))
    results, _ = of_one_code(results)
    rows = compared_rows(results)
    if question == USUAL:
        question, _ = fitting(rows, Question.of(results.question))
    compared = compare_rows(results, question=question)
    records = comparison_records(rows, results.metrics, question, compared)
    return Frames(trials, pandas.DataFrame(records))
