"""Times translation, library against library, with the same weights and sentences."""

import dataclasses
import functools
from pathlib import Path

from launch.bench.decoding.case import CASES, LIBRARIES, TINY, Case
from launch.bench.harness import record, run
from launch.bench.harness.benchmark import Benchmark, Outcome, Request
from launch.bench.harness.run import BASE, Cell
from launch.bench.harness.table import Table, mebibytes, number, ratio

PACKAGES = ("transformers", "ctranslate2")
NOTES = {
    "attn": "attn.models.beam_search, one compiled program",
    "transformers": "generate() of a MarianMTModel, eager",
    "ctranslate2": "compute_type float32; no end mark is forced, so it has one more token "
    "to choose",
    "ctranslate2:one-thread": "the same with one thread, as two may wait for each other "
    "for longer than they save",
}


def measure(request: Request) -> Outcome:
    """Times the cases; shows each table as it is done and writes all so far."""
    files = run.run(
        request.libraries,
        request.cases,
        request.rounds,
        request.console,
        table=table,
        write=functools.partial(write, request.directory),
    )
    return Outcome(files)


def table(group: str, results: dict[Case, dict[str, Cell]]) -> Table:
    """Returns the table of a batch size, a row a library.

    For each beam it has time, speed, memory and agreement.
    """
    case = next(iter(results))
    title = f"{group}: {case.described}; {case.tokens} tokens into {case.tokens}"
    title += "; float32"
    headings = [""]
    for case in results:
        search = f"beam {case.beam}" if case.beam > 1 else "greedy"
        headings += [f"{search}, ms", "tokens/s", f"to {BASE}", "MiB", "same tokens"]
    filled = Table(title, tuple(headings))
    for name in next(iter(results.values())):
        row = []
        for case, cells in results.items():
            row += _texts(filled, case, name, cells)
        filled.rows.append((filled.noted(name, NOTES[name]), *row))
    return filled


def _texts(filled, case, name, cells):
    cell = cells[name]
    # --peers may leave attn out; then there are no ratios.
    base = cells.get(BASE, Cell())
    if cell.median is None:
        return [run.absent(filled, name, cell), "", "", "", ""]
    # The case compares with the first library, which need not be attn.
    first = next(iter(cells))
    note = f"of all tokens before the end mark, those that {first} gives too"
    return [
        number(1e3 * cell.median),
        number(case.batch * case.tokens / cell.median),
        ratio(cell.median, base.median),
        mebibytes(cell.memory),
        filled.noted(f"{1 - cell.error:.1%}", note),
    ]


def write(
    directory: Path, results: dict[Case, dict[str, Cell]], tables: list[Table]
) -> list[Path]:
    """Writes the tables and every timing; returns the files."""
    return record.write(
        directory,
        "decode",
        title="Decoding",
        tables=tables,
        results={"cases": [_entry(case, cells) for case, cells in results.items()]},
        remark="Medians; the same weights in all.",
        packages=PACKAGES,
    )


def _entry(case, cells):
    sizes = dataclasses.asdict(case)
    # The name is a property, which asdict leaves out.
    return {"name": case.name, **sizes, "peers": run.entries(cells)}


BENCHMARK = Benchmark(
    name="decode",
    cases=CASES,
    tiny=TINY,
    run=measure,
    table=table,
    libraries=LIBRARIES,
    compared=("attn", "transformers", "ctranslate2", "ctranslate2:one-thread"),
    cases_flag=True,
    rounds_flag=True,
)
