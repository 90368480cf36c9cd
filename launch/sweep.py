"""Runs a sweep: the product of the named sweeps of a config.

python -m launch.sweep --config=experiments/configs/quick.py --sweep=table,seed
--workdir=runs/quick

Finished trials are skipped and interrupted ones go on, so the same command again
finishes what is left. SIGTERM and Ctrl-C save the trials that run and leave, with exit
status 75; a second one leaves at once. --seeds=5 runs each point with five seeds,
--only='(A)' only the points with that in their label or name. --dry_run checks every
point, shows what there is and estimates what it will take, and trains nothing.

python -m launch.sweep --config=experiments/configs/quick.py --sweep=table --seeds=auto
--budget=80 --interest=bleu:0.5 --workdir=runs/auto

gives each row two seeds, and more to those that are undecided, until all are decided or 80
trials have run (--budget=2h: two hours of training, all trials together).

python -m launch.sweep --config=experiments/configs/quick.py --sweep=table --seeds=3
--tune=training.learning_rate:0.2,0.35,0.7 --workdir=runs/tuned

trains each row at its own learning rate and at these, on --tune_seeds seeds that are not
compared; then its three seeds at the one of the lowest validation perplexity. Several --tune
give the product of their values. The report has the rows at their own values beside it.
"""

import os
import sys
from pathlib import Path

import jax
from absl import flags

from experiments.data.dataset import prepare
from experiments.evaluation.metrics import METRICS
from experiments.settings import SettingsError
from experiments.sweep import estimate
from experiments.sweep.plan import check_all, group_trials, plan_trials
from experiments.sweep.points import expand, load_config, select_points, sweeps_of
from experiments.sweep.progress import Progress
from experiments.sweep.schedule import asked_by_user
from experiments.sweep.tuning import (
    Tuning,
    choices,
    costliest,
    plan_rows,
    read_tuning,
    trials_to_run,
)
from experiments.sweep.workdir import adopt_directories, is_finished, open_workdir
from experiments.sweep.workers import Pools, run_all, schedules
from experiments.system import huge_pages, machine
from experiments.system.console import stdout_console
from experiments.system.files import READ_ONLY, lock
from experiments.system.signals import Interruption
from experiments.trial import cost
from experiments.trial.lanes import check_batch_size
from launch import command, config_flag

_CONFIG = config_flag.define_config()
_WORKDIR = command.define_workdir(
    "The directory for everything that is written; needed without --dry_run"
)
_SWEEP = flags.DEFINE_list(
    "sweep", [], "Names of the config's sweeps; their product is run"
)
_ONLY = flags.DEFINE_string(
    "only",
    "",
    "Run the points with this text, or this regular expression, in label or name",
)
_SEEDS = flags.DEFINE_string(
    "seeds",
    None,
    "Run each point with so many seeds, from 0 on; auto: with as many as decide",
)
_BUDGET = flags.DEFINE_string(
    "budget",
    None,
    "For --seeds=auto: so many trials in all, or hours of training as 2h",
)
_INTEREST = command.define_interest()
_TUNE = flags.DEFINE_multi_string(
    "tune",
    [],
    "Values to choose from for each row, as training.learning_rate:0.5,1,2",
)
_TUNE_SEEDS = flags.DEFINE_integer(
    "tune_seeds",
    None,
    "For --tune: seeds to choose with, beside those compared; 1 if not given",
    lower_bound=1,
)
_DRY_RUN = flags.DEFINE_bool(
    "dry_run", False, "Check every point and estimate what all will take, train nothing"
)
_TRACKER = command.define_tracker()
_WORKERS = flags.DEFINE_integer(
    "workers", 0, "Worker processes; 0 chooses", lower_bound=0
)
_LANES = flags.DEFINE_integer(
    "lanes", 0, "Trials side by side in a process; 0 chooses", lower_bound=0
)

AUTO = "auto"
"""The value of --seeds that has the table choose."""

SHOWN = 50
"""Points, and groups, that --dry_run prints."""


def main():
    if _DRY_RUN.value:
        # A sweep may run beside it on the same accelerator.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    else:
        # This process only plans: an accelerator is the workers' to use.
        jax.config.update("jax_platforms", "cpu")
    console = stdout_console()
    known = sweeps_of(load_config(config_flag.config_path()))
    seeds = read_seeds(_SEEDS.value, _BUDGET.value)
    expanded = expand(known, _SWEEP.value, _CONFIG.value, seeds)
    points = select_points(expanded, _ONLY.value)
    overrides = config_flag.overrides()
    keys = set().union(*points)
    # The sweep would win, and the flag be ignored in silence.
    if both := {*overrides} & keys:
        command.mistake(
            f"--config.{min(both)} is given, and the sweep sets it too: leave one of them out"
        )
    planned = plan_trials(_CONFIG.value, points, overrides)
    if equal := len(points) - len(planned):
        console.print(
            f"{equal} of {len(points)} points have the settings of another and run once with it\n"
        )
    tuning = read_tune()
    if _SEEDS.value == AUTO:
        return run_auto(planned, overrides, keys, console)
    rows = []
    if tuning:
        rows = plan_rows(_CONFIG.value, planned, overrides, tuning)
    if _DRY_RUN.value:
        return dry_run_tuned(rows, console) if rows else dry_run(planned, console)
    workdir = read_workdir()
    interruption = Interruption()
    # Before this nothing is lost when a signal ends the process.
    with interruption.listening():
        if rows:
            failed = run_tuned(rows, tuning, workdir, console, interruption)
        else:
            failed = run(planned, workdir, console, interruption)
    sys.exit(1 if failed else 0)


