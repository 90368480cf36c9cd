"""Compiles attention and the programs of every config for devices that are not here."""

import dataclasses
import itertools
from collections.abc import Mapping

from absl import flags

from experiments.system.compiler import TARGETS, Compiled, Compiler, check_target
from launch.bench.compile.attention import AttentionCase
from launch.bench.compile.programs import ProgramCase, every_config
from launch.bench.harness import report
from launch.bench.harness.benchmark import Benchmark, Outcome, Request
from launch.bench.harness.report import Table, mebibytes, number

PASSES = ("forward", "gradient")


def _attention(scores, masks, directions=PASSES, **options):
    n = options.pop("n", 2048)
    products = itertools.product(scores, masks, directions)
    return [AttentionCase(score, n, *rest, **options) for score, *rest in products]


ATTENTION = [
    *_attention(
        ("scaled_dot", "additive"), ("full", "causal", "window", "padding", "segments")
    ),
    # What attention picks itself.
    *_attention(
        ("scaled_dot",), ("full", "causal", "local", "padding"), implementation=None
    ),
    *_attention(("scaled_dot",), ("packed",), implementation=None, b=4, h=16),
    *_attention(("scaled_dot",), ("causal",), PASSES[1:], implementation="reference"),
    *_attention(("scaled_dot",), ("causal",), PASSES[1:], dtype="float32"),
    *_attention(("bilinear",), ("causal",), PASSES[1:]),
    *_attention(
        ("additive",), ("full",), PASSES[1:], n=1024, b=1, implementation="reference"
    ),
    *_attention(("additive",), ("full",), PASSES[1:], n=1024, b=1),
    *_attention(("scaled_dot",), ("causal",), n=8192),
    *_attention(("scaled_dot",), ("causal",), n=65_536),
    # By the kernels of our own.
    *_attention(("scaled_dot",), ("causal",), implementation="pallas"),
    *_attention(("scaled_dot",), ("causal",), implementation="pallas", d=128),
    *_attention(("scaled_dot",), ("packed",), implementation="pallas", b=4, h=16),
    *_attention(("additive",), ("full",), implementation="pallas"),
]
TINY = [
    AttentionCase("scaled_dot", 256, "causal", "gradient", b=1, h=2),
    AttentionCase("additive", 256, "full", "forward", b=1, h=2),
]


def _programs():
    """Returns a step of every config, and some in other ways."""
    quick = "experiments/configs/quick.py"
    bfloat16 = (("training.precision", "bfloat16"),)
    tiny = "experiments/configs/table3.py:tiny"
    return [
        *map(ProgramCase, every_config()),
        *(ProgramCase(quick, part=part) for part in ("losses", "search")),
        ProgramCase(quick, (("training.strategy", "shard_map"),)),
        ProgramCase(quick, lanes=4),
        ProgramCase(quick, bfloat16),
        ProgramCase(tiny, bfloat16),
        ProgramCase(tiny, lanes=16),
        ProgramCase(tiny, bfloat16, lanes=16),
        ProgramCase("experiments/configs/paper.py:base", bfloat16),
        # As many tokens in shorter rows.
        ProgramCase(
            "experiments/configs/paper.py:base",
            (
                *bfloat16,
                ("training.batch_size", 416),
                ("training.sequence_length", 64),
                ("data.max_length", 64),
                ("evaluation.max_length", 64),
            ),
        ),
        ProgramCase("experiments/configs/paper.py:big", bfloat16),
    ]


NOTES = {
    "HBM": "MiB of a device beside arguments and results",
    "in all": "MiB of a device with arguments, results and the program",
    "donated": "of the results, which are written over arguments",
    "cycles": "millions, as the compiler estimates; the body of a loop counts once",
    "collectives": "operations in which devices exchange numbers",
    "spills": "kernels whose registers do not suffice",
    "registers": "of a thread of a GPU's kernel of our own, of 255",
    "kernels": "that a GPU starts one after another; a loop's as often as it turns, where "
    "that is known",
    "GB": "that kernels read and write, 10⁹ bytes",
    "turns": "of loops, one after another",
}


def define_flags() -> None:
    """Defines --for."""
    known = f"Devices to compile for, of {', '.join(TARGETS)}"
    flags.DEFINE_list("for", ["v5e", "h100"], known)


def measure(request: Request) -> Outcome:
    """Compiles the cases for each target; shows and writes a table for each."""
    names = request.flags["for"].value
    for name in names:
        check_target(name)
    results = {name: {} for name in names}
    files = []
    for name, compiled in results.items():
        compiler = Compiler(name)
        try:
            for case in request.cases:
                with request.console.status(f"{name}: {case.name}"):
                    compiled[case] = compiler.compile(build, case)
                # Each may take minutes, and a table in the making is of use.
                files = _write(request, results)
        finally:
            compiler.stop()
        report.show(table(name, compiled), request.console)
    return Outcome(files)


def build(case, devices):
    """Returns the function of a case and the shapes of its arguments."""
    return case.build(devices)


def _write(request, results):
    tables = [table(name, compiled) for name, compiled in results.items() if compiled]
    numbers = {
        name: {case.name: dataclasses.asdict(c) for case, c in cells.items()}
        for name, cells in results.items()
    }
    packages = ("libtpu", "jax-cuda12-plugin")
    return report.write(
        request.directory, "compile", tables, numbers, packages=packages
    )


def table(target: str, results: Mapping) -> Table:
    """Returns the table of one target, a row a case."""
    filled = Table(target, ())
    headings = [filled.noted(*pair) for pair in NOTES.items()]
    filled.headings = (target, "lower, s", "compile, s", *headings)
    for case, compiled in results.items():
        filled.rows.append((case.name, *_cells(filled, compiled)))
    return filled


def _cells(filled, compiled: Compiled):
    if compiled.why_not:
        return "", filled.noted("no", compiled.why_not), *[""] * len(NOTES)
    donated = compiled.donated_bytes / max(1, compiled.output_bytes)
    return (
        number(compiled.lowering_seconds),
        number(compiled.seconds),
        mebibytes(compiled.temporary_bytes),
        mebibytes(compiled.bytes),
        f"{donated:.0%}",
        "" if compiled.cycles is None else number(compiled.cycles / 1e6),
        str(compiled.collectives),
        "" if compiled.spills is None else str(compiled.spills),
        "" if compiled.registers is None else str(compiled.registers),
        *_work(compiled.work),
    )


def _work(work):
    if work is None:
        return "", "", ""
    return f"{work.kernels:,}", number(work.bytes / 1e9), f"{work.turns:,}"


BENCHMARK = Benchmark(
    name="compile",
    run=measure,
    cases=[*ATTENTION, *_programs()],
    tiny=TINY,
    define_flags=define_flags,
)
