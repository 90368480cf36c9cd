"""Times translation, library against library, all with the same weights and sentences."""

import dataclasses
import functools
from pathlib import Path

import rich.console

from experiments.files import write_json, write_text
from launch.bench import rounds
from launch.bench.grids import Grid, markdown
from launch.bench.rounds import BASE, Cell, number, ratio
from launch.bench.searches import Case

CASES = tuple(Case(batch, beam) for batch in (32, 1) for beam in (4, 1))
PACKAGES = ("transformers", "ctranslate2")


def run(names: list[str], chosen: list[Case], turns: int, directory: Path,
        console: rich.console.Console) -> list[Path]:
    """Times `chosen` on the peers `names`; shows each table as it is done and writes all so far into `directory`.

    Returns the files.
    """
    return rounds.run("decode", names, chosen, turns, console, grid=grid, write=functools.partial(write, directory))


NOTES = {
    "attn": "attn.decoding, one compiled program",
    "transformers": "generate() of a MarianMTModel, eager",
    "ctranslate2": "compute_type float32; no end mark is forced, so it has one more piece to choose",
}


def grid(group: str, results: dict[Case, dict[str, Cell]]) -> Grid:
    """The table of a batch size: a row a peer, and for each beam time, speed, memory and agreement."""
    case = next(iter(results))
    kinds = [f"beam {case.beam}" if case.beam > 1 else "greedy" for case in results]
    found = Grid(
        f"{group}: {case.N}+{case.N} layers, d_model {case.d_model}, d_ff {case.d_ff}, h {case.h}, vocabulary "
        f"{case.vocabulary:,}; {case.pieces} pieces into {case.pieces}",
        ("", *(text for kind in kinds for text in (f"{kind}, ms", "pieces/s", f"to {BASE}", "MiB", "same pieces"))))
    for name in next(iter(results.values())):
        row = [text for case, cells in results.items() for text in _texts(found, case, name, cells)]
        found.rows.append((found.noted(name, NOTES[name]), *row))
    return found


def _texts(found, case, name, cells):
    cell, base = cells[name], cells.get(BASE, Cell())
    if cell.median is None:
        return rounds.absent(found, name, cell), "", "", "", ""
    first = next(iter(cells))
    same = found.noted(f"{1 - cell.error:.1%}", f"of all pieces before the end mark, those that {first} gives too")
    return (number(1e3 * cell.median), number(case.batch * case.pieces / cell.median), ratio(cell.median, base.median),
            rounds.mebibytes(cell), same)


def write(directory: Path, results: dict[Case, dict[str, Cell]], grids: list[Grid]) -> list[Path]:
    """Writes the tables and every timing; returns the files."""
    written = [directory / "table.md", directory / "results.json"]
    text = ["# Decoding", "", f"{rounds.where(*PACKAGES)} Medians; float32; the same weights in all.", "",
            *map(markdown, grids)]
    write_text(written[0], "\n".join(text))
    write_json(written[1], {**rounds.circumstances("decode", *PACKAGES), "cases": [
        {"name": case.name, **dataclasses.asdict(case), "peers": rounds.entries(cells)}
        for case, cells in results.items()]})
    return written