def read_workdir() -> Path:
    """Returns --workdir; ends with a usage error without it."""
    if _WORKDIR.value is None:
        command.mistake("--workdir=DIR is needed, such as --workdir=runs/quick")
    return Path(_WORKDIR.value)


def read_seeds(text: str | None, budget: str | None) -> int | None:
    """Returns the number of seeds; None without one, and for auto."""
    if budget is not None and text != AUTO:
        command.mistake(
            f"--budget={budget} is for --seeds=auto: give that too, or leave it out"
        )
    if text is None or text == AUTO:
        return None
    if not text.isdecimal() or int(text) == 0:
        command.mistake(f"--seeds={text}: give a number from 1 on, or auto")
    return int(text)


def read_tune() -> Tuning | None:
    """Returns what --tune gives to choose from; None without it."""
    if not _TUNE.value:
        if _TUNE_SEEDS.value is not None:
            command.mistake(
                f"--tune_seeds={_TUNE_SEEDS.value} is for --tune: give that too, or leave "
                "it out"
            )
        return None
    if _SEEDS.value == AUTO:
        command.mistake(
            f"--tune and --seeds={AUTO} both choose what to train: give --seeds a number"
        )
    return read_tuning(_TUNE.value, _TUNE_SEEDS.value or 1)


def run_auto(planned, overrides, keys, console):
    """Gives seeds to rows until they are decided, or the budget is spent."""
    from launch import auto_seeds

    if "seed" in keys | {*overrides}:
        command.mistake(
            f"--seeds={AUTO} chooses the seeds: leave seed out of the sweep and flags"
        )
    metrics = _metrics(planned)
    interest = command.read_interest(_INTEREST.value, metrics)
    rows = auto_seeds.Rows(_CONFIG.value, [*planned], overrides)
    budget = auto_seeds.read_budget(_BUDGET.value, rows)
    if _DRY_RUN.value:
        dry_run(rows.trials(rows.first), console)
        return auto_seeds.say_what_to_expect(rows, budget, metrics, console)
    workdir = read_workdir()
    interruption = Interruption()
    with interruption.listening(), lock(workdir):
        seeds = rows.first
        already = None
        while seeds:
            trained, before = train(rows.trials(seeds), workdir, console, interruption)
            already = before if already is None else already
            question = auto_seeds.Question(budget, metrics, interest)
            seeds = auto_seeds.next_seeds(rows, seeds, workdir, question, console)
        failed = report(trained, already, workdir, console)
    sys.exit(1 if failed else 0)


