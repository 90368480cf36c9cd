"""Says in a few sentences what a table tested and how, for a paper."""

import math
from collections.abc import Sequence

from experiments.evaluation.metrics import Metric
from experiments.report.cells import listed, number
from experiments.report.questions import Question
from experiments.report.rows import Row


def method(
    rows: Sequence[Row],
    compared: Sequence[Row],
    metrics: Sequence[Metric],
    question: Question,
) -> str:
    """Returns the paragraph; "" where nothing was compared.

    `compared` are the `rows`, or the pairs of a question of pairs.
    """
    judged = [row for row in compared if row.verdicts]
    if not any(row.differences for row in judged):
        return ""
    used = [m for m in metrics if any(m.key in row.differences for row in judged)]
    count = sum(len(row.differences) for row in judged)
    return " ".join(
        (
            _what_ran(rows),
            _what_was_compared(rows, judged, used, question),
            "All differences are estimated by least squares in one model of the whole table, "
            "on a scale on which runs vary alike; what a seed does to all rows is taken out "
            "where there are four rows or more, and each row’s spread over seeds is learned "
            "from all rows.",
            f"The intervals of the {count} comparisons hold simultaneously with a probability "
            "of 95 %, and p is two-sided and corrected for all of them; where runs kept "
            "their sentences, test sets are resampled too.",
            _what_was_found(judged, used),
        )
    )


def _what_ran(rows):
    having = [row for row in rows if row.finished]
    counts = sorted({len(row.finished) for row in having})
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    runs = sum(len(row.finished) for row in having)
    return f"{len(having)} models were trained with {seeds} seeds each, {runs} runs in all."


def _what_was_compared(rows, judged, used, question):
    of_same = f" of the same {listed(question.within)}" if question.within else ""
    bases = list(dict.fromkeys(row.base for row in judged))
    if question.pairs:
        what = f"{len(judged)} pairs of them{of_same} were compared"
    elif len(bases) == 1:
        what = f"Each was compared with {rows[bases[0]].name}"
    else:
        base = question.base or "the base"
        what = f"Each was compared with {base}{of_same or ' on the same text'}"
    names = listed([metric.name for metric in used])
    sizes = {
        trial.result.get("test_sentences") for row in rows for trial in row.finished
    } - {None}
    on_test = any(metric.split == "test" for metric in used)
    sentences = (
        f" ({sizes.pop()} test sentences)" if on_test and len(sizes) == 1 else ""
    )
    return f"{what} in {names}{sentences}."


def _what_was_found(judged, used):
    verdicts = [
        row.verdicts[m.key] for row in judged for m in used if m.key in row.verdicts
    ]
    kinds = [verdict.kind for verdict in verdicts]
    parts = [f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)]
    sizes = []
    for metric in used:
        found = [row.differences.get(metric.key) for row in judged]
        known = [d.detectable for d in found if d and math.isfinite(d.detectable)]
        if known and max(known) > 0:
            size = number(metric.scale * max(known), metric.difference_decimals)
            sizes.append(f"{size}{metric.spaced_unit} in {metric.name}")
    found = f"The table finds {listed(parts)}"
    if not sizes:
        return f"{found}."
    return (
        f"{found}, and would have shown differences above {listed(sizes)} with a probability "
        "of 0.8."
    )
