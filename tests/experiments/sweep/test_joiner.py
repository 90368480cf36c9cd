"""Several processes train one sweep: each trial once, whatever happens to them.

No trial is trained here: what stands in a worker's place writes the result.
"""

import bisect
import heapq
import itertools
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from experiments.sweep import joiner
from experiments.sweep.claims import (
    JOINERS,
    Claims,
    Presence,
    list_claims,
    read_claim,
)
from experiments.sweep.joiner import CancelledError, begin, name_of, run_trials
from experiments.sweep.plan import group_trials
from experiments.sweep.schedule import Layout
from experiments.sweep.workdir import cancel
from experiments.system.files import write_json
from experiments.system.signals import Interrupted, Interruption
from tests.cases import the_rest_in_ci
from tests.experiments.sweep.stand_ins import (
    FakePools,
    Worker,
    as_layout,
    die,
    fail,
    finish,
    planned,
    ran,
    train,
)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(joiner, "TICK", 0.001)
    monkeypatch.setattr(joiner, "AGE", 0.0)


def test_each_trial_runs_once_and_a_worker_keeps_to_its_program(tmp_path):
    trials = planned(4)
    first, second = Worker(), Worker()
    train(tmp_path, trials, first, second)
    assert sorted(ran(first, second)) == sorted(trials)
    for worker in (first, second):
        programs = [share.program for share in worker.shares]
        # It compiled no program twice.
        changes = sum(a != b for a, b in itertools.pairwise(programs))
        assert changes == len(set(programs)) - 1
    assert first.shares[0].program != second.shares[0].program
    listing = list_claims(tmp_path)
    assert listing.ended == {name_of(trial) for trial in trials}
    # Nobody is left who could be taken for alive.
    assert list((tmp_path / JOINERS).iterdir()) == []


@pytest.mark.parametrize(
    ("count", "workers", "lanes", "sizes"),
    [(5, 1, 2, [5]), (9, 1, 2, [8, 1]), (5, 2, 2, [3, 2]), (3, 2, 2, [2, 1])],
)
def test_lanes_have_trials_to_go_on_with(tmp_path, count, workers, lanes, sizes):
    """A lane that ends takes the next of its call, so calls have more than lanes."""
    trials = planned(count)[:count]
    several = [Worker() for _ in range(workers)]
    train(tmp_path, trials, *several, choose=as_layout(workers, lanes))
    shares = [share for worker in several for share in worker.shares]
    assert [len(share.trials) for share in shares] == sizes
    assert {share.lanes for share in shares} == {lanes}


def test_two_processes_share_the_trials(tmp_path):
    # Of the second program there are fewer than are left of the first.
    trials = planned(6)[:9]
    workers = [Worker(), Worker()]
    both = [
        run_trials(FakePools(worker), tmp_path, trials, as_layout(), stays=False)
        for worker in workers
    ]
    # They go on in turn, each until it finds nothing free.
    while both:
        for process in list(both):
            for worker in workers:
                worker.go_on()
            if next(process, None) is None and process.gi_frame is None:
                both.remove(process)
    assert sorted(ran(*workers)) == sorted(trials)
    assert all(worker.shares for worker in workers)
    # Each began with a program of its own.
    assert workers[0].shares[0].program != workers[1].shares[0].program


def test_what_failed_is_tried_by_others_and_three_times_at_most(tmp_path):
    trials = planned(1)[:1]
    for count in range(1, 5):
        worker = Worker(fail)
        train(tmp_path, trials, worker)
        assert len(worker.shares) == (1 if count <= 3 else 0)
    name = name_of(trials[0])
    assert read_claim(tmp_path, name, 1)["why"] == "no memory"
    begin(tmp_path, trials)
    worker = Worker()
    train(tmp_path, trials, worker)
    assert len(worker.shares) == 1 and list_claims(tmp_path).ended == {name}


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (-signal.SIGKILL, "was killed; the machine may have run out of memory"),
        (-signal.SIGSEGV, "crashed with SIGSEGV, in compiled code"),
        (1, "the worker process died (by a test)"),
        (None, "the worker process died (by a test)"),
    ],
)
def test_a_worker_that_dies_is_replaced_and_its_trial_has_failed(
    tmp_path, status, words
):
    trials = planned(1)
    ends = iter([die, finish])
    worker = Worker(lambda *arguments: next(ends)(*arguments))
    worker.exit_status = lambda: status
    train(tmp_path, trials, worker)
    assert worker.restarts == 1
    failed, ended = ran(worker)
    result = (tmp_path / failed.directory / "result.json").read_text()
    assert words in result
    assert list_claims(tmp_path).ended == {name_of(ended)}