def dry_run_tuned(rows, console):
    """Prints a tuned sweep; its compared trials are estimated at their costliest values."""
    chosen = [None] * len(rows)
    later = costliest(rows)
    dry_run(trials_to_run(rows, chosen), console, later)
    names = ", ".join(row.name for row in rows[:SHOWN])
    more = f" and {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""
    console.print(
        f"{len(later)} of them are compared trials, which depend on what the tuning trials "
        f"choose, of {names}{more}; they are counted at the values that take longest, and a "
        "row that is best at its own values needs none of them",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def dry_run(planned, console, later=()):
    """Builds each trial by shape, and prints what there is and what it will take.

    Trials that are not known yet stand in `later` for what they take.
    """
    check_all(planned)
    every = [*planned, *later]
    groups = group_trials(every)
    estimates = list(map(estimate.estimate, groups))
    for trial in planned[:SHOWN]:
        console.print(
            f"{_role_text(trial)}{trial.label or trial.name:40} {trial.point}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    _print_rest(planned, "points", console)
    if not console.is_terminal:
        # A file has no width, and 80 characters would cut the table.
        console.width = 160
    console.print(estimate.table(estimates, SHOWN))
    _print_rest(estimates, "groups", console)
    for group in groups[:SHOWN]:
        try:
            # Only said: the sweep may be meant for another machine.
            cost.check_memory(group[0].settings, machine.here())
        except SettingsError as error:
            console.print(
                f"not here: {group[0].label or group[0].name}: {error}",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
    console.print(
        f"{len(every)} trials in {len(estimates)} groups, each builds; "
        f"{estimate.totals(estimates)}",
        highlight=False,
        soft_wrap=True,
    )
    until_flat = sum(trial.settings.training.until == "flat" for trial in every)
    if until_flat:
        console.print(
            f"{until_flat} of these trials end when their validation perplexity has stopped "
            "falling (training.until=flat): FLOPs and time are the most they may take",
            highlight=False,
            soft_wrap=True,
        )


def _role_text(trial):
    return f"{trial.role}: " if trial.role else ""


def _print_rest(shown, what, console):
    if len(shown) > SHOWN:
        console.print(f"… and {len(shown) - SHOWN} more {what}", highlight=False)


def run(planned, workdir, console, interruption):
    """Runs what has not ended and reports. Returns how many trials failed."""
    with lock(workdir):
        planned, already = train(planned, workdir, console, interruption)
        return report(planned, already, workdir, console)


def run_tuned(rows, tuning, workdir, console, interruption):
    """Runs tuning trials, then what they choose. Returns how many trials failed."""
    with lock(workdir):
        planned = None
        already = None
        # A row's choice is known when its tuning trials have ended, perhaps in an earlier
        # call; without new choices nothing is left.
        while (now := trials_to_run(rows, choices(rows, workdir))) != planned:
            planned = now
            trained, before = train(planned, workdir, console, interruption, tuning)
            already = before if already is None else already
        return report(trained, already, workdir, console)


def train(planned, workdir, console, interruption, tuning=None):
    """Runs what has not ended. Returns the trials, and how many had ended before."""
    planned = adopt_directories(workdir, planned)
    todo = [trial for trial in planned if not is_finished(workdir, trial)]
    already = len(planned) - len(todo)
    if todo:
        # Before the corpora are read, which may take minutes.
        check_all(todo)
        corpora = {trial.settings.data for trial in todo}
        # Once, in this process: the workers open what it leaves in the cache.
        prepared = {data: prepare(data) for data in corpora}
        for line in dict.fromkeys(w for p in prepared.values() for w in p.warnings()):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    _list_trials(workdir, planned, bool(todo), tuning)
    if todo:
        _run(todo, already, prepared, workdir, console, interruption)
    return planned, already


def report(planned, already, workdir, console):
    """Writes the report and prints its table. Returns how many trials failed."""
    from experiments.report.terminal import print_table
    from experiments.report.write import write_report

    written = write_report(workdir, _metrics(planned))
    print_table(written.table, console)
    console.print(
        f"\n{already} of {len(planned)} trials were finished before" if already else "",
        highlight=False,
    )
    place = written.unwritten or written.html
    console.print(f"report: {place}", highlight=False, markup=False, soft_wrap=True)
    return sum(not is_finished(workdir, trial) for trial in planned)


def _list_trials(workdir, planned, is_needed, tuning):
    """Writes sweep.json; where nothing can be written only if that `is_needed`.

    So the table of a finished sweep can be shown from a read-only file system.
    """
    try:
        open_workdir(
            workdir,
            config_flag.config_path(),
            _CONFIG.value,
            _SWEEP.value,
            planned,
            is_auto=_SEEDS.value == AUTO,
            tuning=tuning and tuning.to_json(),
        )
    except OSError as error:
        if is_needed or error.errno not in READ_ONLY:
            raise


def _metrics(planned):
    """Returns all metrics that the trials have, those from outside last."""
    metrics = dict.fromkeys(METRICS)
    for trial in planned:
        metrics.update(dict.fromkeys(trial.settings.evaluation.own_metrics))
    return tuple(metrics)


def _run(todo, already, prepared, workdir, console, interruption):
    pools = Pools(prepared, tuple(_TRACKER.value))
    try:
        for group in group_trials(todo):
            # Before speeds are measured: what does not fit alone fits in no layout.
            cost.check_memory(group[0].settings, pools.machine)
        chosen = schedules(
            pools,
            todo,
            lambda group: estimate.estimate(group).seconds,
            _wish(pools.machine),
            lambda line: console.print(
                line, highlight=False, markup=False, soft_wrap=True
            ),
        )
        for group, schedule in chosen:
            cost.check_memory(
                group[0].settings,
                pools.machine,
                workers=schedule.layout.workers,
                lanes=schedule.layout.lanes,
            )
            # Here, or trials would fail one by one in their workers.
            devices = pools.machine.devices if schedule.layout.lanes == 1 else 1
            for trial in group:
                training = trial.settings.training
                check_batch_size(training.batch_size, devices, training.accumulate)
        metrics = _metrics(todo)
        with Progress(workdir, todo, already, console, metrics) as progress:
            interruption.unsaved = True  # the workers have it
            for trial in run_all(pools, workdir, chosen, progress.update, interruption):
                progress.ended(trial)
    finally:
        pools.stop()
        interruption.unsaved = False


def _wish(machine):
    try:
        return asked_by_user(machine, _WORKERS.value, _LANES.value)
    except ValueError as error:
        command.mistake(error)


def cli() -> None:
    """Runs the command `attn-sweep`."""
    # The workers inherit it; this process only plans.
    huge_pages.use_huge_pages()
    command.start(main, required=("config",))


if __name__ == "__main__":
    cli()
