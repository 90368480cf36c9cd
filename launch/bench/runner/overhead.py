"""Measures what the runner costs: its steps against the bare compiled step, and a save.

The runner's steps are those between its second and its last line of metrics.jsonl:
with their batches and logs, and without evaluations, which the settings should have at
the end alone. It runs without saves between these lines, and with SAVES of them at
most. What a save takes is the difference, what it slows down in the background
included.
"""

import dataclasses
import functools
import statistics
import tempfile
import time
from pathlib import Path

import jax
import rich.console

from experiments import settings
from experiments.data.dataset import Dataset, prepare
from experiments.settings import Settings
from experiments.system import machine
from experiments.training import loop
from experiments.training.population import program_for
from experiments.training.run_dir import RunDir
from experiments.training.trial_run import batches_of
from experiments.trial.lanes import AXIS
from experiments.trial.program import hyper_of, initial_state
from experiments.trial.step import train_step
from launch.bench.harness import record
from launch.bench.harness.benchmark import Benchmark, Outcome, Request
from launch.bench.harness.table import Table, number, show

SAVES = 8
"""Saves in a run that saves often."""
KINDS = ("bare step", "runner", "runner, saving")
WARM_UP = 3
"""Bare steps before the timing."""


def measure(request: Request) -> Outcome:
    """Times the runner on the config that the flags name."""
    run_settings = settings.resolve(request.flags.config)
    files = time_steps(run_settings, request.rounds, request.directory, request.console)
    return Outcome(files)


def time_steps(
    settings: Settings, turns: int, directory: Path, console: rich.console.Console
) -> list[Path]:
    """Times all kinds in turns, in this process; shows and writes the tables."""
    machine.use_compile_cache()
    prepared = prepare(settings.data)
    # Its one save, at the end, is outside the lines that are timed.
    never = saving(settings, 1)
    often = saving(settings, SAVES)
    bare = _bare(settings, prepared)
    seconds = {kind: [] for kind in KINDS}
    saves = []
    for turn in range(turns):
        with console.status(f"turn {turn + 1}"):
            seconds["bare step"].append(bare())
            # Both within one turn, so that a slow minute slows both.
            without, _ = _runner(never, prepared)
            seconds["runner"].append(without)
            with_saves, steps = _runner(often, prepared)
            seconds["runner, saving"].append(with_saves)
        # Of the same turn, as the machine's speed changes from turn to turn.
        extra = (with_saves - without) * steps
        saves.append(extra / saves_within(often, steps))
    tables = [table(seconds), table_of_saves(saves)]
    files = record.write(
        directory,
        "overhead",
        title="The runner's overhead",
        tables=tables,
        results={
            "settings": settings.to_dict(),
            "seconds": seconds,
            "seconds_of_a_save": saves,
        },
    )
    for filled in tables:
        show(filled, console)
    return files


def saving(settings: Settings, times: int) -> Settings:
    """Returns the settings with so many saves at most, the last at the run's end."""
    t = settings.training
    # In whole log intervals: a save between two lines would cut a dispatch in two.
    every = -(-t.steps // (times * t.log_every)) * t.log_every
    return dataclasses.replace(
        settings, training=dataclasses.replace(t, save_every=every)
    )


def saves_within(settings: Settings, steps: int) -> int:
    """Returns how many saves begin in the last `steps` steps, without that at the end.

    The save at the end is outside the lines that are timed.
    """
    t = settings.training
    before_end = (t.steps - 1) // t.save_every
    return before_end - (t.steps - steps - 1) // t.save_every


def table(seconds: dict[str, list[float]]) -> Table:
    """Returns the table of steps, a row a kind."""
    headings = ("", "ms, median", "ms, least", "to the bare step")
    filled = Table("a training step", headings)
    base = statistics.median(seconds["bare step"])
    for name, values in seconds.items():
        median = statistics.median(values)
        least = number(1e3 * min(values))
        row = (name, number(1e3 * median), least, f"{median / base - 1:+.1%}")
        filled.rows.append(row)
    return filled


def table_of_saves(seconds: list[float]) -> Table:
    """Returns the table of one save."""
    headings = ("", "ms, median", "ms, most", "of the time at one a minute")
    filled = Table("a save", headings)
    median = statistics.median(seconds)
    largest = number(1e3 * max(seconds))
    filled.rows.append(("save", number(1e3 * median), largest, f"{median / 60:.2%}"))
    return filled


def _bare(settings, prepared: Dataset):
    """Returns a function that repeats one jitted `trial.step` on one batch.

    It returns the seconds of a step.
    """
    t = settings.training
    program = program_for(settings, prepared)
    batches = batches_of(prepared, t, settings.seed)
    # One for all steps, on the device: the bare step waits for no data.
    batch = jax.tree.map(lambda x: jax.device_put(x[None]), next(batches))
    step = jax.pmap(
        functools.partial(train_step, program),
        AXIS,
        in_axes=(None, None, 0),
        out_axes=None,
        # As the runner donates: else a step would copy the whole state.
        donate_argnums=0,
        devices=jax.local_devices()[:1],
    )
    state = jax.device_put(initial_state(program, settings))
    hyper = jax.device_put(hyper_of(settings))

    def steps(count):
        nonlocal state
        begin = time.perf_counter()
        for _ in range(count):
            state, metrics = step(state, hyper, batch)
        jax.block_until_ready(metrics)
        return (time.perf_counter() - begin) / count

    # These compile too.
    steps(WARM_UP)
    return functools.partial(steps, t.steps)


def _runner(settings, prepared):
    """Returns (seconds a step, the number of steps that were timed)."""
    # A new one each time, or the run would find that it has ended.
    with tempfile.TemporaryDirectory() as workdir:
        loop.run(settings, prepared, workdir)
        metrics = RunDir(workdir).metrics()
        lines = [line for line in metrics if line["split"] == "train"]
    # The first line has the compilation in it.
    first = lines[1]
    last = lines[-1]
    steps = last["step"] - first["step"]
    return (last["seconds"] - first["seconds"]) / steps, steps


BENCHMARK = Benchmark(
    name="overhead",
    cases=KINDS,
    run=measure,
    table=table,
    rounds_flag=True,
    config_flag=True,
)
