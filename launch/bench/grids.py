"""A table in text: built once, then drawn on a terminal and written as Markdown."""

import dataclasses
import re

import rich.box
import rich.console
import rich.table
import rich.text


@dataclasses.dataclass
class Grid:
    """Cells of text under headings; notes are numbered where they are first used."""

    title: str
    headings: tuple[str, ...]
    rows: list[tuple[str, ...]] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)

    def noted(self, cell: str, note: str) -> str:
        """`cell` with the number of `note`; the same note has the same number."""
        if note not in self.notes:
            self.notes.append(note)
        return f"{cell} [{self.notes.index(note) + 1}]"


def show(grid: Grid, console: rich.console.Console) -> None:
    table = rich.table.Table(title=grid.title, title_justify="left", title_style="bold", box=rich.box.SIMPLE_HEAD,
                             pad_edge=False)
    for column, heading in enumerate(grid.headings):
        table.add_column(heading, justify="right" if column else "left", no_wrap=column > 0)
    for row in grid.rows:
        table.add_row(*map(rich.text.Text, row))
    console.print(table)
    for number, note in enumerate(grid.notes, 1):
        console.print(rich.text.Text(f"[{number}] {note}", style="dim"), soft_wrap=True)
    console.print()


def markdown(grid: Grid) -> str:
    rule = ["---", *["---:"] * (len(grid.headings) - 1)]
    notes = [f"{number}. {_escaped(note)}" for number, note in enumerate(grid.notes, 1)]
    rows = [map(_escaped, grid.headings), rule, *(map(_escaped, row) for row in grid.rows)]
    return "\n".join([f"## {grid.title}", "", *(f"| {' | '.join(row)} |" for row in rows), "", *notes, ""])


def _escaped(text):
    return re.sub(r"([|<>*_`\[\]])", r"\\\1", text)
