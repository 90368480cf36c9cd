"""What the runner costs: steps as it makes them, against the bare compiled step, and what a save takes."""

import dataclasses
import functools
import statistics
import tempfile
import time
from pathlib import Path

import jax
import rich.console

from experiments import machine, population, training, trial
from experiments.batches import Batches
from experiments.files import write_json, write_text
from experiments.prepared import Prepared, prepare
from experiments.records import Directory
from experiments.settings import Settings
from launch.bench import rounds
from launch.bench.grids import Grid, markdown, show
from launch.bench.rounds import number

SAVES = 8
"""In a run that saves often."""


def run(settings: Settings, turns: int, directory: Path, console: rich.console.Console) -> list[Path]:
    """Times all in turns, in this process. Shows and writes the tables; returns the files.

    The runner's steps are those between its second and its last line of metrics.jsonl: with their batches and logs, and
    without evaluations, which the settings should have at the end alone. It runs without saves between these lines, and
    with SAVES of them at most; what a save takes is the difference, what it slows down in the background included.
    """
    machine.use_compile_cache()
    prepared = prepare(settings.data)
    never, often = saving(settings, 1), saving(settings, SAVES)
    bare, found = _bare(settings, prepared), {"bare step": [], "runner": [], "runner, saving": []}
    for turn in range(turns):
        with console.status(f"turn {turn + 1}"):
            found["bare step"].append(bare())
            found["runner"].append(_runner(never, prepared)[0])
            each, between = _runner(often, prepared)
            found["runner, saving"].append(each)
    saves = [(b - a) * between / saves_within(often, between) for a, b in zip(
        found["runner"], found["runner, saving"], strict=True)]
    tables = [grid(found), grid_of_saves(saves)]
    written = [directory / "table.md", directory / "results.json"]
    write_text(written[0], "\n\n".join(["# The runner's overhead", rounds.where(), *map(markdown, tables)]))
    write_json(written[1], {**rounds.circumstances("overhead"), "settings": settings.to_dict(), "seconds": found,
                            "seconds_of_a_save": saves})
    for table in tables:
        show(table, console)
    return written


def saving(settings: Settings, times: int) -> Settings:
    """`settings` with so many saves at most, the last of them at the end of the run."""
    t = settings.training
    every = -(-t.steps // (times * t.log_every)) * t.log_every
    return dataclasses.replace(settings, training=dataclasses.replace(t, save_every=every))


def saves_within(settings: Settings, steps: int) -> int:
    """How many saves are begun in the last `steps` steps before the end, that at the end left out."""
    t = settings.training
    return (t.steps - 1) // t.save_every - (t.steps - steps - 1) // t.save_every


def grid_of_saves(seconds: list[float]) -> Grid:
    table = Grid("a save", ("", "ms, median", "ms, most", "of the time at one a minute"))
    middle = statistics.median(seconds)
    table.rows.append(("save", number(1e3 * middle), number(1e3 * max(seconds)), f"{middle / 60:.2%}"))
    return table


def grid(found: dict[str, list[float]]) -> Grid:
    table = Grid("a training step", ("", "ms, median", "ms, least", "to the bare step"))
    base = statistics.median(found["bare step"])
    for name, each in found.items():
        table.rows.append((name, number(1e3 * statistics.median(each)), number(1e3 * min(each)),
                           f"{statistics.median(each) / base - 1:+.1%}"))
    return table


def _bare(settings, prepared: Prepared):
    """One jitted `trial.step` on one batch, over and over: seconds a step."""
    t, program = settings.training, training.program(settings, prepared)[0]
    batch = jax.tree.map(lambda x: jax.device_put(x[None]), next(
        Batches(prepared.train, rows=t.rows, row_pieces=t.row_pieces, seed=settings.seed)))
    step = jax.pmap(functools.partial(trial.step, program), population.AXIS, in_axes=(None, None, 0), out_axes=None,
                    donate_argnums=0, devices=jax.local_devices()[:1])
    state = jax.device_put(trial.initial_state(program, settings, jax.jit(trial.initial_variables, static_argnums=0)))
    hyper = jax.device_put(trial.hyper(settings))

    def steps(count):
        nonlocal state
        begin = time.perf_counter()
        for _ in range(count):
            state, metrics = step(state, hyper, batch)
        jax.block_until_ready(metrics)
        return (time.perf_counter() - begin) / count

    steps(3)
    return functools.partial(steps, t.steps)


def _runner(settings, prepared):
    """(seconds a step, the number of steps that were timed)."""
    with tempfile.TemporaryDirectory() as workdir:
        training.run(settings, prepared, workdir)
        lines = [line for line in Directory(workdir).metrics() if line["split"] == "train"]
    first, last = lines[1], lines[-1]  # the first line has the compilation
    steps = last["step"] - first["step"]
    return (last["seconds"] - first["seconds"]) / steps, steps
