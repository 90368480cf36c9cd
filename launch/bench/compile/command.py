"""Compiles attention and the programs of every config for devices that are not here.

Each target has a process of its own, with the compiler that it needs: libtpu for TPUs
(`pip install '.[compile-tpu]'`), JAX's CUDA plugin for GPUs (`pip install
'.[compile-cuda]'`).
"""

import dataclasses
import itertools
from collections.abc import Mapping

from absl import flags

from experiments.sweep.plan import group_trials, plan_trials
from experiments.sweep.points import expand, load_config, sweeps_of
from launch import command, config_flag
from launch.bench.compile import compiler, worker
from launch.bench.compile.case import AttentionCase, ProgramCase
from launch.bench.compile.compiler import Compiled
from launch.bench.compile.configs import config_of, every_config
from launch.bench.compile.targets import TARGETS
from launch.bench.harness import record
from launch.bench.harness.benchmark import Benchmark, Outcome, Request
from launch.bench.harness.process import Failed
from launch.bench.harness.table import Table, mebibytes, number, show

# In the order of ATTENTION's table: all forms at one length, then the longest ones.
FORMS = [
    AttentionCase(score, 2048, mask, direction)
    for score, mask, direction in itertools.product(
        ("scaled_dot", "additive"),
        ("full", "causal", "window", "padding", "segments"),
        ("forward", "gradient"),
    )
]
CHOSEN = [
    AttentionCase("scaled_dot", 2048, mask, direction, None)
    for mask, direction in itertools.product(
        ("full", "causal", "local", "padding"), ("forward", "gradient")
    )
]
OTHERS = [
    AttentionCase("scaled_dot", 2048, "causal", "gradient", "reference"),
    AttentionCase("scaled_dot", 2048, "causal", "gradient", dtype="float32"),
    AttentionCase("bilinear", 2048, "causal", "gradient"),
    AttentionCase("additive", 1024, "full", "gradient", "reference", b=1),
    AttentionCase("additive", 1024, "full", "gradient", b=1),
]
LONG = [
    AttentionCase("scaled_dot", n, "causal", direction)
    for n, direction in itertools.product((8192, 65_536), ("forward", "gradient"))
]
ATTENTION = [*FORMS, *CHOSEN, *OTHERS, *LONG]

BFLOAT16 = (("training.precision", "bfloat16"),)


def _programs():
    """Returns a step of every config, and quick.py's in all ways."""
    cases = [ProgramCase(config) for config in every_config()]
    quick = "experiments/configs/quick.py"
    cases += [ProgramCase(quick, part=part) for part in ("losses", "search")]
    cases += [
        ProgramCase(quick, strategy="shard_map"),
        ProgramCase(quick, lanes=4),
        ProgramCase(quick, BFLOAT16),
        ProgramCase("experiments/configs/table3.py:tiny", lanes=16),
        ProgramCase("experiments/configs/paper.py:base", BFLOAT16),
        ProgramCase("experiments/configs/paper.py:big", BFLOAT16),
    ]
    return cases


TINY = [
    AttentionCase("scaled_dot", 256, "causal", "gradient", b=1, h=2),
    AttentionCase("additive", 256, "full", "forward", b=1, h=2),
]

NOTES = {
    "HBM": "MiB of a device beside arguments and results",
    "in all": "MiB of a device with arguments, results and the program",
    "donated": "of the results, which are written over arguments",
    "cycles": "millions, as the compiler estimates; the body of a loop counts once",
    "collectives": "operations in which devices exchange numbers",
    "spills": "kernels whose registers do not suffice",
}


def define_flags() -> None:
    """Defines --for, --config and --sweep."""
    flags.DEFINE_list(
        "for", ["v5e", "h100"], f"Devices to compile for, of {', '.join(TARGETS)}"
    )
    config_flag.define_config()
    flags.DEFINE_list(
        "sweep",
        [],
        "With --config, whose programs alone are then compiled: sweeps whose groups are",
    )


def measure(request: Request) -> Outcome:
    """Compiles the cases for each target; shows and writes a table for each."""
    names = request.flags["for"].value
    cases = _cases(request)
    for check in (worker.check_name, worker.library):
        for name in names:
            check(name)
    results = {name: {} for name in names}
    files = []
    for name in results:
        compiling = worker.start(name)
        try:
            for case in cases:
                with request.console.status(f"{name}: {case.name}"):
                    results[name][case] = _compile(compiling, case)
                # Each may take minutes, and a table in the making is of use.
                files = _write(request, results)
        finally:
            compiling.stop()
        show(table(name, results[name]), request.console)
    return Outcome(files)


def _cases(request):
    """Returns the cases that the flags ask for."""
    values = request.flags
    if values.config is None:
        if values.sweep:
            command.mistake(
                "--sweep needs --config=FILE, the config whose sweeps it names"
            )
        return request.cases
    path = config_flag.config_path()
    known = sweeps_of(load_config(path))
    overrides = config_flag.overrides()
    # A process that compiles reads the file itself, and has the flags as part of the point.
    points = [overrides | point for point in expand(known, values.sweep, values.config)]
    trials = plan_trials(config_of(path), points)
    # One trial stands for all that share its program.
    groups = group_trials(trials)
    return [ProgramCase(path, tuple(group[0].point.items())) for group in groups]


def _compile(compiling, case):
    try:
        return compiling.call(compiler.Compiler.compile, case)
    except Failed as error:
        return Compiled(why_not=str(error))


def _write(request, results):
    tables = [table(name, compiled) for name, compiled in results.items() if compiled]
    return record.write(
        request.directory,
        "compile",
        title="Compiled for accelerators",
        tables=tables,
        results={
            name: {case.name: dataclasses.asdict(c) for case, c in cells.items()}
            for name, cells in results.items()
        },
        packages=("libtpu", "jax-cuda12-plugin"),
    )


def table(target: str, results: Mapping) -> Table:
    """Returns the table of one target, a row a case."""
    filled = Table(target, ())
    headings = [filled.noted(*pair) for pair in NOTES.items()]
    filled.headings = (target, "lower, s", "compile, s", *headings)
    for case, compiled in results.items():
        if compiled.why_not:
            shown = filled.noted("no", compiled.why_not)
            filled.rows.append((case.name, "", shown, *[""] * len(NOTES)))
            continue
        filled.rows.append((case.name, *_cells(compiled)))
    return filled


def _cells(compiled):
    donated = compiled.donated_bytes / max(1, compiled.output_bytes)
    cycles = "" if compiled.cycles is None else number(compiled.cycles / 1e6)
    return (
        number(compiled.lowering_seconds),
        number(compiled.seconds),
        mebibytes(compiled.temporary_bytes),
        mebibytes(compiled.bytes),
        f"{donated:.0%}",
        cycles,
        str(compiled.collectives),
        "" if compiled.spills is None else str(compiled.spills),
    )


BENCHMARK = Benchmark(
    name="compile",
    cases=[*ATTENTION, *_programs()],
    tiny=TINY,
    run=measure,
    table=table,
    cases_flag=True,
    define_flags=define_flags,
)
