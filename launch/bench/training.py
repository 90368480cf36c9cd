"""Times a training step of the Transformer, library against library, and how long each takes to come to its first."""

import dataclasses
from pathlib import Path

import rich.console

from experiments.files import write_json, write_text
from launch.bench import rounds, starting
from launch.bench.grids import Grid, markdown, show
from launch.bench.peers import ADAPTERS
from launch.bench.rounds import BASE, Cell, number, ratio
from launch.bench.starting import Start
from launch.bench.steps import Case

BUDGET = 90.0
"""Seconds for all turns: a step takes a second or two."""


def run(names: list[str], turns: int, directory: Path, console: rich.console.Console,
        case: Case = Case()) -> list[Path]:
    """Times the step on the peers `names`, then their starts; shows the table, writes it and returns the files."""
    with rounds.workers("train", names) as workers, console.status(case.name) as status:
        cells = rounds.run_case(case, names, workers, turns, status.update, BUDGET)
    with console.status("starts") as status:
        starts = {name: starting.measure(ADAPTERS["train"][name], name, case, rounds.threads(), status.update)
                  for name, cell in cells.items() if cell.median is not None}
    table = grid(case, cells, starts)
    written = [directory / "table.md", directory / "results.json"]
    write_text(written[0], f"# Training\n\n{rounds.where()} Medians; float32; huge pages for all.\n\n"
                           f"{markdown(table)}")
    write_json(written[1], {**rounds.circumstances("train"), "case": dataclasses.asdict(case),
                            "peers": rounds.entries(cells),
                            "starts": {name: start._asdict() for name, start in starts.items()}})
    show(table, console)
    return written


NOTES = {
    "attn": "dropout in the paper's places: sub-layer outputs and sums of embeddings and positions. Its own step, as "
            "launch.train runs it: packed rows, here of one sentence",
    "attn:as-torch": "dropout also of attention weights and hidden units, as torch.nn.Transformer has it",
    "torch": "torch.nn.Transformer, eager, the causal mask announced and no padding mask; its own dropout places and a "
             "LayerNorm after each stack; torch.optim.Adam",
    "torch:as-paper": "dropout of attention weights and hidden units turned off",
    "flax": "flax.linen, jitted: MultiHeadDotProductAttention, Dropout in the paper's places, one-hot labels, "
            "optax.adam",
    "flax:as-torch": "dropout also of attention weights (one mask for all heads and sentences, flax's default) and "
                     "hidden units",
}
STARTS = {
    "compile, s": "the first step, less the median of those timed",
    "start, s": "from the start of a process to the end of its first step, its compile cache empty",
    "cached, s": "the same again, the cache filled",
}


def grid(case: Case, cells: dict[str, Cell], starts: dict[str, Start]) -> Grid:
    """A row a peer: its speed and memory, with ratios to attn's, and its seconds to the first step."""
    title = (f"step: {case.N}+{case.N} layers, d_model {case.d_model}, d_ff {case.d_ff}, h {case.h}, vocabulary "
             f"{case.vocabulary:,}, dropout {case.P_drop}, Adam; {case.pairs} pairs of {case.pieces} + {case.pieces} "
             "pieces")
    found = Grid(title, ("", "ms", f"to {BASE}", "tokens/s", "target tokens/s", "MiB", f"to {BASE}"))
    found.headings += tuple(found.noted(text, note) for text, note in STARTS.items())
    for name in cells:
        found.rows.append((found.noted(name, NOTES[name]), *_texts(found, case, name, cells, starts.get(name))))
    return found


def _texts(found, case, name, cells, start):
    cell, base = cells[name], cells.get(BASE, Cell())
    if cell.median is None:
        return rounds.absent(found, name, cell), *[""] * 8
    tokens = case.pairs * case.pieces / cell.median
    begins = [found.noted("—", f"{name}: {start.why}"), "", ""] if start.why else [
        number(max(0.0, start.call - cell.median)), number(start.cold), number(start.cached)]
    return (number(1e3 * cell.median), ratio(cell.median, base.median), number(2 * tokens), number(tokens),
            rounds.mebibytes(cell), ratio(cell.memory, base.memory), *begins)
