"""Workers that end their trials as a test says, and a sweep of such trials."""

import concurrent.futures as futures

from experiments.sweep.joiner import Share, run_trials
from experiments.sweep.plan import group_trials, lane_key, plan_trials
from experiments.sweep.schedule import Layout, Schedule
from experiments.sweep.workdir import record_failure
from experiments.system.files import write_json
from experiments.system.signals import Interrupted
from tests.experiments import tiny


class Worker:
    """Ends its trials when it is told to, with a result or an error."""

    program = None

    def __init__(self, end=lambda workdir, trial: finish(workdir, trial)):
        self.end = end
        self.shares = []
        self.restarts = 0
        self.waiting = None

    def run(self, workdir, trials, lanes):
        self.program = lane_key(trials[0].settings)
        self.shares.append(Share(list(trials), lanes))
        future = futures.Future()
        self.waiting = workdir, trials, future
        return future

    def go_on(self):
        if self.waiting is None:
            return
        workdir, trials, future = self.waiting
        self.waiting = None
        try:
            for trial in list(trials):
                self.end(workdir, trial)
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(None)

    def terminate(self):
        if self.waiting is not None:
            self.waiting[-1].set_exception(Interrupted())

    def restart(self):
        self.restarts += 1


class FakePools:
    def __init__(self, *workers):
        self.all = workers

    def workers(self, layout):
        return self.all[: layout.workers]


def finish(workdir, trial):
    write_json(workdir / trial.directory / "result.json", dict(status="finished"))


def fail(workdir, trial):
    record_failure(workdir, trial, "no memory")


def die(workdir, trial):
    raise futures.BrokenExecutor("by a test")


def planned(seeds):
    points = [
        tiny.POINT | {"seed": seed, "model.N": layers}
        for layers in (1, 2)
        for seed in range(seeds)
    ]
    return plan_trials({}, points)


def as_layout(workers=1, lanes=1):
    schedule = Schedule(Layout("as asked", workers, lanes), "as asked")
    return lambda free: [(group, schedule) for group in group_trials(free)]


def train(workdir, trials, *workers, choose=None, **options):
    """Trains to the end with these workers; each goes on at every look."""
    choose = choose or as_layout(len(workers))
    for _ in run_trials(FakePools(*workers), workdir, trials, choose, **options):
        for worker in workers:
            worker.go_on()


def ran(*workers):
    return [
        trial for worker in workers for share in worker.shares for trial in share[0]
    ]
