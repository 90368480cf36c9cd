"""Runs a sweep: the product of the named sweeps of a config.

python -m launch.sweep --config=experiments/configs/quick.py --sweep=table,seed
--workdir=runs/quick

Finished trials are skipped and interrupted ones go on, so the same command again
finishes what is left. SIGTERM and Ctrl-C save the trials that run and leave, with exit
status 75; a second one leaves at once. --seeds=5 runs each point with five seeds,
--only='(A)' only the points with that in their label or name. --dry_run checks every
point, shows what there is and estimates what it will take, and trains nothing;
--device=v5e-4 with it compiles each group for that device, which need not be there, and
says how many trials of it fit.

python -m launch.sweep --config=experiments/configs/quick.py --sweep=table --seeds=auto
--budget=80 --interest=bleu:0.5 --workdir=runs/auto

gives each row two seeds, and more to those that are undecided, until what is left of 80
trials can decide none (--budget=2h: two hours of training, all trials together).

python -m launch.sweep --config=experiments/configs/quick.py --sweep=table --seeds=3
--tune=training.learning_rate:0.2,0.35,0.7 --workdir=runs/tuned

trains each row at its own learning rate and at these, on --tune_seeds seeds that are not
compared; then its three seeds at the one of the lowest validation perplexity. Several --tune
give the product of their values. The report has the rows at their own values beside it.
"""

import contextlib
import dataclasses
import functools
import os
import sys
import time
from pathlib import Path

import jax
from absl import flags

from experiments.sweep.claims import Others, planner_lives
from experiments.sweep.joiner import CancelledError
from experiments.sweep.plan import plan_trials
from experiments.sweep.points import expand, select_points, sweeps_of
from experiments.sweep.tuning import (
    Tuning,
    choices,
    plan_rows,
    read_tuning,
    trials_to_run,
)
from experiments.sweep.workdir import (
    is_finished,
    read_sweep_file,
    read_trials,
    set_question,
)
from experiments.system import huge_pages, machine
from experiments.system.console import print_line, stdout_console
from experiments.system.signals import Interruption
from launch import command, config_flag, executor_flags
from launch.dry_run import Target, dry_run, dry_run_tuned
from launch.training import Sweep, metrics_of, train_free, train_plans

config_flag.define_config()
_WORKDIR = command.define_workdir(
    "The directory for everything that is written; needed without --dry_run"
)
_SWEEP = flags.DEFINE_list(
    "sweep",
    None,
    "Names of the config's sweeps; their product is run. Empty for the config alone",
)
_ONLY = flags.DEFINE_string(
    "only",
    "",
    "Run the points with this text, or this regular expression, in label or name",
)
_SEEDS = flags.DEFINE_string(
    "seeds",
    None,
    "Number of seeds of each point, from 0 on; auto: as many as decide",
)
_BUDGET = flags.DEFINE_string(
    "budget",
    None,
    "For --seeds=auto: the number of trials in all, or hours of training as 2h",
)
_INTEREST = command.define_interest()
_QUESTION = command.define_question()
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
_MIXED_CODE = command.define_mixed_code()
_DEVICE = flags.DEFINE_string(
    "device",
    None,
    "For --dry_run: say what fits this device, as v5e, v5e-4, v6e, v6e-4 or h100",
)


executor_flags.define_flags()

PAUSE = 5.0
"""Seconds until one who joins looks for trials that were planned since."""

AUTO = "auto"
"""The value of --seeds that has the table choose."""


def main():
    if _DRY_RUN.value:
        # A sweep may run beside it on the same accelerator.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        machine.check_platform()
    else:
        # This process only plans: an accelerator is the workers' to use.
        jax.config.update("jax_platforms", "cpu")
    executor_flags.check()
    console = stdout_console()
    if executor_flags.value("join"):
        return join(console)
    planned, overrides, keys = plan(console)
    tuning = read_tune()
    if _SEEDS.value == AUTO:
        plans = plan_auto(planned, overrides, keys, console)
    elif tuning:
        config = config_flag.experiment().config
        rows = plan_rows(config, planned, overrides, tuning)
        if _DRY_RUN.value:
            return dry_run_tuned(rows, console, target())
        plans = plan_tuned(rows, read_workdir())
    elif _DRY_RUN.value:
        return dry_run(planned, console, target=target())
    else:
        plans = iter([planned])
    # None after a dry run.
    if plans is not None:
        train_plans(_sweep(console, tuning), plans, functools.partial(finish, console))


