"""How long a library takes from the start of its process to the first result, without and with a compile cache.

python -m launch.bench.starting MODULE PEER CASE, which `measure` runs, is such a process.
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

from launch.bench import peers


class Start(NamedTuple):
    """Seconds; where `why` says that it failed, 0."""

    cold: float = 0.0
    """From the start of the process to the first result, the compile cache empty."""
    cached: float = 0.0
    """The same once more, the cache filled."""
    call: float = 0.0
    """Of the first call alone, which compiles; the cache empty."""
    why: str = ""


def measure(module: str, name: str, case, threads: int, say: Callable[[str], None] = lambda line: None) -> Start:
    """Starts two processes, one after the other, that run `case` once."""
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
    """Seconds from start to result, and those of the first call."""
    environment = {**os.environ, "NPROC": str(threads), "OMP_NUM_THREADS": str(threads), "JAX_PLATFORMS": "cpu",
                   "XDG_CACHE_HOME": cache}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    words = [sys.executable, "-m", "launch.bench.starting", module, name, pickle.dumps(case).hex()]
    begin = time.perf_counter()
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        line = process.stdout.readline()
        took = time.perf_counter() - begin
    if process.returncode or not line:
        raise subprocess.CalledProcessError(process.returncode, words)
    return took, json.loads(line)


def main(module: str, name: str, case: str) -> None:
    adapter = peers.load(module, name)
    program = adapter.compile(pickle.loads(bytes.fromhex(case)))
    begin = time.perf_counter()
    program.run()
    print(json.dumps(time.perf_counter() - begin), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
