"""Holds a table of text, drawn on a terminal and written as Markdown."""

import dataclasses
import re

import rich.box
import rich.console
import rich.table
import rich.text


@dataclasses.dataclass
class Table:
    """Holds cells of text under headings, and notes in the order of their first use."""

    title: str
    headings: tuple[str, ...]
    rows: list[tuple[str, ...]] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)

    def noted(self, cell: str, note: str) -> str:
        """Returns `cell` with the number of `note`; equal notes share a number."""
        if note not in self.notes:
            self.notes.append(note)
        return f"{cell} [{self.notes.index(note) + 1}]"


def show(table: Table, console: rich.console.Console) -> None:
    """Draws the table and its notes."""
    grid = rich.table.Table(
        title=table.title,
        title_justify="left",
        title_style="bold",
        box=rich.box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for column, heading in enumerate(table.headings):
        justify = "right" if column else "left"
        # Numbers may not wrap, as half a number reads as another.
        grid.add_column(heading, justify=justify, no_wrap=column > 0)
    for row in table.rows:
        # Text, as a plain string would have its brackets read as markup.
        grid.add_row(*map(rich.text.Text, row))
    console.print(grid)
    for index, note in enumerate(table.notes, 1):
        line = rich.text.Text(f"[{index}] {note}", style="dim")
        # The terminal wraps it, so that a copied note is one line.
        console.print(line, soft_wrap=True)
    console.print()


def markdown(table: Table) -> str:
    """Returns the table under a heading of level 2, its notes as a numbered list."""
    rule = ["---", *["---:"] * (len(table.headings) - 1)]
    lines = [_line(map(_escaped, table.headings)), _line(rule)]
    lines += [_line(map(_escaped, row)) for row in table.rows]
    notes = [f"{index}. {_escaped(note)}" for index, note in enumerate(table.notes, 1)]
    return "\n".join([f"## {table.title}", "", *lines, "", *notes, ""])


def _line(cells):
    return f"| {' | '.join(cells)} |"


def _escaped(text):
    # Names such as attn:jax_nn have characters that Markdown reads as its own.
    return re.sub(r"([|<>*_`\[\]])", r"\\\1", text)


def number(value: float) -> str:
    """Returns the value with two significant digits at least and no exponent."""
    # From here on, and from 0.95 on, rounding gives a digit more before the point.
    if value >= 99.5:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 0.95 else f"{value:.2g}"


def ratio(value: float | None, base: float | None) -> str:
    """Returns value / base as "3.4x", "" where either is missing or base is 0."""
    if value is None or not base:
        return ""
    return f"{number(value / base)}x"


def mebibytes(count: int | None) -> str:
    """Returns a number of bytes in MiB, "—" where it is not known."""
    return "—" if count is None else number(count / 2**20)
