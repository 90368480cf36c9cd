"""Trains trials in worker processes of this machine."""

import concurrent.futures as futures
import random
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.data.dataset import Dataset
from experiments.errors import UserError
from experiments.settings import Data
from experiments.sweep.claims import SILENCE
from experiments.sweep.joiner import TICK, check, run_trials
from experiments.sweep.plan import Trial, group_trials, trained_once
from experiments.sweep.schedule import (
    Schedule,
    asked_by_user,
    choose,
    layouts,
)
from experiments.sweep.workdir import is_cancelled
from experiments.sweep.workers import Group, Pools
from experiments.system.files import write_json
from experiments.system.signals import STATUS, Interrupted, Interruption
from experiments.trial import cost
from experiments.trial.lanes import check_batch_size

PATIENCE = 120.0
"""Seconds that workers have to save and leave; more than a compilation takes."""

Chosen = list[tuple[list[Trial], Schedule]]
"""Groups of trials, and how each is run."""


class Wishes(NamedTuple):
    """What a user asks of the processes that train."""

    workers: int = 0
    """Processes; 0 chooses."""
    lanes: int = 0
    """Trials side by side in a process; 0 chooses."""
    trackers: tuple[str, ...] = ()
    silence: float = SILENCE
    """Seconds without a heartbeat after which another process is considered dead."""


class Here:
    """Trains trials in this process's workers, beside those of other machines that join."""

    def __init__(
        self,
        workdir: Path,
        prepared: Mapping[Data, Dataset],
        wishes: Wishes,
        say: Callable[[str], None],
        interruption: Interruption,
        *,
        is_guest: bool = False,
        job: str | None = None,
    ):
        """Trains in `workdir`; a guest's sweep is another process's, and it leaves earlier."""
        self._workdir = workdir
        self._prepared = dict(prepared)
        self._wishes = wishes
        self._say = say
        self._interruption = interruption
        self._is_guest = is_guest
        self._job = job
        self._pools = None
        self._chosen = None

    def train(self, trials: Sequence[Trial]) -> Iterator[None]:
        """Trains all trials, but for those that others train; yields twice a second."""
        self._pools = Pools(self._prepared, self._wishes.trackers)
        try:
            groups = group_trials(trials)
            for group in groups:
                # Before speeds are measured: what does not fit alone fits in no layout.
                cost.check_memory(group[0].settings, self._pools.machine)
            if not self._is_guest:
                self._chosen = self._choose(groups, len(trials))
                write_schedule(self._workdir, self._chosen)
            # The workers have it.
            self._interruption.unsaved = True
            yield from run_trials(
                self._workdir,
                trials,
                self._run,
                self._interruption,
                stays=not self._is_guest,
                silence=self._wishes.silence,
                job=self._job,
            )
        finally:
            self._pools.stop()
            self._interruption.unsaved = False

    def _run(self, board, free):
        """Runs free trials, those of one layout after those of another."""
        chosen = _of(self._chosen, free) if self._chosen else self._choose_some(free)
        try:
            for layout in dict.fromkeys(schedule.layout for _, schedule in chosen):
                groups = [
                    Group(trials, schedule.layout.lanes)
                    for trials, schedule in chosen
                    if schedule.layout == layout
                ]
                workers = self._pools.workers(layout)
                yield from self._run_groups(board, workers, groups)
        except BaseException:
            # Before their trials are given back, which others then take.
            self._pools.stop()
            raise

    def _run_groups(self, board, workers, groups):
        """Has workers train groups until none of their trials is free."""
        trials = [trial for group in groups for trial in group.trials]
        # {future: (number, worker)}
        running = {}
        while True:
            if self._interruption.asked:
                self._interrupt(running)
            busy = {number for number, _ in running.values()}
            idle = {*range(len(workers))} - busy
            if idle and any(map(board.is_free, trials)):
                for i in idle:
                    arguments = self._workdir, groups, board.claims.joiner, i
                    running[workers[i].train(*arguments)] = i, workers[i]
            if not running:
                return
            some_done = futures.FIRST_COMPLETED
            futures.wait(running, timeout=TICK, return_when=some_done)
            if is_cancelled(self._workdir):
                self._interruption.asked = True
            # The workers may have got the signal too, so their errors mean nothing.
            if not self._interruption.asked:
                self._look_after(board, running)
            yield

    def _look_after(self, board, running):
        """Takes note of workers that have ended, or died."""
        for future, (number, worker) in list(running.items()):
            if not future.done():
                continue
            del running[future]
            error = future.exception()
            if _is_interruption(worker, error):
                # Another process than this one has stopped the worker.
                self._interruption.asked = True
                return
            if error is not None:
                cause = _cause_of_death(worker, error)
                if not board.fail_for(number, cause):
                    # No trial's fault: another worker would die as well.
                    raise UserError(f"{cause}, before it took a trial") from error
                worker.restart()
            # What the worker has taken shows in a list that is made now.
            board.listing(now=True)

    def _interrupt(self, running):
        """Has the workers save their checkpoints and leave; then raises."""
        for _, worker in running.values():
            worker.terminate()
        futures.wait(running, timeout=PATIENCE)
        check(self._workdir, self._interruption)

    def _choose(self, groups: Sequence[list[Trial]], trials: int) -> Chosen:
        """Chooses how groups are to be run, and checks that they can be.

        `trials` are those of all groups, which share the processes.
        """
        chosen = []
        machine = self._pools.machine
        for group in groups:
            schedule = self._schedule(group, trials)
            cost.check_memory(
                group[0].settings,
                machine,
                workers=schedule.layout.workers,
                lanes=schedule.layout.lanes,
            )
            # Here, or trials would fail one by one in their workers.
            devices = machine.devices if schedule.layout.lanes == 1 else 1
            for trial in group:
                training = trial.settings.training
                check_batch_size(training.batch_size, devices, training.accumulate)
            chosen.append((group, schedule))
        return chosen

    def _schedule(self, group, trials):
        machine = self._pools.machine
        wish = asked_by_user(machine, self._wishes.workers, self._wishes.lanes)
        if wish:
            return Schedule(wish, "as asked")
        # As many trials at a time as there is memory for.
        processes = min(trials, cost.most_at_once(group[0].settings, machine))
        measure = lambda layout: self._pools.measure(group[0], layout)
        schedule = choose(machine, _steps(group), measure, processes)
        if schedule.why.startswith("measured"):
            layout = schedule.layout.name
            self._say(f"{group[0].name}: {layout} ({schedule.why})")
        return schedule

    def _choose_some(self, free: list[Trial]) -> Chosen:
        """Chooses for all groups, for one where it is measured: others take the rest."""
        groups = group_trials(free)
        is_measured = any(
            len(layouts(self._pools.machine, len(group))) > 1 for group in groups
        )
        if is_measured and not (self._wishes.workers or self._wishes.lanes):
            groups = [random.choice(groups)]
        return self._choose(groups, len(free))


