"""Times attention on the CPU, library against library, and tells of it in tables and a picture."""

import dataclasses
import functools
from pathlib import Path

import rich.console

from experiments.files import write_bytes, write_json, write_text
from launch.bench import cases, pictures, rounds
from launch.bench.cases import Case
from launch.bench.grids import Grid, markdown
from launch.bench.rounds import BASE, Cell, circumstances, number, ratio, where


def run(names: list[str], chosen: list[Case], turns: int, directory: Path,
        console: rich.console.Console) -> list[Path]:
    """Times `chosen` on the peers `names`; shows each table as it is done and writes all so far into `directory`.

    Returns the files.
    """
    return rounds.run("attention", names, chosen, turns, console, grid=grid, write=functools.partial(write, directory))


def grid(group: str, results: dict[Case, dict[str, Cell]]) -> Grid:
    """The table of a group: a row a peer, and for each pass time and memory, each with its ratio to attn's."""
    headings = [text for case in results for text in (f"{case.direction}, ms", f"to {BASE}", "MiB", f"to {BASE}")]
    found = Grid(_title(group, next(iter(results))), ("", *headings))
    for name in next(iter(results.values())):
        row = [text for cells in results.values() for text in _texts(found, name, cells)]
        found.rows.append((name, *row))
    return found


def _title(group, case):
    sizes = f"batch {case.b}, {case.h} heads, n {case.n}, d {case.d}"
    shown = {"full": "", "causal": ", causal", "window": f", window of {cases.WINDOW} on each side"}[case.mask]
    return f"{group}: {case.score.replace('_', ' ')}{shown}; {sizes}"


def _texts(found, name, cells):
    """A peer's four cells of one case."""
    cell, base = cells[name], cells.get(BASE, Cell())
    if cell.median is None:
        return rounds.absent(found, name, cell), "", "", ""
    time_text = number(1e3 * cell.median)
    if cell.by_hand:
        time_text = found.noted(time_text, "no such score in the library: written around it by hand")
    memory_text = rounds.mebibytes(cell)
    if cell.temporary_bytes is None and cell.memory is not None:
        memory_text = found.noted(memory_text, "the growth of the process's memory in a call; for the others that or "
                                               "the compiler's account, whichever is larger")
    return time_text, ratio(cell.median, base.median), memory_text, ratio(cell.memory, base.memory)


def write(directory: Path, results: dict[Case, dict[str, Cell]], grids: list[Grid]) -> list[Path]:
    """Writes the tables, a picture and every timing; returns the files."""
    written = [directory / name for name in ("table.md", "picture.png", "results.json")]
    text = ["# Attention: time and memory", "", f"{where()} Medians; float32.", "", *(markdown(one) for one in grids)]
    write_text(written[0], "\n".join(text))
    write_bytes(written[1], pictures.over_n(results))
    write_json(written[2], {**circumstances("attention"), "cases": [
        {"name": case.name, **dataclasses.asdict(case), "peers": rounds.entries(cells)}
        for case, cells in results.items()]})
    return written
