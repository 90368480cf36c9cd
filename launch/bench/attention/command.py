"""Times attention on the CPU, library against library: tables and a picture."""

import dataclasses
import functools
from pathlib import Path

from absl import flags

from experiments.system.files import write_bytes
from launch.bench.attention import cases, picture
from launch.bench.attention.cases import Case
from launch.bench.harness import record, run
from launch.bench.harness.benchmark import Benchmark, Outcome, Request
from launch.bench.harness.run import BASE, Cell
from launch.bench.harness.table import Table, mebibytes, number, ratio

MASKS = {
    "full": "",
    "causal": ", causal",
    "window": f", window of {cases.WINDOW} on each side",
}
BY_HAND = "no such score in the library: written around it by hand"
GROWTH = (
    "the growth of the process's memory in a call; for the others that or the "
    "compiler's account, whichever is larger"
)


def define_flags() -> None:
    """Defines --normalisers."""
    flags.DEFINE_boolean(
        "normalisers",
        False,
        "Compare attn's normalisers, with their initial parameters, in place of libraries",
    )


def measure(request: Request) -> Outcome:
    """Times the cases; shows each table as it is done and writes all so far."""
    files = run.run(
        cases.NORMALISERS if request.flags.normalisers else request.libraries,
        request.cases,
        request.rounds,
        request.console,
        table=table,
        write=functools.partial(write, request.directory),
    )
    return Outcome(files)


def table(group: str, results: dict[Case, dict[str, Cell]]) -> Table:
    """Returns the table of a group: a row a library.

    For each pass it has time and memory, each with its ratio to attn's.
    """
    headings = [""]
    for case in results:
        headings += [f"{case.direction}, ms", f"to {BASE}", "MiB", f"to {BASE}"]
    filled = Table(_title(group, next(iter(results))), tuple(headings))
    # Every case has a cell of every library, also of one that was left out.
    for name in next(iter(results.values())):
        row = [name]
        for cells in results.values():
            row += _texts(filled, name, cells)
        filled.rows.append(tuple(row))
    return filled


def _title(group, case):
    sizes = f"batch {case.b}, {case.h} heads, n {case.n}, d {case.d}"
    return f"{group}: {case.score.replace('_', ' ')}{MASKS[case.mask]}; {sizes}"


def _texts(filled, name, cells):
    """Returns the four texts of a library in one case."""
    cell = cells[name]
    # --peers may leave attn out; then there are no ratios.
    base = cells.get(BASE, Cell())
    if cell.median is None:
        return [run.absent(filled, name, cell), "", "", ""]
    time_text = number(1e3 * cell.median)
    if cell.by_hand:
        time_text = filled.noted(time_text, BY_HAND)
    memory_text = mebibytes(cell.memory)
    # Such a number has one account alone, so a reader should know which.
    if cell.temporary_bytes is None and cell.memory is not None:
        memory_text = filled.noted(memory_text, GROWTH)
    return [
        time_text,
        ratio(cell.median, base.median),
        memory_text,
        ratio(cell.memory, base.memory),
    ]


def write(
    directory: Path, results: dict[Case, dict[str, Cell]], tables: list[Table]
) -> list[Path]:
    """Writes the tables, a picture and every timing; returns the files."""
    text, numbers = record.write(
        directory,
        "attention",
        title="Attention: time and memory",
        tables=tables,
        results={"cases": [_entry(case, cells) for case, cells in results.items()]},
        remark="Medians; float32.",
    )
    image = directory / "picture.png"
    write_bytes(image, picture.over_n(results))
    return [text, image, numbers]


def _entry(case, cells):
    sizes = dataclasses.asdict(case)
    # The name is a property, which asdict leaves out.
    return {"name": case.name, **sizes, "peers": run.entries(cells)}


BENCHMARK = Benchmark(
    name="attention",
    cases=cases.CASES,
    tiny=cases.TINY,
    run=measure,
    table=table,
    libraries=cases.LIBRARIES,
    compared=("attn", "jax.nn", "flax", "textbook", "torch"),
    cases_flag=True,
    rounds_flag=True,
    define_flags=define_flags,
)
