"""Times a whole sweep: as the runner does it, each way by hand, and process by process.

Each way starts with an empty compile cache.
"""

import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import rich.console
from absl import flags

from experiments.sweep.plan import Trial, plan_trials
from experiments.sweep.points import expand, load_config, select_points, sweeps_of
from experiments.system.files import read_json
from launch import config_flag
from launch.bench.harness import record
from launch.bench.harness.benchmark import Benchmark, Outcome, Request
from launch.bench.harness.libraries import BenchError
from launch.bench.harness.table import Table, number, ratio, show

WAYS = ("sweep", "one-by-one", "cold")
"""Beside these there are workers=N and lanes=N."""
NOTES = {
    "sweep": "python -m launch.sweep, which chooses for itself",
    "one-by-one": "python -m launch.sweep --workers=1: one process with all cores, a "
    "program compiled once",
    "cold": "python -m launch.train for each trial, in a process of its own, with an "
    "empty compile cache",
}
END_OF_MESSAGE = 500
"""Characters of a failed command's stderr that are shown."""


@dataclasses.dataclass(frozen=True)
class Timing:
    """Holds what one way took, and what it reached."""

    seconds: float
    perplexities: dict[str, float]
    """Perplexities of the trials, by their names."""


def define_flags() -> None:
    """Defines the flags of a sweep, and --ways."""
    flags.DEFINE_list("sweep", [], "Names of the config's sweeps; their product is run")
    flags.DEFINE_integer(
        "seeds", None, "Run each point with so many seeds, from 0 on", lower_bound=1
    )
    flags.DEFINE_string("only", "", "Run the points with this text in label or name")
    flags.DEFINE_list(
        "ways", list(WAYS), "How the sweep is run: also workers=N and lanes=N"
    )


def measure(request: Request) -> Outcome:
    """Times the sweep that the flags name."""
    values = request.flags
    known = sweeps_of(load_config(config_flag.config_path()))
    points = expand(known, values.sweep, values.config, values.seeds)
    points = select_points(points, values.only)
    more = [f"--only={values.only}"]
    if values.seeds:
        more.append(f"--seeds={values.seeds}")
    for way in values.ways:
        _flags(way)  # for its error, before any way is timed
    files = time_ways(
        _config_words(sys.argv[1:]),
        ",".join(values.sweep),
        more,
        plan_trials(values.config, points),
        values.ways,
        request.directory,
        request.console,
    )
    return Outcome(files)


def time_ways(
    config: list[str],
    sweeps: str,
    more: list[str],
    planned: list[Trial],
    ways: list[str],
    directory: Path,
    console: rich.console.Console,
) -> list[Path]:
    """Runs the planned trials in all ways; shows and writes the table.

    Args:
      config: the flags that give the config.
      sweeps: the names of the sweeps.
      more: further flags of launch.sweep, which leave the planned points.
      planned: the trials.
      ways: names of WAYS, workers=N or lanes=N.
      directory: where the table goes.
      console: where the table is shown.

    Returns the files. Raises BenchError for an unknown way, and for one that fails.
    """
    timings = {}
    for way in ways:
        with tempfile.TemporaryDirectory() as temporary, console.status(way):
            # From here on, as the start of Python belongs to a command's time.
            begin = time.perf_counter()
            if way == "cold":
                places = _run_cold(config, planned, Path(temporary))
            else:
                words = [*config, f"--sweep={sweeps}", *more, *_flags(way)]
                places = _run_sweep(words, planned, Path(temporary))
            seconds = time.perf_counter() - begin
            timings[way] = Timing(seconds, _perplexities(way, places))
    filled = table(timings)
    results = {way: dataclasses.asdict(timing) for way, timing in timings.items()}
    files = record.write(
        directory,
        "sweep",
        title="Sweeps",
        tables=[filled],
        results={"ways": results},
    )
    show(filled, console)
    return files


def _perplexities(way, places):
    """Reads the results of the trials; raises BenchError where one is not finished."""
    perplexities = {}
    unfinished = []
    for name, place in places.items():
        result = read_json(place / "result.json") or {}
        if result.get("status") == "finished":
            perplexities[name] = result["perplexity"]
        else:
            unfinished.append(name)
    if unfinished:
        # A way that has trained less would look fast.
        raise BenchError(f"{way}: {', '.join(unfinished)} did not finish")
    return perplexities


def table(timings: dict[str, Timing]) -> Table:
    """Returns the table, a row a way.

    It has the time, and how far perplexities are from those of the first way.
    """
    first = next(iter(timings.values()))
    trials = len(first.perplexities)
    filled = Table(
        f"{trials} trials, compile caches empty",
        (
            "",
            "s",
            "trials an hour",
            "to the first",
            "largest difference in perplexity",
        ),
    )
    for way, timing in timings.items():
        row = (
            filled.noted(way, NOTES[way]) if way in NOTES else way,
            number(timing.seconds),
            number(3600 * trials / timing.seconds),
            ratio(timing.seconds, first.seconds),
            f"{_largest_difference(timing, first):.1e}",
        )
        filled.rows.append(row)
    return filled


def _largest_difference(timing, first):
    pairs = ((timing.perplexities[name], p) for name, p in first.perplexities.items())
    # In parts of the first, as perplexities of trials may be of any size.
    return max(abs(perplexity / p - 1) for perplexity, p in pairs)


def _config_words(words):
    """Returns the flags of the config as typed, because the timed commands read them anew."""
    config = []
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, _ = word.lstrip("-").partition("=")
        if not word.startswith("-") or name.partition(".")[0] != "config":
            continue
        config.append(word)
        if not equals:
            config.append(following)
    return config


def _flags(way):
    if way in ("sweep", "cold"):
        return []
    if way == "one-by-one":
        return ["--workers=1"]
    name, _, count = way.partition("=")
    if name not in ("workers", "lanes") or not count.isdigit():
        known = ", ".join(WAYS)
        raise BenchError(f"unknown way {way!r}; known: {known}, workers=N, lanes=N")
    return [f"--{way}"]


def _run_sweep(words, planned, directory):
    workdir = directory / "runs"
    # In the temporary directory, so that no way finds the trials of another.
    call = ["launch.sweep", *words, f"--workdir={workdir}"]
    _call(call, directory / "cache")
    return {trial.name: workdir / trial.directory for trial in planned}


def _run_cold(config, planned, directory):
    places = {trial.name: directory / trial.directory for trial in planned}
    for i, trial in enumerate(planned):
        point = [f"--config.{key}={value}" for key, value in trial.point.items()]
        workdir = f"--workdir={places[trial.name]}"
        # Its own cache, or a trial would find the programs of those before.
        _call(["launch.train", *config, *point, workdir], directory / f"cache{i}")
    return places


def _call(words, cache):
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    # This one would win over XDG_CACHE_HOME, and may be filled.
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, "-m", *words], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        # The end, where a traceback has its error.
        message = done.stderr.strip()[-END_OF_MESSAGE:]
        status = f"ended with status {done.returncode}"
        raise BenchError(f"{' '.join(words)} {status}: {message}")


BENCHMARK = Benchmark(
    name="sweep",
    cases=WAYS,
    run=measure,
    table=table,
    config_flag=True,
    define_flags=define_flags,
)
