"""Measures on a GPU that is lent for minutes: training steps, lanes and attention.

Each case of each library has a process of its own. All compile at once, as that takes
processor cores and little of the device; when all are ready, or a share of the minutes is
over, each times alone, those that matter most first.
"""

import concurrent.futures
import dataclasses
import time

from absl import flags

from experiments.system import machine
from launch.bench.attention.cases import BFLOAT16
from launch.bench.attention.cases import LIBRARIES as ATTENTION
from launch.bench.attention.cases import TINY as TINY_ATTENTION
from launch.bench.harness import report, run
from launch.bench.harness.benchmark import Benchmark, Outcome, Request
from launch.bench.harness.libraries import installed
from launch.bench.harness.run import Cell
from launch.bench.harness.worker import Worker
from launch.bench.training.case import CASE, Case
from launch.bench.training.case import LIBRARIES as TRAINING
from launch.bench.training.case import TINY as TINY_STEP

TURNS = 3
COMPILING = 0.55
"""The share of the minutes after which those time that have compiled."""

_BASE = Case(
    name="base",
    N=6,
    d_model=512,
    d_ff=2048,
    h=8,
    vocabulary=37_000,
    pairs=104,
    tokens=256,
    P_drop=0.1,
    precision="bfloat16",
)


def _lanes(count):
    return dataclasses.replace(CASE, name=f"tiny, {count} lanes", lanes=count)


STEPS = (
    _BASE,
    dataclasses.replace(_BASE, name="base of 64 tokens", pairs=416, tokens=64),
    *map(_lanes, (1, 4, 16, 64)),
)
PEERS = {
    "steps": ("attn", "flax", "torch:as-paper", "torch:compiled"),
    "attention": ("attn", "attn:blocks", "jax.nn", "textbook", "torch", "torch:flex"),
}


def define_flags() -> None:
    """Defines --minutes."""
    flags.DEFINE_float("minutes", 3.0, "What all may take", lower_bound=0.1)


def measure(request: Request) -> Outcome:
    """Compiles all, times each alone; shows and writes a table for each group of cases."""
    end = time.monotonic() + 60 * request.flags.minutes
    jobs = [(case, name) for case in request.cases for name in _peers(case)]
    cells = {job: Cell("failed", "no time was left") for job in jobs}
    workers = {}
    for case, name in jobs:
        library = _libraries(case)[name]
        if installed(library):
            workers[case, name] = Worker(library, name, machine.threads())
    try:
        with request.console.status("all compile"):
            _prepare(jobs, workers, cells, end)
        for cell in cells.values():
            cell.rounds = TURNS
        for job in jobs:
            with request.console.status(f"{job[0].name}, {job[1]}"):
                for _ in range(TURNS):
                    if time.monotonic() < end and job in workers:
                        run.take_turn(cells[job], workers[job])
    finally:
        for worker in workers.values():
            worker.stop()
    results = {}
    for (case, name), cell in cells.items():
        results.setdefault(case, {})[name] = cell
    tables = []
    for group in dict.fromkeys(case.group for case in results):
        of_group = {case: of for case, of in results.items() if case.group == group}
        tables.append(run.table(of_group, {}))
        report.show(tables[-1], request.console)
    return Outcome(run.write(request.directory, "device", results, tables))


def _prepare(jobs, workers, cells, end):
    """Has all workers build, compile and check their case, as long as there is time."""
    begin = time.monotonic()
    samples = {case: {} for case, _ in jobs}
    with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
        preparing = {}
        for case, name in jobs:
            arguments = (case, name, workers.get((case, name)), samples[case])
            preparing[pool.submit(run.prepared, *arguments)] = case, name
        limit = COMPILING * (end - begin)
        done, late = concurrent.futures.wait(preparing, limit)
        for future in done:
            cells[preparing[future]] = future.result()
        for future in late:
            job = preparing[future]
            cells[job] = Cell("failed", f"did not compile in {limit:.0f} s")
            workers.pop(job).stop()


def _libraries(case):
    return TRAINING if isinstance(case, Case) else ATTENTION


def _peers(case):
    return PEERS["steps" if isinstance(case, Case) else "attention"]


BENCHMARK = Benchmark(
    name="device",
    run=measure,
    cases=(*STEPS, *BFLOAT16),
    tiny=(TINY_STEP, *TINY_ATTENTION),
    define_flags=define_flags,
)
