"""Times a training step of the Transformer, and each library's way to its first."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import rich.console
from absl import flags

from experiments.system import machine
from launch.bench.harness import cold_start, record, run
from launch.bench.harness.benchmark import Benchmark, Outcome, Request
from launch.bench.harness.cold_start import Start
from launch.bench.harness.libraries import Library
from launch.bench.harness.run import BASE, Cell
from launch.bench.harness.table import Table, mebibytes, number, ratio, show
from launch.bench.training.case import CASE, LIBRARIES, TINY, Case

BUDGET = 90.0
"""Seconds for all turns: a step takes a second or two."""

NOTES = {
    "attn": "dropout in the paper's places: sub-layer outputs and sums of embeddings "
    "and positions. Its own step, as launch.train runs it: packed rows, here of one "
    "sentence",
    "attn:as-torch": "dropout also of attention weights and hidden units, as "
    "torch.nn.Transformer has it",
    "torch": "torch.nn.Transformer, eager, the causal mask announced and no padding "
    "mask; its own dropout places and a LayerNorm after each stack; torch.optim.Adam",
    "torch:as-paper": "dropout of attention weights and hidden units turned off",
    "flax": "flax.linen, jitted: MultiHeadDotProductAttention, Dropout in the paper's "
    "places, one-hot labels, optax.adam",
    "flax:as-torch": "dropout also of attention weights (one mask for all heads and "
    "sentences, flax's default) and hidden units",
    "products": "the matrix products of a step alone, forward and backward, in JAX, the "
    "logits written",
}
STARTS = {
    "compile, s": "the first step, less the median of those timed",
    "start, s": "from the start of a process to the end of its first step, its "
    "compile cache empty",
    "cached, s": "the same again, the cache filled",
}


def define_flags() -> None:
    """Defines --starts."""
    flags.DEFINE_boolean(
        "starts", True, "Time the way from a process's start to its first step too"
    )


def measure(request: Request) -> Outcome:
    """Times the step on the libraries, then their starts."""
    (case,) = request.cases
    arguments = (request.rounds, request.directory, request.console)
    starts = request.flags.starts
    return Outcome(measure_case(request.libraries, *arguments, case, starts))


def measure_case(
    libraries: Mapping[str, Library],
    turns: int,
    directory: Path,
    console: rich.console.Console,
    case: Case = CASE,
    with_starts: bool = True,
) -> list[Path]:
    """Times one case; shows the table, writes it and returns the files."""
    names = list(libraries)
    with run.workers(libraries) as running, console.status(case.name) as status:
        cells = run.run_case(case, names, running, turns, status.update, BUDGET)
    starts = {}
    with console.status("starts") as status:
        # After the workers have ended, so that a start has the machine to itself.
        for name, cell in cells.items():
            # The time to compile is what the first step takes beyond the median.
            if with_starts and cell.median is not None:
                arguments = (libraries[name].module, name, case, machine.threads())
                starts[name] = cold_start.measure(*arguments, status.update)
    filled = table(case, cells, starts)
    files = record.write(
        directory,
        "train",
        title="Training",
        tables=[filled],
        results={
            "case": dataclasses.asdict(case),
            "peers": run.entries(cells),
            "starts": {name: start._asdict() for name, start in starts.items()},
        },
        remark="Medians; float32; huge pages for all.",
    )
    show(filled, console)
    return files


def table(case: Case, cells: dict[str, Cell], starts: dict[str, Start]) -> Table:
    """Returns the table, a row a library.

    It has speed and memory, with ratios to attn's, and the seconds to the first step.
    """
    title = (
        f"step: {case.described}, dropout {case.P_drop}, Adam; {case.pairs} pairs of "
        f"{case.tokens} + {case.tokens} tokens"
    )
    headings = ("", "ms", f"to {BASE}", "tokens/s", "target tokens/s")
    filled = Table(title, (*headings, "MiB", f"to {BASE}"))
    # Now, because notes are numbered by the table that has them.
    filled.headings += tuple(filled.noted(*item) for item in STARTS.items())
    for name in cells:
        label = filled.noted(name, NOTES[name])
        texts = _texts(filled, case, name, cells, starts.get(name))
        filled.rows.append((label, *texts))
    return filled


def _texts(filled, case, name, cells, start):
    cell = cells[name]
    # --peers may leave attn out; then there are no ratios.
    base = cells.get(BASE, Cell())
    if cell.median is None:
        return [run.absent(filled, name, cell), *[""] * 8]
    target_tokens = case.pairs * case.tokens / cell.median
    return [
        number(1e3 * cell.median),
        ratio(cell.median, base.median),
        # All sentences have one length, on both sides.
        number(2 * target_tokens),
        number(target_tokens),
        mebibytes(cell.memory),
        ratio(cell.memory, base.memory),
        *_start_texts(filled, name, cell, start),
    ]


def _start_texts(filled, name, cell, start):
    if start is None:
        return ["", "", ""]
    if start.why:
        return [filled.noted("—", f"{name}: {start.why}"), "", ""]
    # Noise may make it negative where nothing is compiled, as in eager PyTorch.
    compile_seconds = max(0.0, start.call - cell.median)
    return [number(compile_seconds), number(start.cold), number(start.cached)]


BENCHMARK = Benchmark(
    name="train",
    cases=(CASE,),
    tiny=(TINY,),
    run=measure,
    table=table,
    libraries=LIBRARIES,
    compared=(
        "attn",
        "attn:as-torch",
        "torch",
        "torch:as-paper",
        "flax",
        "flax:as-torch",
        "products",
    ),
    rounds_flag=True,
    define_flags=define_flags,
)
