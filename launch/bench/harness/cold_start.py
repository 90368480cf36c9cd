"""Measures how long a library takes from the start of its process to a first result.

`measure` starts such processes as

    python -m launch.bench.harness.cold_start MODULE LIBRARY CASE
"""

import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

from launch.bench.harness import device
from launch.bench.harness.libraries import load


class Start(NamedTuple):
    """Holds seconds, or 0 where `why` says that the start failed."""

    cold: float = 0.0
    """From the start of the process to the first result, the compile cache empty."""
    cached: float = 0.0
    """The same once more, the cache filled."""
    call: float = 0.0
    """The first call alone, which compiles; the cache empty."""
    why: str = ""


def measure(
    module: str,
    name: str,
    case,
    threads: int,
    say: Callable[[str], None] = lambda line: None,
) -> Start:
    """Starts two processes, one after the other, that run `case` once each."""
    with tempfile.TemporaryDirectory() as cache:
        try:
            say(f"{name} starts, the compile cache empty")
            cold, call = _start(module, name, case, threads, cache)
            say(f"{name} starts, the compile cache filled")
            cached, _ = _start(module, name, case, threads, cache)
        except subprocess.CalledProcessError as error:
            return Start(why=f"the process ended with status {error.returncode}")
    return Start(cold, cached, call)


def _start(module, name, case, threads, cache):
    """Returns (seconds from start to result, seconds of the first call)."""
    # As hexadecimal text, because an argument can hold no zero byte.
    pickled = pickle.dumps(case).hex()
    words = [sys.executable, "-m", "launch.bench.harness.cold_start"]
    words += [module, name, pickled]
    begin = time.perf_counter()
    with subprocess.Popen(
        words,
        env=_environment(threads, cache),
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


def _environment(threads, cache):
    environment = {**os.environ, **device.environment()}
    environment["NPROC"] = str(threads)
    environment["OMP_NUM_THREADS"] = str(threads)
    environment["XDG_CACHE_HOME"] = cache
    # This one would win over XDG_CACHE_HOME, and may be filled.
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    return environment


def main(module: str, name: str, case: str) -> None:
    """Runs the case once and prints the seconds of that call."""
    adapter = load(module, name)
    program = adapter.compile(pickle.loads(bytes.fromhex(case)))
    begin = time.perf_counter()
    program.wait(program.run())
    print(json.dumps(time.perf_counter() - begin), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
