"""Writes a report as text: Markdown, CSV and LaTeX."""

import csv
import io
import re
from collections.abc import Sequence

from experiments.errors import one_line
from experiments.evaluation.metrics import METRICS, Metric
from experiments.report.comparison import Row
from experiments.report.costs import COSTS
from experiments.report.results import NUMBERS, Results, look_up_setting
from experiments.report.statistics import LEVEL
from experiments.report.table import (
    Table,
    has_published,
    mean_and_interval,
    provenance,
    report_title,
    varied,
)
from experiments.report.tuning import CHOSEN, UNTUNED, untuned_heading
from experiments.system import code

# Other scores of the same translations stand beside their metric.
VARIANTS = {"bleu": ("bleu_detokenized",)}
"""Columns of report.csv that follow that of a metric."""

FORMULA_MARKS = "=+-@＝＋－＠"
"""A spreadsheet computes a cell that begins with one of these, the full-width ones too."""

NOT_LAST = ("parameters", "bleu_detokenized", "real_tokens", "test_sentences")
"""Numbers of a result that report.csv has elsewhere, or not at all."""


def csv_scores(metrics: Sequence[Metric] = METRICS) -> tuple[str, ...]:
    """Returns the numbers of a result that report.csv has columns for.

    They are as they stand in result.json: exact_match is a fraction.
    """
    # All numbers, and not only the table's, because people compute from this file.
    scores = ["parameters"]
    for metric in metrics:
        scores += [metric.key, *VARIANTS.get(metric.key, ())]
    return (*scores, *(name for name in NUMBERS if name not in NOT_LAST))


def to_markdown(results: Results, table: Table) -> str:
    """Returns report.md: the table, the differences to base, failures, and what ran."""
    lines = [
        f"# {_markdown_text(report_title(results))}",
        "",
        *([_markdown_text(table.finding), ""] if table.finding else []),
        *_markdown_grid(table.results.headings, table.results.rows),
    ]
    for note in table.notes:
        lines += [_markdown_text(note), ""]
    tuning = [table.tuning] if table.tuning else []
    for grid in (*tuning, *table.differences.values()):
        lines += [f"## {_markdown_text(grid.title)}", ""]
        lines += _markdown_grid(grid.headings, grid.rows)
    for note in table.difference_notes:
        lines += [_markdown_text(note), ""]
    if table.problems:
        lines += ["## Trials without a result", ""]
        lines += _markdown_grid(("trial", "status", "why"), table.problems, "---")
    lines += ["## What ran", ""]
    for term, value in provenance(results):
        lines.append(f"- {_markdown_text(term)}: {_markdown_text(value)}")
    lines += [
        "",
        "Figures, position encodings and attention maps: report.html; a line a trial: "
        "report.csv; for LaTeX: report.tex.",
        "",
    ]
    return "\n".join(lines)


def to_csv(results: Results, metrics: Sequence[Metric] = METRICS) -> str:
    """Returns report.csv: a line a trial, with a column for each setting that varies.

    A number that a trial lacks is an empty cell.
    """
    keys = varied(results)
    scores = csv_scores(metrics)
    # Columns for the kinds of weights come last, where they do not move the others.
    beside = {}
    for kind in _weights(results):
        for metric in metrics:
            beside[f"{kind}.{metric.key}"] = ("beside", kind, metric.split, metric.key)
    role = ["role"] if results.tuned else []
    columns = ["name", "label", *role, *keys, "seed", "status"]
    columns += [*scores, *beside, "code"]
    buffer = io.StringIO()
    # Lines end as those of our other files do, and not in csv's \r\n.
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    # Headings are escaped too: a config's keys are a user's text.
    writer.writerow({column: _csv_cell(column) for column in columns})
    for trial in results.trials:
        # Numbers of a trial that failed are not results.
        result = trial.result if trial.status == "finished" else {}
        cells = {
            "name": trial.name,
            "label": trial.label,
            "seed": trial.seed,
            "status": trial.status,
            "code": code.of(trial.record),
        }
        if results.tuned:
            cells["role"] = trial.role
        for key in keys:
            # A point names only what it changes, so the rest is the base's.
            cells[key] = trial.point.get(key, look_up_setting(results.base, key))
        for score in scores:
            cells[score] = result.get(score)
        for column, path in beside.items():
            cells[column] = look_up_setting(result, ".".join(path))
        writer.writerow({column: _csv_cell(value) for column, value in cells.items()})
    return buffer.getvalue()


