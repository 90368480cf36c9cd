"""Workers that end their trials as a test says, and a sweep of such trials."""

import concurrent.futures as futures
import contextlib
from types import SimpleNamespace
from unittest import mock

from experiments.sweep import here
from experiments.sweep.joiner import Board, name_of
from experiments.sweep.plan import plan_trials
from experiments.sweep.workdir import record_failure
from experiments.system.files import write_json
from experiments.system.machine import Machine
from experiments.system.signals import Interrupted, Interruption
from tests.experiments import tiny


def finish(workdir, trial):
    write_json(workdir / trial.directory / "result.json", dict(status="finished"))


def fail(workdir, trial):
    record_failure(workdir, trial, "no memory")


def die(workdir, trial):
    raise futures.BrokenExecutor("by a test")


class Worker:
    """Takes trials as a worker process does, and ends one when it is told to go on."""

    def __init__(self, end=finish, status=None):
        self.end = end
        self.exit_status = lambda: status
        self.ran = []
        self.restarts = 0
        self.trial = None

    def train(self, workdir, groups, joiner, number):
        self.left = [trial for group in groups for trial in group.trials]
        self.board = Board(workdir, self.left, joiner, number)
        self.future = futures.Future()
        self._take()
        return self.future

    def go_on(self):
        if self.trial is None:
            return
        trial, self.trial = self.trial, None
        try:
            self.end(self.board.workdir, trial)
        except Exception as error:
            self.future.set_exception(error)
        else:
            self.board.settle(trial)
            self._take()

    def terminate(self):
        if self.trial is not None:
            self.board.claims.give_back(name_of(self.trial), "its process left")
        self.future.set_exception(Interrupted())

    def restart(self):
        self.restarts += 1

    def _take(self):
        self.trial = self.board.take(self.left)
        if self.trial is None:
            self.future.set_result(None)
        else:
            self.ran.append(self.trial)


def join(workdir, trials, *workers, silence=120.0, is_guest=False, interruption=None):
    """Joins a sweep with these workers, which go on before each look; yields meanwhile."""
    wishes = here.Wishes(workers=len(workers), silence=silence)
    interruption = interruption or Interruption()
    process = here.Here(workdir, {}, wishes, print, interruption, is_guest=is_guest)
    pools = SimpleNamespace(
        machine=Machine("cpu", 1, 2),
        workers=lambda layout: workers[: layout.workers],
        stop=lambda: None,
    )
    with contextlib.closing(process.train(trials)) as training:
        with mock.patch.object(here, "Pools", return_value=pools):
            is_left = next(training, training) is None
        while is_left:
            yield
            for worker in workers:
                worker.go_on()
            is_left = next(training, training) is None


def train(workdir, trials, *workers, **options):
    """Trains to the end with these workers."""
    for _ in join(workdir, trials, *workers, **options):
        pass


def planned(seeds):
    points = [
        tiny.POINT | {"seed": seed, "model.N": layers}
        for layers in (1, 2)
        for seed in range(seeds)
    ]
    return plan_trials({}, points)


def ran(*workers):
    return [trial for worker in workers for trial in worker.ran]
