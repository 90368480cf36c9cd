"""The flags of launch.sweep that say where trials are trained, and by how many processes."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from experiments.data.dataset import Dataset
from experiments.settings import Data
from experiments.sweep import slurm
from experiments.sweep.claims import SILENCE
from experiments.sweep.here import Here, Wishes
from experiments.sweep.nodes import train_on_nodes
from experiments.sweep.plan import Trial
from experiments.system.signals import Interruption
from launch import command

SLURM = "slurm."
"""What flags for sbatch begin with: --slurm.partition=gpu, --slurm.time=240."""


def define_flags() -> None:
    """Defines the flags, but for those of sbatch."""
    flags.DEFINE_integer("workers", 0, "Worker processes; 0 chooses", lower_bound=0)
    flags.DEFINE_integer(
        "lanes", 0, "Trials side by side in a process; 0 chooses", lower_bound=0
    )
    flags.DEFINE_enum(
        "on",
        "here",
        ["here", "slurm", "join"],
        "Where trials are trained: here, as tasks of a SLURM array, or by who joins",
    )
    flags.DEFINE_integer(
        "jobs", 8, "For --on=slurm: the most tasks at a time", lower_bound=1
    )
    flags.DEFINE_integer(
        "nodes",
        1,
        "For --on=slurm: the nodes that train a trial together",
        lower_bound=1,
    )
    flags.DEFINE_bool(
        "join",
        False,
        "Help with the sweep in --workdir, which another call has planned",
    )
    flags.DEFINE_float(
        "silence",
        SILENCE,
        "Seconds without a heartbeat after which others' trials are taken over",
        lower_bound=2.0,
    )
    command.define_outside()
    command.define_tracker()


def define_slurm_flags(arguments: Sequence[str]) -> None:
    """Defines a flag for each --slurm.NAME that is given: sbatch knows what there is."""
    for argument in arguments:
        name = argument.lstrip("-").partition("=")[0]
        if name.startswith(SLURM) and name not in flags.FLAGS:
            flags.DEFINE_string(name, None, "A flag of sbatch")


def value(name: str) -> Any:
    """Returns the value of one of these flags."""
    return flags.FLAGS[name].value


def check() -> None:
    """Ends with a usage error for flags that would be ignored."""
    if value("join") and value("on") != "here":
        command.mistake(
            f"--join trains here what another call has planned: leave --on={value('on')} out"
        )
    if value("join") or value("on") == "slurm":
        return
    given = [f"--{SLURM}{name}" for name in _given_to_slurm()]
    given += [f"--{name}" for name in ("jobs", "nodes") if flags.FLAGS[name].present]
    if given:
        command.mistake(f"{given[0]} is for --on=slurm: give that too, or leave it out")


def nodes_of_a_trial() -> int:
    """Returns the nodes of a cluster that train a trial, 0 where there is no cluster."""
    return value("nodes") if value("on") == "slurm" else 0


def train(
    workdir: Path,
    trials: Sequence[Trial],
    prepared: Mapping[Data, Dataset],
    say: Callable[[str], None],
    interruption: Interruption,
    outside: Iterable[str],
) -> Iterator[None]:
    """Trains trials of a workdir as the flags ask, or waits for others; yields meanwhile.

    A new kind of cluster is one more function that starts joiners, and yields while they
    train. `outside` is the code from outside that the trials name, which others are told.
    """
    if value("on") == "join":
        return slurm.wait_for_others(workdir, trials)
    if value("on") == "slurm":
        join = [*_python("sweep"), "--join", *_flags_to_join(workdir, outside)]
        flags_of_sbatch = _given_to_slurm()
        how = (value("jobs"), flags_of_sbatch, join, say, value("nodes"))
        return slurm.train_on_slurm(workdir, trials, *how)
    silence = value("silence")
    job = slurm.task_name()
    if value("join") and value("nodes") > 1:
        one = [*_python("trial"), *_flags_to_train(workdir, outside)]
        each = slurm.on_nodes(value("nodes"), one)
        return train_on_nodes(workdir, trials, each, interruption, silence, job)
    wishes = Wishes(value("workers"), value("lanes"), tuple(value("tracker")), silence)
    is_guest = value("join")
    here = Here(
        workdir, prepared, wishes, say, interruption, is_guest=is_guest, job=job
    )
    return here.train(trials)


def _given_to_slurm():
    """Returns {"partition": "gpu"} for --slurm.partition=gpu."""
    values = flags.FLAGS.flag_values_dict()
    return {
        name.removeprefix(SLURM): text
        for name, text in values.items()
        if name.startswith(SLURM) and text is not None
    }


def _python(name):
    """Returns how another process runs a command of this project."""
    return [sys.executable, "-m", f"launch.{name}"]


def _flags_to_join(workdir, outside):
    """Returns the flags with which another process joins this call's sweep."""
    names = ("workers", "lanes", "nodes", "silence")
    given = [f"--{name}={value(name)}" for name in names]
    return _flags_to_train(workdir, outside) + given


def _flags_to_train(workdir, outside):
    """Returns the flags with which another process trains a trial of this call's sweep."""
    given = [f"--workdir={workdir.absolute()}"]
    # Who submits a sweep has asked for the code that it names.
    lists = {"tracker": value("tracker"), "outside": [*value("outside"), *outside]}
    for name, values in lists.items():
        if values:
            given.append(f"--{name}={','.join(values)}")
    return given
