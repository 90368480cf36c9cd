"""Prints tables: drawn in a terminal, in plain aligned columns elsewhere."""

from collections.abc import Sequence

import rich.box
import rich.console
import rich.table
import rich.text

from experiments.evaluation.metrics import CHRF, OF_ATTENTION, Metric
from experiments.report.cells import Bar, interval_bars, mean_and_interval
from experiments.report.finding import SIDES
from experiments.report.rows import Row, name_of_base
from experiments.report.table import STEPS, VERDICTS, Table
from experiments.report.tuned_rows import (
    CHOSEN,
    TRIED,
    UNTUNED_VERDICTS,
    untuned_heading,
)
from experiments.system.console import print_line, stdout_console

_TEXTS = (VERDICTS, CHOSEN, UNTUNED_VERDICTS)
"""The headings of columns of words, beside the first."""

_COLOURS = {"failed": "red", "diverged": "red", "unfinished": "yellow"}

_WIDTH = 33
"""Characters of a drawn interval; odd, so that base is in the middle."""

_WIDE_ONLY = (
    "parameters",
    STEPS,
    CHRF.heading,
    *(metric.heading for metric in OF_ATTENTION),
    TRIED,
    untuned_heading(CHRF),
)
"""Columns that a terminal of 80 characters has no room for; report.md has them."""


def print_table(table: Table, console: rich.console.Console | None = None) -> None:
    """Prints the caution, the results, their notes, trials without a result, the finding."""
    console = console or stdout_console()
    is_drawn = console.is_terminal
    notes = [rich.text.Text(note, style="dim") for note in table.notes]
    problems = [
        rich.text.Text(f"{status}: {name}: {why}", style=_COLOURS[status])
        for name, status, why in table.problems
    ]
    draw = _drawn if is_drawn else _plain
    grids = [draw(grid) for grid in (table.results, table.tuning) if grid]
    # Last, where a reader's eye is.
    finding = [rich.text.Text(table.finding, style="bold")] if table.finding else []
    caution = [rich.text.Text(table.caution, style="red")] if table.caution else []
    for part in [*caution, *grids, *notes, *problems, *finding]:
        # Other programs read a pipe by its lines, so these are not wrapped.
        console.print(part, soft_wrap=not is_drawn)


def print_differences(
    rows: Sequence[Row],
    metric: Metric,
    is_sorted: bool = False,
    console: rich.console.Console | None = None,
) -> None:
    """Prints a metric's differences to base, a line a row with its interval drawn.

    They are in the table's order, or from the lowest difference to the highest.
    """
    console = console or rich.console.Console()
    lines = []
    for row, bar in zip(rows, interval_bars(rows, metric), strict=True):
        difference = row.differences.get(metric.key)
        if difference is not None:
            texts = mean_and_interval(difference, metric)
            drawn = _drawn_interval(bar) if bar else ""
            verdict = str(row.verdicts[metric.key]._replace(detail=""))
            lines.append((difference.mean, (row.title, *texts, drawn, verdict)))
    if not lines:
        text = f"{metric.name}: no row is compared; it takes a base, and two seeds of a row"
        print_line(console, text)
        return
    if is_sorted:
        lines.sort(key=lambda line: line[0])
    headings = (
        "",
        f"{metric.name} − {name_of_base(rows)}",
        "95 % interval",
        "",
        "verdict",
    )
    cells = [headings, *(texts for _, texts in lines)]
    left = (True, False, False, True, True)
    console.print(_plain_columns(cells, left), soft_wrap=not console.is_terminal)


def _drawn_interval(bar: Bar) -> str:
    """Draws an interval with characters: "   ├──●──┤ │"; a filled dot is a verdict."""
    place = lambda value: round(value / 100 * (_WIDTH - 1))
    line = [" "] * _WIDTH
    line[place(50)] = "│"
    low = place(bar.low)
    high = place(bar.high)
    line[low : high + 1] = "─" * (high + 1 - low)
    line[low] = "◄" if bar.is_cut_low else "├"
    line[high] = "►" if bar.is_cut_high else "┤"
    line[place(bar.mean)] = "●" if bar.verdict in SIDES else "○"
    return "".join(line)


def _plain_columns(
    lines: Sequence[Sequence[str]], left: Sequence[bool]
) -> rich.text.Text:
    """Returns cells in aligned columns; those of which `left` is true begin at the left."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = []
    for line in lines:
        cells = []
        for cell, width, is_left in zip(line, widths, left, strict=True):
            cells.append(cell.ljust(width) if is_left else cell.rjust(width))
        # Lines end without spaces, for those who copy them.
        text.append("  ".join(cells).rstrip())
    return rich.text.Text("\n".join(text))


def _drawn(results) -> rich.table.Table:
    grid = rich.table.Table(
        box=rich.box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0)
    )
    columns = _narrow_columns(results)
    for i in columns:
        heading = results.headings[i]
        is_text = i < results.named_by or heading in _TEXTS
        grid.add_column(
            # The heading is wider than its numbers, and a terminal is narrow.
            heading.replace("exact match", "exact\nmatch"),
            justify="left" if is_text else "right",
            no_wrap=not is_text,
            min_width=10 if is_text else 0,
        )
    for row in results.rows:
        # As Text, a label such as [red] is no markup.
        grid.add_row(*(rich.text.Text(row[i]) for i in columns))
    return grid


def _plain(results) -> rich.text.Text:
    columns = _narrow_columns(results)
    rows = (results.headings, *results.rows)
    lines = []
    for row in rows:
        lines.append([row[i] for i in columns])
    left = [i < results.named_by or results.headings[i] in _TEXTS for i in columns]
    return _plain_columns(lines, left)


def _narrow_columns(results) -> list[int]:
    headings = enumerate(results.headings)
    return [i for i, heading in headings if heading not in _WIDE_ONLY]
