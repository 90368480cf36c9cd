"""Writes the report of a workdir: report.md, .csv, .tex and .html, from its files alone.

The same files give the same bytes, so a report can be made again at any time, while the
sweep runs or years later.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.evaluation.metrics import METRICS, Metric
from experiments.report.comparison import against_each, compare
from experiments.report.comparisons import comparison_records
from experiments.report.figures.style import printed, printed_width
from experiments.report.formats import (
    comparisons_csv,
    comparisons_json,
    to_csv,
    to_markdown,
)
from experiments.report.latex import to_latex
from experiments.report.method import method
from experiments.report.page import render_page
from experiments.report.page_figures import draw_figures
from experiments.report.questions import USUAL, Question, fitting
from experiments.report.rows import Row, of_one_code
from experiments.report.table import Table, result_table
from experiments.report.trial_files import Results, read_results
from experiments.report.tuned_rows import compared_rows, untuned_rows, with_tuning
from experiments.system.files import READ_ONLY, write_bytes


@dataclasses.dataclass(frozen=True)
class Report:
    """Holds the table of a report and the paths of its files.

    `unwritten` is the reason why there are no files where none can be written; else empty.
    """

    table: Table
    rows: Sequence[Row]
    """What was compared."""
    markdown: Path
    csv: Path
    latex: Path
    html: Path
    comparisons: Path
    """A line for each compared row and metric; the same stands beside it as JSON."""
    figures: Path | None = None
    """The folder of figures, where it was asked for."""
    unwritten: str = ""


def write_report(
    workdir: str | Path, metrics: Sequence[Metric] = METRICS, **options
) -> Report:
    """Writes the report of a workdir into it, with the options of `write_results`.

    Raises ResultsError if `workdir` holds neither a sweep nor a single run.
    """
    results = read_results(workdir, metrics)
    return write_results(results, results.workdir, **options)


def write_results(
    results: Results,
    out: str | Path,
    interest: Mapping[str, float] | None = None,
    cost: bool = False,
    figures: bool = False,
    mixed_code: bool = False,
    question: Question | None = None,
    with_p: bool = False,
    width: float | None = None,
) -> Report:
    """Writes report.md, .csv, .tex, .html and comparisons.csv, .json into the directory `out`.

    Each is written whole or not at all; where this process may not write, the table is still
    returned, with the reason in `unwritten`. `interest` is that of `comparison.compare`. With
    `cost` the table has the costs of rows, with `figures` every figure is written to the folder
    figures, as SVG and as PDF, `width` inches wide or as on the page. Trials of other code than
    the base's are left out unless `mixed_code` takes them together. `question` says which rows
    are compared with which; by default the sweep's own does, as long as there are rows for it.
    `with_p` has p in place of intervals in report.tex. Raises UserError for a question that
    the table has no rows for.
    """
    # Links to the files of trials are as seen from there.
    everything = dataclasses.replace(results, workdir=Path(out))
    results, mixed = of_one_code(everything, mixed_code)
    results = dataclasses.replace(results, metrics=_given(results))
    question, doubt = _asked(results, question)
    compared = compare_rows(results, interest, question)
    rows = compared_rows(results) if question.pairs else compared
    pairs = compared if question.pairs else ()
    caution = " ".join(filter(None, (mixed, doubt)))
    table = result_table(results, rows, cost, caution, question, pairs)
    table = _tuned(table, results, rows, interest, question)
    others = _against_each(rows, results, interest, question)
    drawn = draw_figures(results, rows, pairs)
    described = method(rows, compared, results.metrics, question)
    records = comparison_records(rows, results.metrics, question, compared)
    report = _report(table, compared, results.workdir, figures)
    files: dict[Path, str | bytes] = {
        report.markdown: to_markdown(results, table),
        report.csv: to_csv(everything),
        report.latex: to_latex(results, rows, table, with_p, described, pairs),
        report.html: render_page(results, rows, table, drawn, pairs, others),
        report.comparisons: comparisons_csv(records),
        report.comparisons.with_suffix(".json"): comparisons_json(records),
    }
    if report.figures:
        with printed(width):
            files |= _figure_files(report.figures, drawn, results, rows, pairs)
    return dataclasses.replace(report, unwritten=_write(files, results.workdir))


def _tuned(table, results, rows, interest, question):
    """Returns the table with what was chosen for its rows, where anything was."""
    if not results.tuned:
        return table
    own = untuned_rows(results)
    untuned = own if question.pairs else _compare(own, results, interest, question)
    return with_tuning(table, results, rows, untuned)


def _asked(results, question):
    """Returns the question, by default the sweep's own, and why it is that not; or ""."""
    if question is not None:
        return question, ""
    return fitting(compared_rows(results), Question.of(results.question))


def _figure_files(directory, drawn, results, rows, pairs) -> dict[Path, str | bytes]:
    """Returns {path: content} of figures as files; for print they are drawn anew."""
    files: dict[Path, str | bytes] = {}
    figures = draw_figures(results, rows, pairs) if printed_width() else drawn
    for figure in figures.all():
        files[directory / f"{figure.id}.svg"] = figure.picture.svg
        files[directory / f"{figure.id}.pdf"] = figure.picture.pdf()
    return files


def _report(table, compared, directory, figures):
    """Returns the Report of a directory, before anything is written."""
    return Report(
        table=table,
        rows=compared,
        markdown=directory / "report.md",
        csv=directory / "report.csv",
        latex=directory / "report.tex",
        html=directory / "report.html",
        comparisons=directory / "comparisons.csv",
        figures=directory / "figures" if figures else None,
    )


def _write(files, directory) -> str:
    """Writes {path: text or bytes}; returns why not, where nothing can be written there."""
    try:
        for path, content in files.items():
            is_text = isinstance(content, str)
            write_bytes(path, content.encode() if is_text else content)
    except OSError as error:
        if error.errno not in READ_ONLY:
            raise
        return f"not written to {directory}: {error.strerror}"
    return ""


def compare_rows(
    results: Results,
    interest: Mapping[str, float] | None = None,
    question: Question = USUAL,
) -> list[Row]:
    """Groups the trials over their seeds and compares each row with its base.

    Rows are in the order of the sweep; of a question of pairs there is one for each pair.
    """
    return _compare(compared_rows(results), results, interest, question)


def _compare(rows, results, interest, question):
    interest = interest or results.interest
    return compare(rows, None, results.metrics, interest, results.looks, question)


def _against_each(rows, results, interest, question):
    """Returns the rows against each of them, for the page to show.

    [] for a table of looks, and for rows that have their own bases.
    """
    if question.pairs or question.within or results.looks is not None:
        return []
    if not any(row.differences for row in rows):
        return []
    plain = [dataclasses.replace(row, against="") for row in rows]
    return against_each(plain, None, results.metrics, interest or results.interest)


def _given(results):
    """Returns the metrics that a finished trial has: translations have no accuracy, answers
    no BLEU. Where there is none, all."""
    finished = results.with_status("finished")
    metrics = results.metrics
    given = [m for m in metrics if any(m.key in trial.result for trial in finished)]
    return tuple(given) or metrics
