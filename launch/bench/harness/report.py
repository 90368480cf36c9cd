"""Draws tables, and writes them with every number and where it was measured."""

import dataclasses
import datetime
import functools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import rich.box
import rich.console
import rich.table
import rich.text

from experiments.system import machine
from experiments.system.files import write_json, write_text
from launch.bench.harness import libraries


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
    # Markdown reads some characters of names as its own.
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


def write(
    directory: Path,
    command: str,
    tables: Sequence[Table],
    results: dict,
    *,
    remark: str = "",
    packages: tuple[str, ...] = (),
) -> list[Path]:
    """Writes the tables as table.md and `results` as results.json; returns both paths.

    Args:
      directory: where the files go.
      command: the name of the benchmark, which is the heading too.
      tables: the tables, in their order.
      results: every number, to stand beside when, where and with what it was measured.
      remark: a sentence after the one that names the machine.
      packages: packages whose versions are given beside those of `PACKAGES`.
    """
    ran = _circumstances(command, packages)
    known = [
        f"{name} {version}" for name, version in ran["versions"].items() if version
    ]
    where = f"{ran['device']}, threads: {ran['threads']}; {', '.join(known)}."
    origin = f"`{ran['command']}`, {ran['date'][:10]}, commit {ran['git_commit']}."
    head = [f"# {command}", "", origin, "", f"{where} {remark}".strip(), ""]
    paths = [directory / "table.md", directory / "results.json"]
    write_text(paths[0], "\n".join([*head, *map(markdown, tables)]))
    write_json(paths[1], {**ran, **results})
    return paths


def _circumstances(command, packages):
    now = datetime.datetime.now(datetime.UTC)
    # The name was taken off sys.argv before the flags were parsed.
    words = ["python", "-m", "launch.bench", command, *sys.argv[1:]]
    return {
        "command": shlex.join(words),
        "date": now.isoformat(timespec="seconds"),
        "git_commit": machine.git_commit(),
        "device": _device(),
        "threads": machine.threads(),
        # Whether there were huge pages, without which large arrays take much longer.
        "GLIBC_TUNABLES": os.environ.get("GLIBC_TUNABLES"),
        "versions": libraries.versions(packages),
    }


@functools.cache
def _device():
    """Returns the kind of the device that was measured, with a CPU's model."""
    if libraries.platform() == libraries.CPU:
        return machine.device()
    # Asks another process: this one leaves accelerators to those that are measured.
    question = "from experiments.system import machine; print(machine.device())"
    asked = subprocess.run(
        [sys.executable, "-c", question],
        env={**os.environ, **libraries.environment(machine.threads())},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return asked.stdout.strip()