def plan(console):
    """Returns the trials that the flags ask for, what flags set, and what points set."""
    if _DEVICE.value is not None and not _DRY_RUN.value:
        command.mistake(
            f"--device={_DEVICE.value} is for --dry_run: give that too, or leave it out"
        )
    _, module, config, overrides = config_flag.experiment()
    known = sweeps_of(module)
    seeds = read_seeds(_SEEDS.value, _BUDGET.value)
    expanded = expand(known, read_sweeps(known), config, seeds)
    points = select_points(expanded, _ONLY.value)
    keys = set().union(*points)
    # The sweep would win, and the flag be ignored in silence.
    if both := {*overrides} & keys:
        command.mistake(
            f"--config.{min(both)} is given, and the sweep sets it too: leave one of them out"
        )
    planned = plan_trials(config, points, overrides)
    if equal := len(points) - len(planned):
        print_line(
            console,
            f"{equal} of {len(points)} points have the settings of another and run once with it\n",
        )
    return planned, overrides, keys


def read_sweeps(known) -> list[str]:
    """Returns the names that --sweep has; ends with a usage error where it is forgotten."""
    if _SWEEP.value is None and known:
        names = ", ".join(known)
        command.mistake(
            f"--config={config_flag.experiment().path} has the sweeps {names}: name some with "
            f"--sweep={next(iter(known))}, or none with --sweep= to run the config alone"
        )
    return _SWEEP.value or []


