"""Gives what a report has as pandas DataFrames."""

from pathlib import Path
from typing import Any, NamedTuple

from experiments.errors import UserError
from experiments.report.comparisons import comparison_records
from experiments.report.formats import trial_table
from experiments.report.questions import Question
from experiments.report.rows import of_one_code
from experiments.report.trial_files import read_results
from experiments.report.write import compare_rows


class Frames(NamedTuple):
    """Holds two DataFrames of a workdir."""

    trials: Any
    """A line a trial, as report.csv has them."""
    comparisons: Any
    """A line for each compared row and metric, as comparisons.json has them."""


def load(workdir: str | Path, base: str = "", within: tuple[str, ...] = ()) -> Frames:
    """Returns the trials and the comparisons of a sweep's or a run's workdir.

    `base` and `within` say which rows are compared with which, as in `launch.report`.
    Nothing is written.

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
    question = Question(base, tuple(within))
    rows = compare_rows(of_one_code(results)[0], question=question)
    compared = comparison_records(rows, results.metrics, question)
    return Frames(trials, pandas.DataFrame(compared))
