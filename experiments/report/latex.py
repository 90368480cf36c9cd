"""Formats a report as LaTeX: its table, its pairs, and a paragraph on the method."""

from collections.abc import Sequence

from experiments.evaluation.metrics import OF_ATTENTION
from experiments.report.cells import mean_and_interval, p_value
from experiments.report.costs import COSTS
from experiments.report.rows import Row, name_of_base, report_title
from experiments.report.table import Table, has_published
from experiments.report.trial_files import Results
from experiments.report.tuned_rows import CHOSEN, UNTUNED, untuned_heading
from experiments.stats.summary import LEVEL


def to_latex(
    results: Results,
    rows: Sequence[Row],
    table: Table,
    with_p: bool = False,
    method: str = "",
    pairs: Sequence[Row] = (),
) -> str:
    """Returns report.tex, for a document that loads booktabs and graphicx.

    A row has its means ± spread and, where there is a base, differences to it with their
    95 % intervals, or `with_p` their p. The table is shrunk to the width of a line. `pairs`
    are what was compared where that are not the rows: they have a table of their own. `method`
    is a paragraph that follows.
    """
    has_papers = has_published(rows)
    grid = table.results
    headings = [*grid.headings[: grid.named_by], *([CHOSEN] if table.tuning else [])]
    headings += ["seeds", "parameters"]
    headings += [c.heading for c in COSTS if c.heading in grid.headings]
    columns = [(_latex_text(h), _latex(grid.column(h))) for h in headings]
    for metric in results.metrics:
        heading = _latex_text(metric.heading)
        columns.append((heading, _latex(grid.column(metric.heading))))
        if table.tuning:
            untuned = table.tuning.column(untuned_heading(metric))
            of_row = dict(zip(table.tuning.column(""), untuned, strict=True))
            columns.append((UNTUNED, _latex(of_row[row.name] for row in rows)))
        if any(metric.key in row.differences for row in rows):
            texts = [_latex_difference(row, metric, with_p) for row in rows]
            columns.append((f"$-$ {_latex_text(name_of_base(rows))}", texts))
        if has_papers and metric.published:
            columns.append(("paper", [_latex_published(row, metric) for row in rows]))
    for metric in OF_ATTENTION:
        if metric.heading in grid.headings:
            texts = _latex(grid.column(metric.heading))
            columns.append((_latex_text(metric.heading), texts))
    cells = zip(*(texts for _, texts in columns), strict=True)
    aligned = "l" * grid.named_by + "r" * (len(columns) - grid.named_by)
    base = name_of_base(rows) if any(row.differences for row in rows) else ""
    caption = _latex_caption(results, table, base, has_papers, with_p)
    written = _latex_table(caption, [heading for heading, _ in columns], cells, aligned)
    if pairs:
        written += f"\n{_latex_pairs(results, pairs, with_p)}"
    return f"{written}\n{_latex_text(method)}\n" if method else written


def _latex_pairs(results, pairs, with_p):
    """Returns a table of pairs of rows with their differences in each metric."""
    columns = {
        "row": [row.name for row in pairs],
        "against": [r.against for r in pairs],
    }
    columns = {heading: _latex(texts) for heading, texts in columns.items()}
    for metric in results.metrics:
        if any(metric.key in row.differences for row in pairs):
            texts = [_latex_difference(row, metric, with_p) for row in pairs]
            columns[_latex_text(metric.heading)] = texts
    caption = _latex_text(
        f"{report_title(results)}: differences of pairs, row − the other. "
        f"{_meaning(with_p)}"
    )
    cells = zip(*columns.values(), strict=True)
    return _latex_table(caption, list(columns), cells, "ll" + "r" * (len(columns) - 2))


def _meaning(with_p):
    if with_p:
        return (
            "With p, two-sided and corrected for all rows and metrics; an asterisk where it "
            "is below 0.05."
        )
    return (
        "With intervals, which all hold at once with 95 % probability; those with an "
        "asterisk leave 0 out."
    )


def _latex_table(caption, headings, cells, aligned):
    body = [rf"{' & '.join(line)} \\" for line in cells]
    lines = [
        r"% \usepackage{booktabs,graphicx} in the preamble, then \input{report}",
        r"\begin{table}",
        r"\centering\footnotesize",
        r"\setlength{\tabcolsep}{4pt}",
        rf"\caption{{{caption}}}",
        # Only a table that is too wide is shrunk: a narrow one would be blown up.
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{@{{}}{aligned}@{{}}}}",
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


def _latex(texts):
    return list(map(_latex_text, texts))


def _latex_difference(row, metric, with_p):
    difference = row.differences.get(metric.key)
    if difference is None:
        return "--"
    mean, interval = mean_and_interval(difference, metric)
    # After the correction, as the verdicts are.
    is_significant = difference.p < LEVEL
    marked = f"${mean}{'^{*}' if is_significant else ''}$"
    p = p_value(difference.p)
    sign = "" if p.startswith("<") else "="
    return f"{marked} ($p{sign}{p}$)" if with_p else f"{marked} ${interval}$"


def _latex_published(row, metric):
    return f"{getattr(row.published, metric.key):g}" if row.published else "--"


def _latex_caption(results, table, base, has_papers, with_p):
    sentences = [f"{report_title(results)}.", table.caution]
    sentences += [f"{note[0].upper()}{note[1:]}." for note in table.caption]
    if base:
        sentences.append(f"− {base}: difference to it. {_meaning(with_p)}")
    if has_papers:
        sentences.append("Paper: Table 3 of “Attention Is All You Need”, newstest2013.")
    return _latex_text(" ".join(filter(None, sentences)))
