"""What the runner costs: a trial's steps as the runner makes them, against the bare compiled step."""

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


def run(settings: Settings, turns: int, directory: Path, console: rich.console.Console) -> list[Path]:
    """Times both in turns, in this process. Shows and writes the table; returns the files.

    The runner's steps are those between its first and its last line of metrics.jsonl: with their batches, logs and
    checkpoints, and without evaluations, which the settings should have at the end alone.
    """
    machine.use_compile_cache()
    prepared = prepare(settings.data)
    bare, found = _bare(settings, prepared), {"bare step": [], "runner": []}
    for turn in range(turns):
        with console.status(f"turn {turn + 1}"):
            found["bare step"].append(bare())
            found["runner"].append(_runner(settings, prepared))
    table = grid(found)
    written = [directory / "table.md", directory / "results.json"]
    write_text(written[0], f"# The runner's overhead\n\n{rounds.where()}\n\n{markdown(table)}")
    write_json(written[1], {**rounds.circumstances("overhead"), "settings": settings.to_dict(), "seconds": found})
    show(table, console)
    return written


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
    with tempfile.TemporaryDirectory() as workdir:
        training.run(settings, prepared, workdir)
        lines = [line for line in Directory(workdir).metrics() if line["split"] == "train"]
    first, last = lines[1], lines[-1]  # the first line has the compilation
    return (last["seconds"] - first["seconds"]) / (last["step"] - first["step"])
