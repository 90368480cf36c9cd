"""Runs a sweep: the product of the named sweeps of a config.

python -m launch.sweep --config=experiments/configs/quick.py --sweep=table,seed --workdir=runs/quick

Finished trials are skipped and interrupted ones go on, so the same command again finishes what is left. --dry_run
shows every point and checks it, and trains nothing.
"""

import sys
from pathlib import Path

import jax
import rich.console
from absl import flags

from experiments import machine, population, report, sweep
from experiments.prepared import prepare
from experiments.progress import Progress
from experiments.workers import run_all, start
from launch import command

_CONFIG = command.define_config()
_WORKDIR = flags.DEFINE_string("workdir", None, "The directory for everything that is written")
_SWEEP = flags.DEFINE_list("sweep", [], "Names of the config's sweeps; their product is run")
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "Show and check every point, train nothing")
_WORKERS = flags.DEFINE_integer("workers", 0, "Worker processes; 0 chooses", lower_bound=0)


def main():
    if _CONFIG.value is None:
        command.mistake("--config=FILE is needed, such as --config=experiments/configs/quick.py")
    # This process only plans: an accelerator is the workers' to use.
    jax.config.update("jax_platforms", "cpu")
    console = rich.console.Console()
    points = sweep.expand(sweep.sweeps(sweep.load(command.config_path())), _SWEEP.value)
    if both := command.overridden() & {key for point in points for key in point}:
        command.mistake(f"--config.{min(both)} is given, and the sweep sets it too: leave one of them out")
    planned = sweep.plan(_CONFIG.value, points)
    if _DRY_RUN.value:
        return dry_run(planned, console)
    if _WORKDIR.value is None:
        command.mistake("--workdir=DIR is needed, such as --workdir=runs/quick")
    failed = run(planned, Path(_WORKDIR.value), console)
    sys.exit(1 if failed else 0)


def dry_run(planned, console):
    """Prints every point and builds each by shape."""
    sweep.check_all(planned)
    for one in planned:
        console.print(f"{one.name:40} {one.point}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"{len(planned)} trials, each builds")


def run(planned, workdir, console):
    """Runs what is not finished and reports. Returns how many trials failed."""
    todo = [one for one in planned if not sweep.finished(workdir, one)]
    already = len(planned) - len(todo)
    if todo:
        sweep.check_all(todo)
        prepared = {data: prepare(data) for data in {one.settings.data for one in todo}}
    sweep.open_workdir(workdir, command.config_path(), _CONFIG.value, _SWEEP.value, planned)
    if todo:
        _run(todo, already, prepared, workdir, console)
    written = report.write(workdir)
    report.show(written.table, console)
    console.print(f"\n{already} of {len(planned)} trials were finished before" if already else "", highlight=False)
    console.print(f"report: {written.html}", highlight=False, soft_wrap=True)
    return sum(not sweep.finished(workdir, one) for one in planned)


def _run(todo, already, prepared, workdir, console):
    workers = start(prepared, _WORKERS.value)
    try:
        _, devices = workers[0].devices()
        for one in todo:
            population.check_rows(one.settings.training.rows, devices)
        with Progress(workdir, todo, already, console) as progress:
            def watch(running, left):
                progress.update(list(running.values()))

            for one in run_all(workers, workdir, todo, watch):
                progress.ended(one)
    finally:
        for worker in workers:
            worker.stop()


if __name__ == "__main__":
    machine.use_huge_pages()  # for the workers
    command.start(main)