def to_latex(
    results: Results,
    rows: Sequence[Row],
    table: Table,
    metrics: Sequence[Metric] = METRICS,
) -> str:
    """Returns report.tex, for a document that loads booktabs and graphicx.

    A row has its means ± spread and, where there is a base, differences to it with their
    95 % intervals. The table is shrunk to the width of a line.
    """
    has_papers = has_published(rows)
    headings = ["", *([CHOSEN] if table.tuning else []), "seeds", "parameters"]
    headings += [c.heading for c in COSTS if c.heading in table.results.headings]
    columns = [table.results.headings.index(heading) for heading in headings]
    cells = []
    for row in table.results.rows:
        cells.append([_latex_text(row[i]) for i in columns])
    has_differences = any(row.differences for row in rows)
    for metric in metrics:
        headings.append(_latex_text(metric.heading))
        column = table.results.headings.index(metric.heading)
        for line, texts in zip(cells, table.results.rows, strict=True):
            line.append(_latex_text(texts[column]))
        if table.tuning:
            headings.append(UNTUNED)
            untuned = _untuned(table, metric)
            for line, texts in zip(cells, table.results.rows, strict=True):
                line.append(_latex_text(untuned[texts[0]]))
        if any(metric.key in row.differences for row in rows):
            headings.append("$-$ base")
            for line, row in zip(cells, rows, strict=True):
                line.append(_latex_difference(row, metric))
        if has_papers and metric.published:
            headings.append("paper")
            for line, row in zip(cells, rows, strict=True):
                line.append(_latex_published(row, metric))
    caption = _latex_caption(results, table, has_differences, has_papers)
    return _latex_table(caption, headings, cells)


def _latex_table(caption, headings, cells):
    body = [rf"{' & '.join(line)} \\" for line in cells]
    lines = [
        r"% \usepackage{booktabs,graphicx} in the preamble, then \input{report}",
        r"\begin{table}",
        r"\centering\footnotesize",
        r"\setlength{\tabcolsep}{4pt}",
        rf"\caption{{{caption}}}",
        # Only a table that is too wide is shrunk: a narrow one would be blown up.
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{@{{}}l{'r' * (len(headings) - 1)}@{{}}}}",
        r"\toprule",
        rf"{' & '.join(headings)} \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}}",
        r"\end{table}",
        "",
    ]
    return "\n".join(lines)


def _csv_cell(value):
    """Returns a text on one line, with an apostrophe where a spreadsheet would compute it."""
    if not isinstance(value, str):
        return value
    text = one_line(value)
    return f"'{text}" if text.startswith(tuple(FORMULA_MARKS)) else text


def _weights(results):
    """Returns the kinds of weights that are scored beside each other, as "raw", "ema".

    () where every trial has only those of its last step.
    """
    kinds = {}
    for trial in results.with_status("finished"):
        kinds |= dict.fromkeys(trial.result.get("beside") or {})
    return tuple(kinds) if len(kinds) > 1 else ()


def _markdown_grid(headings, rows, align="---:"):
    rule = ["---", *[align] * (len(headings) - 1)]
    return [*map(_markdown_row, (headings, rule, *rows)), ""]


def _markdown_row(cells):
    return "| " + " | ".join(map(_markdown_text, cells)) + " |"


def _markdown_text(text):
    """Escapes `text` for Markdown: it makes no tag, table bar, emphasis, code or link."""
    # & comes first, because the other two bring new ones.
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\|*`\[\]])", r"\\\1", text)


_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",
    "]": "{]}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": "$-$",
    "–": "--",
    "’": "'",
    "“": "``",
    "”": "''",
}


def _latex_text(text):
    """Escapes `text` for LaTeX.

    Brackets are wrapped: after \\\\ or \\toprule one would begin an argument.
    """
    return "".join(_LATEX.get(letter, letter) for letter in text)


def _latex_difference(row, metric):
    difference = row.differences.get(metric.key)
    if difference is None:
        return "--"
    mean, interval = mean_and_interval(difference, metric)
    # After the correction, as the verdicts are.
    is_significant = difference.p < LEVEL
    return f"${mean}{'^{*}' if is_significant else ''}$ ${interval}$"


def _untuned(table, metric):
    """Returns {row: its score at its own values}."""
    column = table.tuning.headings.index(untuned_heading(metric))
    return {row[0]: row[column] for row in table.tuning.rows}


def _latex_published(row, metric):
    return f"{getattr(row.published, metric.key):g}" if row.published else "--"


def _latex_caption(results, table, has_differences, has_papers):
    sentences = [f"{report_title(results)}.", table.caution]
    sentences += [f"{note[0].upper()}{note[1:]}." for note in table.notes]
    if has_differences:
        sentences.append(
            "− base: difference to base with its interval; all intervals hold at once with "
            "95 % probability, and those with an asterisk leave 0 out."
        )
    if has_papers:
        sentences.append("Paper: Table 3 of “Attention Is All You Need”, newstest2013.")
    return _latex_text(" ".join(filter(None, sentences)))