def join(console):
    """Trains what is free of a sweep that another call has planned."""
    for flag in (_SWEEP, _ONLY, _SEEDS, _BUDGET, _TUNE, _DRY_RUN, *_QUESTION.values()):
        if flag.value:
            command.mistake(
                f"--join takes the trials that are planned: leave --{flag.name} out"
            )
    command.load_outside(executor_flags.value("outside"))
    workdir = read_workdir()
    # As a guest it lists nothing.
    sweep = Sweep(workdir, console, "", None, mixed_code=_MIXED_CODE.value)
    interruption = Interruption()
    others = Others(workdir, executor_flags.value("silence"))
    listed = None
    with interruption.listening():
        while True:
            before, listed = listed, read_sweep_file(workdir)
            if listed != before or listed is None:
                planned = read_trials(workdir)
                try:
                    train_free(sweep, planned, interruption)
                except CancelledError as error:
                    # No failure: a scheduler must not start this process again.
                    return print_line(console, str(error))
            elif not planner_lives(workdir, others):
                break
            else:
                time.sleep(PAUSE)
    left = sum(not is_finished(workdir, trial) for trial in planned)
    print_line(
        console,
        f"nothing is left to take; {left} of {len(planned)} trials have no result yet"
        if left
        else f"all {len(planned)} trials have ended: "
        f"python -m launch.report --workdir={workdir}",
    )


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
    if _INTEREST.value and text != AUTO:
        command.mistake(
            f"--interest={','.join(_INTEREST.value)} is for --seeds=auto here: leave it out, and "
            "give it to launch.report"
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


def plan_auto(planned, overrides, keys, console):
    """Returns the trials of each look, more and more until rows are decided or budget is spent."""
    from launch import auto_seeds

    if "seed" in keys | {*overrides}:
        command.mistake(
            f"--seeds={AUTO} chooses the seeds: leave seed out of the sweep and flags"
        )
    metrics = metrics_of(planned)
    interest = command.read_interest(_INTEREST.value, metrics)
    asked = read_question(keys)
    if asked and asked.pairs:
        command.mistake(
            f"--pairs={','.join(asked.pairs)}: --seeds={AUTO} gives seeds to rows that have "
            "one base each: give --base, and --within"
        )
    config = config_flag.experiment().config
    rows = auto_seeds.Rows(config, [*planned], overrides, asked)
    budget = auto_seeds.read_budget(_BUDGET.value, rows)
    if _DRY_RUN.value:
        dry_run(rows.trials(rows.first), console, target=target())
        return auto_seeds.say_what_to_expect(rows, budget, metrics, console)
    aim = auto_seeds.Aim(budget, metrics, interest, asked)

    def looks(workdir):
        seeds = rows.first
        while seeds:
            yield rows.trials(seeds)
            seeds = auto_seeds.next_seeds(rows, seeds, workdir, aim, console)

    return looks(read_workdir())


def plan_tuned(rows, workdir):
    """Yields the tuning trials, then with them what they choose."""
    planned = None
    # A row's choice is known when its tuning trials have ended, perhaps in an earlier call;
    # without new choices nothing is left.
    while (now := trials_to_run(rows, choices(rows, workdir))) != planned:
        planned = now
        yield planned


def read_question(keys):
    """Returns what flags ask, else what the config's sweeps ask; None for neither.

    A sweep asks by its attribute `question`, of which what no point sets (`keys`) is left out.
    """
    from experiments.report.questions import Question

    asked = command.read_question(_QUESTION)
    if asked is not None:
        return asked
    known = sweeps_of(config_flag.experiment().module)
    found = [getattr(known[name], "question", None) for name in _SWEEP.value or []]
    found = list(filter(None, found))
    if not found:
        return None
    if len(found) > 1:
        names = ", ".join(n for n in _SWEEP.value if hasattr(known[n], "question"))
        command.mistake(
            f"the sweeps {names} each ask a question: give one, by --base, --within or --pairs"
        )
    question = Question.of(found[0])
    varies = lambda name: any(key == name or key.endswith(f".{name}") for key in keys)
    return dataclasses.replace(question, within=tuple(filter(varies, question.within)))


def _sweep(console, tuning):
    """Returns what the flags say of the sweep that is trained."""
    experiment = config_flag.experiment()
    workdir = read_workdir()
    return Sweep(
        workdir,
        console,
        experiment.path,
        experiment.config,
        _SWEEP.value or [],
        decides=_SEEDS.value == AUTO or bool(tuning),
        is_auto=_SEEDS.value == AUTO,
        tuning=tuning and tuning.to_json(),
        mixed_code=_MIXED_CODE.value,
        when_listed=functools.partial(_ask, workdir),
    )


def _ask(workdir, planned):
    """Notes the question before training; one of flags only where the sweep has rows for it.

    Of one of the config's the report says where it does not fit.
    """
    from experiments.report.questions import pairs_of
    from experiments.report.trial_files import read_results
    from experiments.report.tuned_rows import compared_rows

    asked = read_question(set().union(*(trial.point for trial in planned)))
    if asked is None:
        return
    if command.read_question(_QUESTION) is not None:
        pairs_of(compared_rows(read_results(workdir)), asked)
    with contextlib.suppress(OSError):
        set_question(workdir, asked.to_json())


def finish(console, trained):
    """Writes the report, prints its table and ends, with status 1 where trials failed."""
    from experiments.report.terminal import print_table
    from experiments.report.write import write_report

    planned, before = trained
    workdir = read_workdir()
    metrics = metrics_of(planned)
    written = write_report(workdir, metrics, mixed_code=_MIXED_CODE.value)
    print_table(written.table, console)
    print_line(
        console,
        f"\n{before} of {len(planned)} trials were finished before" if before else "",
    )
    place = written.unwritten or written.html
    print_line(console, f"report: {place}")
    sys.exit(1 if any(not is_finished(workdir, trial) for trial in planned) else 0)


def target():
    """Returns what a dry run is for, beside this machine."""
    return Target(executor_flags.nodes_of_a_trial(), _DEVICE.value)


def cli() -> None:
    """Runs the command `attn-sweep`."""
    # The workers inherit it; this process only plans.
    huge_pages.use_huge_pages()
    executor_flags.define_slurm_flags(sys.argv[1:])
    command.start(main, required=("config",), unless={"config": "join"})


if __name__ == "__main__":
    cli()
