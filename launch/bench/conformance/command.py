"""Tries each line of attention's contract on each library, in its own process.

No verdict is written down anywhere: each is computed when the command runs.
"""

import dataclasses

from launch.bench.attention.cases import LIBRARIES, NORMALISERS
from launch.bench.attention.command import define_flags
from launch.bench.conformance.contract import LINES, TINY, Verdict, attempt
from launch.bench.harness import record
from launch.bench.harness.benchmark import Benchmark, Outcome, Request
from launch.bench.harness.process import Failed
from launch.bench.harness.run import workers
from launch.bench.harness.table import Table, show


def measure(request: Request) -> Outcome:
    """Tries every line on the libraries; shows the table and writes it."""
    lines = request.cases
    libraries = NORMALISERS if request.flags.normalisers else request.libraries
    name = "normalisers" if request.flags.normalisers else "conformance"
    verdicts = {line: {} for line in lines}
    with workers(libraries) as running:
        for library in libraries:
            with request.console.status(library) as status:
                for index, line in enumerate(lines, 1):
                    status.update(f"{library}: {line} ({index} of {len(lines)})")
                    verdicts[line][library] = _ask(running.get(library), line)
    filled = table(verdicts)
    show(filled, request.console)
    files = record.write(
        request.directory,
        "conformance",
        title="Conformance",
        tables=[filled],
        results={"lines": {line: _entry(verdicts[line]) for line in lines}},
        stems=(name, name),
    )
    return Outcome(files)


def _ask(worker, line):
    if worker is None:
        return Verdict("absent", "not installed")
    try:
        return worker.call(attempt, line)
    except Failed as error:
        # A process that died says nothing of the line itself.
        return Verdict("cannot", str(error))


def _entry(verdicts):
    return {name: dataclasses.asdict(verdict) for name, verdict in verdicts.items()}


def table(verdicts: dict[str, dict[str, Verdict]]) -> Table:
    """Returns the table line × library, with a note for each finding."""
    filled = Table("Attention's contract", ("", *next(iter(verdicts.values()))))
    for line, by_name in verdicts.items():
        row = [line]
        for verdict in by_name.values():
            text = verdict.kind
            if verdict.finding:
                text = filled.noted(text, verdict.finding)
            row.append(text)
        filled.rows.append(tuple(row))
    return filled


BENCHMARK = Benchmark(
    name="conformance",
    cases=tuple(LINES),
    tiny=TINY,
    run=measure,
    table=table,
    libraries=LIBRARIES,
    define_flags=define_flags,
    compared=(
        "attn:reference",
        "attn:tiled",
        "attn:jax_nn",
        "jax.nn",
        "flax",
        "torch",
    ),
)