def _steps(group):
    # A lane for what copies another's training would be empty.
    return [trial.settings.training.steps for trial in trained_once(group)]


def _of(chosen, free: Sequence[Trial]) -> Chosen:
    """Returns what is free of groups that were chosen for."""
    names = {trial.directory for trial in free}
    left = []
    for group, schedule in chosen:
        trials = [trial for trial in group if trial.directory in names]
        if trials:
            left.append((trials, schedule))
    return left


def write_schedule(workdir: Path, chosen: Chosen) -> None:
    """Keeps how groups are run, and why, in schedule.json."""
    entries = []
    for group, schedule in chosen:
        directories = [trial.directory for trial in group]
        layout = schedule.layout._asdict()
        entries.append(dict(trials=directories, layout=layout, why=schedule.why))
    write_json(workdir / "schedule.json", entries)


def _is_interruption(worker, error):
    """Whether a call ended because its process was asked to stop.

    With nothing to save it leaves at once, even in the middle of a compilation.
    """
    if isinstance(error, futures.BrokenExecutor):
        return worker.exit_status() == STATUS
    return isinstance(error, Interrupted)


def _cause_of_death(worker, error):
    """Returns what to say of a call that its process did not survive."""
    is_dead = isinstance(error, futures.BrokenExecutor)
    status = (worker.exit_status() or 0) if is_dead else 0
    if status == -signal.SIGKILL:
        return "the worker process was killed; the machine may have run out of memory"
    if status < 0:
        name = signal.Signals(-status).name
        return f"the worker process crashed with {name}, in compiled code most likely"
    return f"the worker process died ({error})"