def test_a_lane_that_ends_early_is_given_up_before_its_share(tmp_path):
    trials = planned(2)[:2]
    worker = Worker()
    process = run_trials(FakePools(worker), tmp_path, trials, as_layout(lanes=2))
    next(process)
    finish(tmp_path, trials[0])
    next(process)
    assert list_claims(tmp_path).ended == {name_of(trials[0])}
    for _ in process:
        worker.go_on()
    assert len(list_claims(tmp_path).ended) == 2


def test_an_interrupted_process_gives_back_what_it_has(tmp_path):
    trials = planned(1)
    interruption = Interruption()
    worker = Worker()
    process = run_trials(FakePools(worker), tmp_path, trials, as_layout(), interruption)
    next(process)
    interruption.asked = True
    with pytest.raises(Interrupted):
        next(process)
    listing = list_claims(tmp_path)
    assert listing.running() == [] and len(listing.numbers) == 1
    other = Worker()
    train(tmp_path, trials, other)
    assert sorted(ran(other)) == sorted(trials)


def test_a_cancelled_sweep_ends_everywhere_until_it_is_begun_again(tmp_path):
    trials = planned(1)
    process = run_trials(FakePools(Worker()), tmp_path, trials, as_layout())
    next(process)
    cancel(tmp_path, "me")
    with pytest.raises(CancelledError, match="was cancelled"):
        list(process)
    with pytest.raises(CancelledError):
        train(tmp_path, trials, Worker())
    begin(tmp_path, trials)
    worker = Worker()
    train(tmp_path, trials, worker)
    assert sorted(ran(worker)) == sorted(trials)


def test_the_trials_of_a_dead_process_are_taken_over(tmp_path):
    trials = planned(2)
    dead = Claims(tmp_path, "elsewhere-1")
    dead.take(name_of(trials[0]), 0)
    write_json(tmp_path / JOINERS / "elsewhere-1.json", dict(beats=7))
    worker = Worker()
    start = time.monotonic()
    train(tmp_path, trials, worker, silence=2.0)
    assert time.monotonic() - start > 2
    assert sorted(ran(worker)) == sorted(trials)
    # The others were not waited with.
    assert ran(worker)[-1] == trials[0]
    why = read_claim(tmp_path, name_of(trials[0]), 1)["why"]
    assert why == "elsewhere-1 shows no sign of life"


@pytest.mark.parametrize("stays", the_rest_in_ci([True, False], first=1))
def test_a_guest_leaves_what_the_living_train_and_the_host_waits(tmp_path, stays):
    trials = planned(1)
    with Presence(tmp_path, silence=0.4) as other:
        claims = Claims(tmp_path, other.name)
        claims.take(name_of(trials[0]), 0)
        worker = Worker()
        process = run_trials(
            FakePools(worker),
            tmp_path,
            trials,
            as_layout(),
            stays=stays,
            silence=30.0,
        )
        deadline = time.monotonic() + 5
        for _ in process:
            worker.go_on()
            if time.monotonic() > deadline:
                break
        assert (time.monotonic() > deadline) == stays
        assert ran(worker) == trials[1:]
        finish(tmp_path, trials[0])
        claims.end(name_of(trials[0]))
        assert list(process) == []


