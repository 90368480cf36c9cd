"""Measures on a GPU that is lent for minutes: training steps, lanes and attention.

Each library has several processes. All compile at once, as that takes processor cores and
little of the device; when all are ready, or a share of the minutes is over, each case is
timed alone, those that matter most first.
"""

import collections
import concurrent.futures
import dataclasses
import time

from absl import flags

from experiments.system import machine
from launch.bench.attention.cases import BFLOAT16, VARIANTS
from launch.bench.attention.cases import LIBRARIES as ATTENTION
from launch.bench.attention.cases import TINY as TINY_ATTENTION
from launch.bench.harness import profile, report, run
from launch.bench.harness.benchmark import Benchmark, Outcome, Request
from launch.bench.harness.libraries import installed
from launch.bench.harness.worker import Worker
from launch.bench.training.case import CASE, Case
from launch.bench.training.case import LIBRARIES as TRAINING
from launch.bench.training.case import TINY as TINY_STEP

TURNS = 3
COMPILING = 0.55
"""The share of the minutes after which those time that have compiled."""
PROFILED = 3
"""Calls of a step that a profile is of."""
SLOW = ("torch:flex",)
"""Have a process for each case of attention; the others one for each pass."""

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
    "attention": (
        "attn",
        "attn:blocks",
        "attn:pallas",
        "jax.nn",
        "jax.nn:cudnn",
        "textbook",
        "torch",
        "torch:flex",
    ),
}


def define_flags() -> None:
    """Defines --minutes."""
    flags.DEFINE_float("minutes", 3.0, "What all may take", lower_bound=0.1)


def measure(request: Request) -> Outcome:
    """Compiles all, times each alone; shows and writes a table for each group of cases.

    Tables of the kernels of attn's own steps follow.
    """
    end = time.monotonic() + 60 * request.flags.minutes
    jobs = [(case, name) for case in request.cases for name in _peers(case)]
    cells = {job: run.Cell("failed", "no time was left") for job in jobs}
    workers = {}
    for case, name in jobs:
        library = _libraries(case)[name]
        if installed(library) and _process(case, name) not in workers:
            worker = Worker(library, name, machine.threads())
            workers[_process(case, name)] = worker
    profiles = []
    try:
        with request.console.status("all compile"):
            _prepare(jobs, workers, cells, end)
        for cell in cells.values():
            cell.rounds = TURNS
        for job in jobs:
            worker = workers.get(_process(*job))
            if worker is None or cells[job].status != "timed":
                continue
            with request.console.status(f"{job[0].name}, {job[1]}"):
                run.attempt(cells[job], worker, _resume, job[0].name)
                for _ in range(TURNS):
                    if time.monotonic() < end:
                        run.take_turn(cells[job], worker)
                if _is_step(job[0]) and job[1] == run.BASE and time.monotonic() < end:
                    profiles.append((job[0], worker.call(_profile)))
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
    for case, kernels in profiles:
        tables.append(profile.table(f"kernels of {case.name}, {run.BASE}", kernels))
    for table in tables:
        report.show(table, request.console)
    return Outcome(run.write(request.directory, "device", results, tables))


def _prepare(jobs, workers, cells, end):
    """Has all workers build, compile and check their cases, as long as there is time."""
    begin = time.monotonic()
    samples = {case: {} for case, _ in jobs}
    of_process = collections.defaultdict(list)
    for job in jobs:
        of_process[_process(*job)].append(job)

    def prepare(process):
        running = workers.get(process)
        for case, name in of_process[process]:
            cell = run.prepared(case, name, running, samples[case])
            if running is not None and cell.status == "timed":
                run.attempt(cell, running, _keep, case.name)
            cells[case, name] = cell

    with concurrent.futures.ThreadPoolExecutor(len(of_process)) as pool:
        preparing = {pool.submit(prepare, process): process for process in of_process}
        limit = COMPILING * (end - begin)
        done, late = concurrent.futures.wait(preparing, limit)
        for future in done:
            future.result()
        # What it compiles would disturb those that are timed.
        for future in late:
            workers.pop(preparing[future]).stop()
    for future in late:
        for job in of_process[preparing[future]]:
            cells[job] = run.Cell("failed", f"did not compile in {limit:.0f} s")


# In a worker's process: the programs of its cases by their names.
_programs = {}


def _keep(adapter, name):
    _programs[name] = adapter.program


def _resume(adapter, name):
    adapter.program = _programs[name]


def _profile(adapter):
    program = adapter.program
    return profile.by_kernel(lambda: program.wait(program.run()), PROFILED)


def _process(case, name):
    """Returns what the cases have in common that share a process."""
    if _is_step(case) or name in SLOW:
        return case, name
    return case.direction, name


def _is_step(case):
    return isinstance(case, Case)


def _libraries(case):
    return TRAINING if _is_step(case) else ATTENTION


def _peers(case):
    return PEERS["steps" if _is_step(case) else "attention"]


BENCHMARK = Benchmark(
    name="device",
    run=measure,
    cases=(*STEPS, *BFLOAT16, *VARIANTS),
    tiny=(TINY_STEP, *TINY_ATTENTION),
    define_flags=define_flags,
)
