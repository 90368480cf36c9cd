"""Times a whole sweep: as the runner does it, in each way by hand, and one cold process after another."""

import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import rich.console

from experiments import pages
from experiments.files import read_json, write_json, write_text
from experiments.sweep import Planned
from launch.bench import rounds
from launch.bench.grids import Grid, markdown, show
from launch.bench.peers import BenchError
from launch.bench.rounds import number, ratio

WAYS = ("sweep", "one-by-one", "cold")
"""Beside these, workers=N and lanes=N."""
NOTES = {
    "sweep": "python -m launch.sweep, which chooses for itself",
    "one-by-one": "python -m launch.sweep --workers=1: one process with all cores, a program compiled once",
    "cold": "python -m launch.train for each trial, in a process of its own, with an empty compile cache",
}


@dataclasses.dataclass(frozen=True)
class Timing:
    """Of one way."""

    seconds: float
    perplexities: dict[str, float]
    """Of the trials, by their names."""


def run(config: list[str], sweeps: str, more: list[str], planned: list[Planned], ways: list[str], directory: Path,
        console: rich.console.Console) -> list[Path]:
    """Runs `planned`, the points of `sweeps` that the flags `more` leave, in all `ways`. Shows and writes the table.

    `config` are the flags that give the config. Each way starts with an empty compile cache.

    Raises BenchError for an unknown way, and for one that fails.
    """
    found = {}
    for way in ways:
        with tempfile.TemporaryDirectory() as temporary, console.status(way):
            begin = time.perf_counter()
            places = _cold(config, planned, Path(temporary)) if way == "cold" else _swept(
                config, sweeps, [*more, *_flags(way)], planned, Path(temporary))
            seconds = time.perf_counter() - begin
            results = {name: read_json(place / "result.json") for name, place in places.items()}
        if bad := [name for name, result in results.items() if (result or {}).get("status") != "finished"]:
            raise BenchError(f"{way}: {', '.join(bad)} did not finish")
        found[way] = Timing(seconds, {name: result["perplexity"] for name, result in results.items()})
    table = grid(found)
    written = [directory / "table.md", directory / "results.json"]
    write_text(written[0], f"# Sweeps\n\n{rounds.where()}\n\n{markdown(table)}")
    write_json(written[1], {**rounds.circumstances("sweep"), "ways": {
        way: dataclasses.asdict(timing) for way, timing in found.items()}})
    show(table, console)
    return written


def grid(found: dict[str, Timing]) -> Grid:
    """A row a way: its time, and how far its perplexities are from those of the first."""
    first = next(iter(found.values()))
    table = Grid(f"{len(first.perplexities)} trials, compile caches empty",
                 ("", "s", "trials an hour", "to the first", "largest difference in perplexity"))
    for way, timing in found.items():
        apart = max(abs(timing.perplexities[name] / value - 1) for name, value in first.perplexities.items())
        name = table.noted(way, NOTES[way]) if way in NOTES else way
        table.rows.append((name, number(timing.seconds), number(3600 * len(first.perplexities) / timing.seconds),
                           ratio(timing.seconds, first.seconds), f"{apart:.1e}"))
    return table


def _flags(way):
    if way in ("sweep", "one-by-one"):
        return ["--workers=1"] if way == "one-by-one" else []
    name, _, count = way.partition("=")
    if name not in ("workers", "lanes") or not count.isdigit():
        raise BenchError(f"unknown way {way!r}; known: {', '.join(WAYS)}, workers=N, lanes=N")
    return [f"--{way}"]


def _swept(config, sweeps, more, planned, directory):
    words = ["launch.sweep", *config, f"--sweep={sweeps}", *more, f"--workdir={directory / 'runs'}"]
    _call(words, directory / "cache")
    return {one.name: directory / "runs" / one.directory for one in planned}


def _cold(config, planned, directory):
    places = {one.name: directory / one.directory for one in planned}
    for i, one in enumerate(planned):
        point = [f"--config.{key}={value}" for key, value in one.point.items()]
        _call(["launch.train", *config, *point, f"--workdir={places[one.name]}"], directory / f"cache{i}")
    return places


def _call(words, cache):
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    pages.use_huge_pages()
    done = subprocess.run([sys.executable, "-m", *words], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise BenchError(f"{' '.join(words)} ended with status {done.returncode}: {done.stderr.strip()[-500:]}")
