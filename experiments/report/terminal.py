"""Prints tables: drawn in a terminal, in plain aligned columns elsewhere."""

from collections.abc import Sequence

import rich.box
import rich.console
import rich.table
import rich.text

from experiments.evaluation.metrics import ALIGNMENT_ERROR, CHRF
from experiments.report.table import STEPS, VERDICTS, Table
from experiments.report.tuning import (
    CHOSEN,
    TRIED,
    UNTUNED_VERDICTS,
    untuned_heading,
)

_TEXTS = (VERDICTS, CHOSEN, UNTUNED_VERDICTS)
"""The headings of columns of words, beside the first."""

_COLOURS = {"failed": "red", "diverged": "red", "unfinished": "yellow"}

_WIDE_ONLY = (
    "parameters",
    STEPS,
    CHRF.heading,
    ALIGNMENT_ERROR.heading,
    TRIED,
    untuned_heading(CHRF),
)
"""Columns that a terminal of 80 characters has no room for; report.md has them."""


def print_table(table: Table, console: rich.console.Console | None = None) -> None:
    """Prints the results, their notes, and the trials without a result."""
    console = console or rich.console.Console()
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
    for part in [*grids, *notes, *problems, *finding]:
        # Other programs read a pipe by its lines, so these are not wrapped.
        console.print(part, soft_wrap=not is_drawn)


def plain_columns(
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


def drawn_table() -> rich.table.Table:
    """Returns an empty table in the style of all that are drawn."""
    return rich.table.Table(
        box=rich.box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0)
    )


def _drawn(results) -> rich.table.Table:
    grid = drawn_table()
    columns = _narrow_columns(results)
    for i in columns:
        heading = results.headings[i]
        is_text = i == 0 or heading in _TEXTS
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
    left = [i == 0 or results.headings[i] in _TEXTS for i in columns]
    return plain_columns(lines, left)


def _narrow_columns(results) -> list[int]:
    headings = enumerate(results.headings)
    return [i for i, heading in headings if heading not in _WIDE_ONLY]
