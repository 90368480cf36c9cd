"""Enters an attention at the bar: a fixed test, against all that was entered before.

    python -m launch.bar my.py:Mine --workdir=runs/mine
    python -m launch.bar normaliser=sparsemax score='softcap(cap=30)' --workdir=runs/sparse

Each word changes one option of attention: a class of your own, or an option with its value.
Seven tasks are trained at three learning rates with four to eight seeds, at base's number of
parameters, and compared with base and with the record. The same command goes on after an
interruption. Its log is WORKDIR/log; experiments/bar/README.md has the rules.

    python -m launch.bar --verify=experiments/bar/entries/small/base --workdir=runs/verify

trains one seed of each task again as a log has it, and says whether it comes out the same.

    python -m launch.bar --enter=runs/mine/log

puts a log among the entries of this checkout, and writes their table and page anew.
"""

import os
import sys
from pathlib import Path

import jax
from absl import flags

from experiments.bar import entry, judge, logs, rules, show, verify
from experiments.sweep.plan import plan_trials
from experiments.system import code, huge_pages
from experiments.system.console import print_line, stdout_console
from experiments.system.files import read_json, write_json
from launch import command, executor_flags
from launch.dry_run import Target, dry_run
from launch.training import Sweep, train_plans

_WORKDIR = command.define_workdir("The directory for everything that is written")
_NAME = flags.DEFINE_string(
    "name", None, "What the entry is called; without it, what it changes"
)
_SIZE = flags.DEFINE_enum("size", "small", rules.SIZES, "Which of the tests")
_VERIFY = flags.DEFINE_string(
    "verify", None, "The log of an entry that is to be checked"
)
_ENTER = flags.DEFINE_string("enter", None, "A log that is put among the entries")
_TABLE = flags.DEFINE_bool(
    "table", False, "Write table, data and page of the entries anew"
)
_DRY_RUN = flags.DEFINE_bool(
    "dry_run", False, "Say what it will take, and train nothing"
)
_DEVICE = flags.DEFINE_string(
    "device", None, "For --dry_run: say what fits this device, as v5e or h100"
)

executor_flags.define_flags()

BEGUN = "bar.json"
"""The file that says whose a workdir is."""


def main(words):
    if _ENTER.value:
        if _NAME.value:
            command.mistake(
                "--enter takes the name in the log: run the entry again with another --name, "
                "which trains nothing"
            )
        return enter(Path(_ENTER.value), stdout_console())
    if _TABLE.value:
        return write_table(_SIZE.value, stdout_console())
    if _DRY_RUN.value:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    else:
        # This process only plans: an accelerator is the workers' to use.
        jax.config.update("jax_platforms", "cpu")
        if _WORKDIR.value is None:
            command.mistake("--workdir=DIR is needed, such as --workdir=runs/mine")
    executor_flags.check()
    if executor_flags.value("join"):
        command.mistake(
            "help with python -m launch.sweep --join: leave --join out here"
        )
    console = stdout_console()
    if _VERIFY.value:
        if words:
            command.mistake(
                f"{words[0]}: --verify has what its log says; leave this out"
            )
        return check_log(logs.read(Path(_VERIFY.value)), console)
    changes = entry.read_changes(words)
    others = logs.read_all(_SIZE.value)
    if not changes and others:
        command.mistake(
            "name what the entry changes: a class of your own as my.py:Mine, or an option as "
            "normaliser=sparsemax"
        )
    if _DRY_RUN.value:
        seeds = max(rules.LOOKS) if changes else rules.BASE_SEEDS
        everything = plan(_SIZE.value, changes, seeds)
        target = Target(device=_DEVICE.value)
        return dry_run(everything, console, target=target, lists_points=False)
    if changes and not others:
        command.mistake(
            f"base has not been entered at --size={_SIZE.value}: train it by python -m "
            f"launch.bar --size={_SIZE.value} --workdir=runs/base, then --enter=runs/base/log"
        )
    check_workdir(changes)
    run_entry(changes, others, console)


def check_workdir(changes):
    """Ends with a usage error where the workdir is another entry's, or another code's."""
    workdir = Path(_WORKDIR.value)
    before = read_json(workdir / BEGUN)
    if before is None or before == _begun(changes):
        return
    named = logs.named(changes)
    whose = f"another entry's, {_words(before['changes'])}"
    if before["changes"] == named and before["size"] == _SIZE.value:
        whose = "of another version of the code, and an entry is of one"
    command.mistake(f"{workdir} is {whose}: choose another --workdir")


def _begun(changes):
    """Returns what says whose a workdir is."""
    return dict(size=_SIZE.value, changes=logs.named(changes), code=code.now())


def _words(changes):
    """Returns what an entry changes in words, as its name where it has no other."""
    return ", ".join(f"{option}={x}" for option, x in changes.items()) or "base"


