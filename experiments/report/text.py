"""A report as text for others to read: Markdown, CSV and LaTeX."""

import csv
import io
import re

from experiments.errors import one_line
from experiments.report.comparison import Row
from experiments.report.results import Results, look_up_setting
from experiments.report.table import (
    METRICS,
    Table,
    beside_paper,
    mean_and_interval,
    provenance,
    report_title,
    varied,
)

CSV_SCORES = (
    "parameters",
    "perplexity",
    "bleu",
    "bleu_detokenized",
    "chrf",
    "exact_match",
    "alignment_error",
    "test_perplexity",
    "steps",
    "seconds",
)
"""What report.csv takes from a result, one column each; exact_match is a fraction there."""


BESIDE = {
    "perplexity": "validation",
    "bleu": "test",
    "chrf": "test",
    "exact_match": "test",
}
"""What it takes of raw, averaged and moving-average weights, and on which sentences."""


def to_markdown(book: Results, table: Table) -> str:
    """report.md: the table, the differences to base, the trials without a result, and where it all ran."""
    lines = [
        f"# {_markdown_text(report_title(book))}",
        "",
        *_markdown_grid(table.results.headings, table.results.rows),
    ]
    for note in table.notes:
        lines += [_markdown_text(note), ""]
    for grid in table.differences.values():
        lines += [
            f"## {_markdown_text(grid.title)}",
            "",
            *_markdown_grid(grid.headings, grid.rows),
        ]
    for note in table.difference_notes:
        lines += [_markdown_text(note), ""]
    if table.problems:
        lines += [
            "## Trials without a result",
            "",
            *_markdown_grid(("trial", "status", "why"), table.problems, "---"),
        ]
    lines += ["## What ran", ""]
    lines += [
        f"- {_markdown_text(term)}: {_markdown_text(value)}"
        for term, value in provenance(book)
    ]
    return "\n".join(
        [
            *lines,
            "",
            "Figures, position encodings and attention maps: report.html; a line a trial: "
            "report.csv; for LaTeX: report.tex.",
            "",
        ]
    )


def to_csv(book: Results) -> str:
    """report.csv: a line a trial, with a column for each setting that the sweep varies."""
    keys, kinds = varied(book), _kinds(book)
    beside = {
        f"{kind}.{score}": (kind, split, score)
        for kind in kinds
        for score, split in BESIDE.items()
    }
    buffer = io.StringIO()
    columns = ["name", "label", *keys, "seed", "status", *CSV_SCORES, *beside]
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    writer.writerow({column: _cell(column) for column in columns})
    for trial in book.trials:
        result = trial.result if trial.status == "finished" else {}
        cells = {
            "name": trial.name,
            "label": trial.label,
            "seed": trial.seed,
            "status": trial.status,
        }
        cells |= {
            key: trial.point.get(key, look_up_setting(book.base, key)) for key in keys
        }
        cells |= {score: result.get(score) for score in CSV_SCORES}
        cells |= {
            column: look_up_setting(result, ".".join(("beside", *path)))
            for column, path in beside.items()
        }
        writer.writerow({column: _cell(value) for column, value in cells.items()})
    return buffer.getvalue()


def _cell(value):
    """`value`; a text on one line, with an apostrophe before it where a spreadsheet would compute it."""
    if not isinstance(value, str):
        return value
    text = one_line(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def to_latex(book: Results, rows: list[Row], table: Table) -> str:
    """report.tex: the table to be read into a document that loads booktabs and graphicx, no wider than its lines.

    A row has its means ± spread and, where there is a base, differences to it with their 95 % intervals.
    """
    metrics = [metric for metric in METRICS if metric.key != "exact_match"]
    compared = [
        metric for metric in metrics if any(getattr(row, metric.key) for row in rows)
    ]
    paper = beside_paper(rows)
    headings = ["", "seeds", "parameters"]
    for metric in metrics:
        headings += [
            metric.heading,
            *(["$-$ base"] if metric in compared else []),
            *(["paper"] if paper else []),
        ]
    lines = [" & ".join(headings)]
    for cells, row in zip(table.results.rows, rows, strict=True):
        line = [_latex_text(cell) for cell in cells[:3]]
        for metric in metrics:
            line.append(
                _latex_text(cells[table.results.headings.index(metric.heading)])
            )
            line += [_latex_difference(row, metric)] if metric in compared else []
            line += [_latex_published(row, metric)] if paper else []
        lines.append(" & ".join(line))
    return "\n".join(
        [
            r"% \usepackage{booktabs,graphicx} in the preamble, then \input{report}",
            r"\begin{table}",
            r"\centering\footnotesize",
            r"\setlength{\tabcolsep}{4pt}",
            rf"\caption{{{_latex_caption(book, table, bool(compared), paper)}}}",
            r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            rf"\begin{{tabular}}{{@{{}}l{'r' * (len(headings) - 1)}@{{}}}}",
            r"\toprule",
            rf"{lines[0]} \\",
            r"\midrule",
            *(rf"{line} \\" for line in lines[1:]),
            r"\bottomrule",
            r"\end{tabular}}",
            r"\end{table}",
            "",
        ]
    )


def _kinds(book):
    """Which weights are scored beside each other; () where every trial has only those of its last step."""
    found = dict.fromkeys(
        kind
        for trial in book.of("finished")
        for kind in trial.result.get("beside") or {}
    )
    return tuple(found) if len(found) > 1 else ()


def _markdown_grid(headings, rows, align="---:"):
    return [
        _markdown_row(headings),
        _markdown_row(["---", *[align] * (len(headings) - 1)]),
        *map(_markdown_row, rows),
        "",
    ]


def _markdown_row(cells):
    return "| " + " | ".join(map(_markdown_text, cells)) + " |"


def _markdown_text(text):
    """`text` as itself in Markdown: no tag, table bar, emphasis, code or link comes of it."""
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
    """`text` as itself in LaTeX. Brackets are wrapped: after \\\\ or \\toprule one would begin an argument."""
    return "".join(_LATEX.get(letter, letter) for letter in text)


def _latex_difference(row, metric):
    difference = getattr(row, metric.key)
    if difference is None:
        return "--"
    mean, interval = mean_and_interval(difference, metric)
    return f"${mean}{'^{*}' if row.adjusted[metric.key] < 0.05 else ''}$ ${interval}$"


def _latex_published(row, metric):
    return f"{getattr(row.published, metric.key):g}" if row.published else "--"


def _latex_caption(book, table, compared, paper):
    said = [
        f"{report_title(book)}.",
        *(f"{note[0].upper()}{note[1:]}." for note in table.notes),
    ]
    if compared:
        said.append(
            "− base: difference to base over pairs of runs with the same seed, with its 95 % interval; "
            "an asterisk: p < 0.05 after Holm’s correction over the rows."
        )
    if paper:
        said.append("Paper: Table 3 of “Attention Is All You Need”, newstest2013.")
    return _latex_text(" ".join(said))
