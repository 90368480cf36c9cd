"""Trains the trials that a command plans, as the flags of `executor_flags` ask."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import rich.console

from experiments.data.dataset import Dataset, prepare
from experiments.evaluation.metrics import METRICS, Metric
from experiments.settings import Data
from experiments.sweep.claims import Presence
from experiments.sweep.joiner import begin
from experiments.sweep.plan import Trial, check_all
from experiments.sweep.progress import Progress
from experiments.sweep.workdir import (
    adopt_directories,
    check_one_code,
    is_finished,
    open_workdir,
)
from experiments.system.console import print_line
from experiments.system.files import READ_ONLY, lock
from experiments.system.signals import Interruption
from launch import executor_flags


class Sweep(NamedTuple):
    """Holds what the trials of a command have in common."""

    workdir: Path
    console: rich.console.Console
    path: str
    """The config file."""
    config: Any
    names: Sequence[str] = ()
    """The sweeps of the file whose points the trials are."""
    decides: bool = False
    """Whether results decide which trials are planned next."""
    is_auto: bool = False
    """Whether they decide how many seeds there are, see `workdir.set_looks`."""
    tuning: Mapping[str, Any] | None = None
    """What is chosen from, as `workdir.open_workdir` writes it."""
    mixed_code: bool = False
    """Whether trials of different code may be compared."""
    prints_warnings: bool = True
    """Whether to print warnings about the corpora; the bar's are fixed, so it does not."""
    when_listed: Callable[[Sequence[Trial]], None] = lambda planned: None
    """Called when the trials are listed, before any is trained."""


class Trained(NamedTuple):
    """Holds the trials of the last plan."""

    planned: list[Trial]
    before: int
    """How many of them had ended before."""


def train_plans(
    sweep: Sweep, plans: Iterator[list[Trial]], finish: Callable[[Trained], None]
) -> None:
    """Runs what has not ended, plan after plan, then calls `finish`.

    A plan may be made of the results of the one before. The workdir is locked meanwhile.
    """
    interruption = Interruption()
    with contextlib.ExitStack() as stack:
        # Before this nothing is lost when a signal ends the process.
        stack.enter_context(interruption.listening())
        stack.enter_context(lock(sweep.workdir))
        if sweep.decides:
            # Who joins waits for what is planned later.
            stack.enter_context(Presence(sweep.workdir, plans=True))
        new = 0
        planned = []
        for plan in plans:
            planned, already = _train(sweep, plan, interruption)
            new += len(planned) - already
        finish(Trained(planned, len(planned) - new))


def train_free(
    sweep: Sweep, planned: Sequence[Trial], interruption: Interruption
) -> None:
    """Trains what nobody else does, as a guest of the process that planned it."""
    todo = _todo(sweep, planned)
    if todo:
        check_code(sweep, planned)
        prepared = _prepare_all(sweep, todo)
        _run(sweep, todo, len(planned) - len(todo), prepared, interruption)


def check_code(sweep: Sweep, planned: Sequence[Trial]) -> None:
    """Says which trials other code has begun; ends where the next trials depend on them."""
    check_one_code(
        sweep.workdir,
        planned,
        lambda line: print_line(sweep.console, line),
        mixed_code=sweep.mixed_code,
        decides=sweep.decides,
    )


def _prepare_all(sweep: Sweep, todo: Sequence[Trial]) -> dict[Data, Dataset]:
    """Returns the corpora of trials: the workers open what this process leaves in the cache."""
    prepared = {data: prepare(data) for data in {t.settings.data for t in todo}}
    if sweep.prints_warnings:
        for line in dict.fromkeys(w for p in prepared.values() for w in p.warnings()):
            print_line(sweep.console, line)
    return prepared


def metrics_of(planned: Sequence[Trial]) -> tuple[Metric, ...]:
    """Returns all metrics that the trials have, custom ones last."""
    metrics = dict.fromkeys(METRICS)
    for trial in planned:
        metrics.update(dict.fromkeys(trial.settings.evaluation.own_metrics))
    return tuple(metrics)


def _todo(sweep, planned):
    return [trial for trial in planned if not is_finished(sweep.workdir, trial)]


def _train(sweep, planned, interruption):
    """Runs what has not ended. Returns the trials, and how many had ended before."""
    planned = adopt_directories(sweep.workdir, planned)
    todo = _todo(sweep, planned)
    already = len(planned) - len(todo)
    if todo:
        # Before the corpora are read, which may take minutes.
        check_code(sweep, planned)
        check_all(todo)
        prepared = _prepare_all(sweep, todo)
    _list_trials(sweep, planned, is_needed=bool(todo))
    sweep.when_listed(planned)
    if todo:
        _run(sweep, todo, already, prepared, interruption)
    return planned, already


def _list_trials(sweep, planned, is_needed):
    """Writes sweep.json; where nothing can be written only if that `is_needed`.

    So the table of a finished sweep can be shown from a read-only file system.
    """
    try:
        open_workdir(
            sweep.workdir,
            sweep.path,
            sweep.config,
            [*sweep.names],
            planned,
            is_auto=sweep.is_auto,
            tuning=sweep.tuning,
        )
    except OSError as error:
        if is_needed or error.errno not in READ_ONLY:
            raise


def _run(sweep, todo, already, prepared, interruption):
    say = lambda line: print_line(sweep.console, line)
    if not executor_flags.value("join"):
        begin(sweep.workdir, todo)
    outside = {f"{c.place}:{c.name}" for t in todo for c in t.settings.outside()}
    training = executor_flags.train(
        sweep.workdir, todo, prepared, say, interruption, sorted(outside)
    )
    progress = Progress(sweep.workdir, todo, already, sweep.console, metrics_of(todo))
    progress.follow(training)
