"""Times libraries from the start of their process to the end of a first training step.

Each is measured in processes that are started, one after another, as

    python -m launch.bench.cold_start MODULE LIBRARY CASE
"""

import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from launch.bench.harness.benchmark import Benchmark
from launch.bench.harness.libraries import environment, installed, load
from launch.bench.training.case import CASE, LIBRARIES, TINY

HEADINGS = ("start, s", "cached, s", "first step, s")
NOTES = (
    "from the start of a process to the end of its first step, its compile cache empty",
    "the same again, the cache filled",
    "the first call alone, which compiles, the cache empty",
)


class Start(NamedTuple):
    """Holds seconds, or 0 where `why` says that the start failed."""

    cold: float = 0.0
    """From the start of the process to the first result, the compile cache empty."""
    cached: float = 0.0
    """The same once more, the cache filled."""
    call: float = 0.0
    """The first call alone, the cache empty."""
    why: str = ""


def start(module: str, name: str, case, threads: int) -> Start:
    """Starts two processes, one after the other, that run `case` once each."""
    with tempfile.TemporaryDirectory() as cache:
        try:
            cold, call = _start(module, name, case, threads, cache)
            cached, _ = _start(module, name, case, threads, cache)
        except subprocess.CalledProcessError as error:
            return Start(why=f"the process ended with status {error.returncode}")
    return Start(cold, cached, call)


def _start(module, name, case, threads, cache):
    """Returns (seconds from start to result, seconds of the first call)."""
    variables = {**os.environ, **environment(threads), "XDG_CACHE_HOME": cache}
    # This one would win over XDG_CACHE_HOME, and may be filled.
    variables.pop("JAX_COMPILATION_CACHE_DIR", None)
    # As hexadecimal text, because an argument can hold no zero byte.
    words = [module, name, pickle.dumps(case).hex()]
    words = [sys.executable, "-m", "launch.bench.cold_start", *words]
    begin = time.perf_counter()
    with subprocess.Popen(
        words,
        env=variables,
        stdout=subprocess.PIPE,
        # Libraries' warnings would be printed between the parent's tables.
        stderr=subprocess.DEVNULL,
    ) as process:
        line = process.stdout.readline()
        # Before the process ends: its clean-up is no part of a start.
        seconds = time.perf_counter() - begin
    if process.returncode or not line:
        raise subprocess.CalledProcessError(process.returncode, words)
    return seconds, json.loads(line)


def measure(request):
    """Starts each library as often as `request.rounds`; shows and writes the medians."""
    # Here: a process that is timed imports this module, and is to import no more.
    from experiments.system import machine
    from launch.bench.harness import report
    from launch.bench.harness.benchmark import Outcome

    filled = report.Table("cold_start", ())
    filled.headings = ("", *map(filled.noted, HEADINGS, NOTES))
    (case,) = request.cases
    starts = {}
    for name, library in request.libraries.items():
        if not installed(library):
            missing = f"{', '.join(library.needs)} is not installed"
            filled.rows.append((name, filled.noted("—", missing), "", ""))
            continue
        starts[name] = []
        for index in range(request.rounds):
            with request.console.status(f"{name}, round {index + 1}"):
                arguments = (library.module, name, case, machine.threads())
                starts[name].append(start(*arguments))
        filled.rows.append((name, *_texts(filled, name, starts[name])))
    numbers = {name: [each._asdict() for each in of] for name, of in starts.items()}
    report.show(filled, request.console)
    files = report.write(request.directory, "cold_start", [filled], {"starts": numbers})
    return Outcome(files)


def _texts(filled, name, starts):
    whys = [each.why for each in starts if each.why]
    if whys:
        return filled.noted("—", f"{name}: {whys[0]}"), "", ""
    columns = zip(*(each[:3] for each in starts), strict=True)
    return [f"{statistics.median(column):.1f}" for column in columns]


def main(module: str, name: str, case: str) -> None:
    """Runs the case once and prints the seconds of that call."""
    adapter = load(module, name)
    program = adapter.compile(pickle.loads(bytes.fromhex(case)))
    begin = time.perf_counter()
    program.wait(program.run())
    print(json.dumps(time.perf_counter() - begin), flush=True)


BENCHMARK = Benchmark(
    name="cold_start",
    run=measure,
    cases=(CASE,),
    tiny=(TINY,),
    libraries=LIBRARIES,
    compared=("attn", "torch", "flax"),
    rounds=3,
)


if __name__ == "__main__":
    main(*sys.argv[1:])
