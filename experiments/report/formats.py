"""Formats a report as Markdown, CSV and JSON."""

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.errors import one_line
from experiments.evaluation.metrics import METRICS, Metric
from experiments.report.rows import report_title, varied
from experiments.report.table import Table, provenance
from experiments.report.trial_files import NUMBERS, Results, look_up_setting
from experiments.system import code

# Other scores of the same translations stand beside their metric.
VARIANTS = {"bleu": ("bleu_detokenized",)}
"""Columns of report.csv that follow that of a metric."""

FORMULA_MARKS = "=+-@＝＋－＠"
"""A spreadsheet computes a cell that begins with one of these, the full-width ones too."""

NOT_LAST = (
    "parameters",
    "bleu_detokenized",
    "real_tokens",
    "test_sentences",
    "chance",
)
"""Numbers of a result that report.csv has in other places, or not at all."""


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


def trial_table(results: Results) -> tuple[list[str], list[dict[str, Any]]]:
    """Returns the columns of a table of all trials, and {column: value} of each trial.

    There is a column for each setting that varies; a number that a trial lacks is None.
    """
    keys = varied(results)
    scores = csv_scores(results.metrics)
    # Columns for the kinds of weights come last, where they do not move the others.
    beside = {}
    for kind in _weights(results):
        for metric in results.metrics:
            path = f"beside.{kind}.{metric.split}.{metric.key}"
            beside[f"{kind}.{metric.key}"] = path
    role = ["role"] if results.tuned else []
    columns = ["name", "label", *role, *keys, "seed", "status"]
    columns += [*scores, *beside, "code"]
    records = []
    for trial in results.trials:
        # Numbers of a trial that failed are not results.
        result = trial.result if trial.status == "finished" else {}
        record = dict(name=trial.name, label=trial.label, role=trial.role)
        record |= dict(seed=trial.seed, status=trial.status, code=code.of(trial.record))
        # A point names only what it changes, so the rest is the base's.
        base = results.base
        record |= {k: trial.point.get(k, look_up_setting(base, k)) for k in keys}
        record |= {score: result.get(score) for score in scores}
        record |= {name: look_up_setting(result, p) for name, p in beside.items()}
        records.append({column: record[column] for column in columns})
    return columns, records


def to_csv(results: Results) -> str:
    """Returns report.csv: the `trial_table`, an empty cell for a number that is lacking."""
    return _csv(*trial_table(results))


def comparisons_csv(records: Sequence[Mapping[str, Any]]) -> str:
    """Returns comparisons.csv; a cell of several numbers has spaces between them."""
    columns = list(dict.fromkeys(name for record in records for name in record))
    lines = []
    for record in records:
        line = {}
        for name in columns:
            value = record.get(name)
            is_list = isinstance(value, list)
            line[name] = " ".join(map(str, value)) if is_list else value
        lines.append(line)
    return _csv(columns, lines)


def comparisons_json(records: Sequence[Mapping[str, Any]]) -> str:
    """Returns comparisons.json: a list of the records."""
    return json.dumps(records, indent=1, default=str) + "\n"


def _csv(columns, records):
    buffer = io.StringIO()
    # Lines end as those of our other files do, and not in csv's \r\n.
    writer = csv.writer(buffer, lineterminator="\n")
    # Headings are escaped too: a config's keys are a user's text.
    writer.writerow(map(_csv_cell, columns))
    for record in records:
        writer.writerow(map(_csv_cell, record.values()))
    return buffer.getvalue()


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