def test_a_process_that_slept_leaves_what_others_have_taken(tmp_path, monkeypatch):
    trials = planned(1)
    worker = Worker()
    process = run_trials(FakePools(worker), tmp_path, trials, as_layout())
    next(process)
    (mine,) = ran(worker)
    name = name_of(mine)
    other = Claims(tmp_path, "other")
    other.give_back_for(name, 0, "silent")
    other.take(name, 2)
    monkeypatch.setattr(Presence, "was_silent", lambda presence: True)
    next(process)
    assert worker.restarts == 1
    monkeypatch.undo()
    finish(tmp_path, mine)
    other.end(name)
    worker.waiting = None
    for _ in process:
        worker.go_on()
    assert list_claims(tmp_path).ended == {name_of(trial) for trial in trials}
    assert len(ran(worker)) == 2


def test_results_from_before_there_were_claims_are_kept(tmp_path):
    trials = planned(2)
    finish(tmp_path, trials[0])
    worker = Worker()
    train(tmp_path, trials, worker)
    assert sorted(ran(worker)) == sorted(trials[1:])


class Network:
    """Fifty processes over a slow file system, in a time of their own.

    A list of a directory is up to 30 s old, as NFS clients cache it; each file that is made
    takes 2 ms, a list 0.1 s.
    """

    MADE = 0.002
    LISTED = 0.1
    OLDEST = 30.0

    def __init__(self, rng):
        self.rng = rng
        self.now = 0.0
        self.claiming = 0.0
        self.numbers = {}
        # [(time, trial, number of a claim, or -1 for its end)]
        self.events = []

    def make(self, claims, name, number):
        self.spend(self.MADE)
        if (name, number) in self.numbers:
            return False
        self.numbers[name, number] = claims._joiner
        bisect.insort(self.events, (self.now, name, number))
        return True

    def list(self, view):
        self.spend(self.LISTED)
        seen = self.now - self.rng.uniform(0, self.OLDEST)
        while view.place < len(self.events) and self.events[view.place][0] <= seen:
            _, name, number = self.events[view.place]
            view.place += 1
            if number < 0:
                view.listing.ended.add(name)
            else:
                view.listing.numbers[name] = number
        return view.listing

    def spend(self, seconds):
        self.now += seconds
        self.claiming += seconds


class View:
    def __init__(self):
        self.place = 0
        self.listing = joiner.Listing({}, set())


@pytest.mark.ci
def test_fifty_processes_and_ten_thousand_trials_over_a_slow_network(monkeypatch):
    rng = np.random.default_rng(0)
    network = Network(rng)
    monkeypatch.setattr(joiner, "AGE", 2.0)
    monkeypatch.setattr(joiner.time, "monotonic", lambda: network.now)
    make = lambda claims, name, number, **says: network.make(claims, name, number)
    monkeypatch.setattr(Claims, "_make", make)
    monkeypatch.setattr(joiner, "is_finished", lambda workdir, trial: False)
    trials = [
        row._replace(directory=f"trials/{row.settings.model.N}-{i}")
        for row in planned(1)
        for i in range(5_000)
    ]
    by_program = group_trials(trials)
    processes = []
    for i in range(50):
        presence = type("Named", (), dict(name=f"process-{i}"))
        crew = joiner._Crew(Path("nowhere"), trials, presence, Interruption(), 120.0)
        groups = [joiner._Group(group, Layout("", 1, 1)) for group in by_program]
        processes.append((crew, groups, View(), Worker()))
    trained = []
    training = 0.0
    # (when it is free, process)
    free = [(0.0, i) for i in range(50)]
    while free:
        now, i = heapq.heappop(free)
        crew, groups, view, worker = processes[i]
        monkeypatch.setattr(joiner, "list_claims", lambda _, v=view: network.list(v))
        network.now = now
        share = crew._take(worker, [], groups)
        if share is None:
            continue
        (trial,) = share.trials
        worker.program = share.program
        trained.append(trial.directory)
        seconds = rng.lognormal(np.log(30), 0.5)
        training += seconds
        started = network.now
        network.now += seconds
        bisect.insort(network.events, (network.now, name_of(trial), -1))
        heapq.heappush(free, (started + seconds, i))
        del crew.claims._held[name_of(trial)]
    assert len(trained) == len(set(trained)) == 10_000
    assert network.claiming < 0.01 * training