def plan(size, changes, seeds, tasks=()):
    """Returns the trials of an entry with its first seeds."""
    points = entry.points(size, changes, range(seeds), tasks)
    return plan_trials(rules.get_config(size), points)


def run_entry(changes, others, console):
    """Trains an entry look by look, then writes its log and says what it is."""
    size, workdir = _SIZE.value, Path(_WORKDIR.value)
    tasks = rules.tasks_of(size)
    name = _NAME.value or _words(logs.named(changes))
    # Entered before, it is not compared with itself.
    others = [x for x in others if x.about["changes"] != logs.named(changes)]
    if name in {x.name for x in others}:
        command.mistake(f"--name={name}: an entry has it; choose another")
    standing = judge.standings({x.name: x.values() for x in others}, tasks)
    opponents = [x.values() for x in others if _is_opponent(x.name, standing)]
    print_line(console, f"{name}: {_parameters(size, changes)}")

    def plans():
        write_json(workdir / BEGUN, _begun(changes))
        if not changes:
            yield plan(size, changes, rules.BASE_SEEDS)
            return
        for seeds in rules.LOOKS:
            planned = plan(size, changes, seeds)
            yield planned
            runs = logs.values_of(logs.runs_of(workdir, planned, size), tasks)
            if opponents and judge.is_hopeless(runs, opponents, tasks):
                return
            if seeds < max(rules.LOOKS):
                print_line(
                    console,
                    f"after {seeds} seeds: {_shares(runs, opponents, tasks)}; going on to "
                    f"{max(rules.LOOKS)}",
                )

    def finish(trained):
        written = _write_log(workdir, name, size, changes, trained.planned)
        for line in show.verdict(written, others):
            print_line(console, line)
        place = written.directory
        print_line(console, f"log: {place}; --enter={place} puts it among the entries")

    train_plans(_sweep(workdir, console, size), plans(), finish)


def _parameters(size, changes):
    """Says in words at how many parameters an entry runs, and how d_ff makes them so."""
    counts = entry.parameters(size, changes).values()
    found = sorted(of_task["parameters"] for of_task in counts)
    d_ff = sorted({of_task["d_ff"] for of_task in counts})
    return (
        f"{found[0]:,} to {found[-1]:,} parameters, as base has, with "
        f"d_ff={' or '.join(map(str, d_ff))}"
    )


def _shares(runs, opponents, tasks):
    found = [judge.judge(runs, theirs, tasks).share for theirs in opponents]
    names = ("base", "the record")
    return ", ".join(
        f"wins {100 * share:.0f} % against {of}"
        for share, of in zip(found, names, strict=False)
    )


def _is_opponent(name, standing):
    """Whether an entry is base or the record."""
    records = [x for x, found in standing.items() if found.is_record]
    return name in (records[0], records[-1])


def _sweep(workdir, console, size):
    place = f"{rules.__file__}:{size}"
    config = rules.get_config(size)
    return Sweep(
        workdir,
        console,
        place,
        config,
        ["tasks", "rate"],
        decides=True,
        prints_warnings=False,
    )


def _write_log(workdir, name, size, changes, planned):
    """Writes the log; one that says the same already stays as it is."""
    runs = sorted(logs.runs_of(workdir, planned, size))
    directory = workdir / "log"
    if directory.exists():
        before = logs.read(directory)
        if before.name == name and repr(sorted(before.runs)) == repr(runs):
            return before
    record = read_json(workdir / planned[0].directory / "record.json")
    about = logs.describe(name, size, changes, record)
    logs.write(directory, about, runs, changes)
    return logs.read(directory)


def check_log(checked, console):
    """Trains the first seed of each task again, at the rate that the log has chosen."""
    workdir, size = Path(_WORKDIR.value), checked.about["size"]
    changes = logs.changes_of(checked)
    verify.check_parameters(checked, changes)
    chosen = {task: by_seed[0].rate for task, by_seed in checked.chosen().items()}
    planned = [
        trial
        for trial in plan(size, changes, 1)
        if trial.settings.training.learning_rate == chosen[logs.task_of(trial)]
    ]

    def finish(trained):
        again = logs.runs_of(workdir, trained.planned, size)
        lines, is_same = verify.compare(checked, again)
        for line in lines:
            print_line(console, line)
        sys.exit(0 if is_same else 1)

    train_plans(_sweep(workdir, console, size), iter([planned]), finish)


def enter(directory, console):
    """Copies a log to those of the entries, and writes the table and the page."""
    entered = logs.read(directory)
    logs.copy(entered, logs.FOLDER)
    write_table(entered.about["size"], console)


def write_table(size, console):
    """Writes what README, data and page say of a size's entries."""
    for path in show.write(size):
        print_line(console, f"written: {path}")


def cli() -> None:
    """Runs the command `attn-bar`."""
    huge_pages.use_huge_pages()
    executor_flags.define_slurm_flags(sys.argv[1:])
    command.start(main, takes_words=True)


if __name__ == "__main__":
    cli()
