"""Several processes train one sweep: each trial once, whatever happens to them.

No trial is trained here: what stands in a worker's place writes the result.
"""

import collections
import concurrent.futures as futures
import itertools
import signal
import time

import pytest

from experiments.errors import UserError
from experiments.sweep import here, joiner
from experiments.sweep.claims import (
    JOINERS,
    Claims,
    Presence,
    list_claims,
    read_claim,
)
from experiments.sweep.joiner import CancelledError, begin, name_of
from experiments.sweep.plan import plan_trials
from experiments.sweep.workdir import cancel, open_workdir
from experiments.system.files import write_json
from experiments.system.signals import STATUS, Interrupted, Interruption
from tests.cases import the_rest_in_ci
from tests.experiments import tiny
from tests.experiments.sweep.stand_ins import (
    Worker,
    die,
    fail,
    finish,
    join,
    planned,
    ran,
    train,
)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    for module in (joiner, here):
        monkeypatch.setattr(module, "TICK", 0.001)
    monkeypatch.setattr(joiner, "AGE", 0.0)


def names(trials):
    return {name_of(trial) for trial in trials}


def test_each_trial_runs_once(tmp_path):
    trials = planned(4)
    workers = [Worker(), Worker()]
    train(tmp_path, trials, *workers)
    assert sorted(ran(*workers)) == sorted(trials)
    assert all(worker.ran for worker in workers)
    assert list_claims(tmp_path).ended == names(trials)
    # Nobody is left who could be taken for alive.
    assert list((tmp_path / JOINERS).iterdir()) == []


def test_two_processes_share_the_trials(tmp_path):
    trials = planned(6)[:9]
    workers = [Worker(), Worker()]
    both = [join(tmp_path, trials, worker, is_guest=True) for worker in workers]
    # They go on in turn, each until it finds nothing free.
    collections.deque(itertools.zip_longest(*both))
    assert sorted(ran(*workers)) == sorted(trials)
    assert all(worker.ran for worker in workers)


def test_what_failed_is_tried_by_others_and_three_times_at_most(tmp_path):
    trials = planned(1)[:1]
    for count in range(1, 5):
        worker = Worker(fail)
        train(tmp_path, trials, worker)
        assert len(worker.ran) == (1 if count <= 3 else 0)
    name = name_of(trials[0])
    assert read_claim(tmp_path, name, 1)["why"] == "no memory"
    begin(tmp_path, trials)
    worker = Worker()
    train(tmp_path, trials, worker)
    assert worker.ran == trials and list_claims(tmp_path).ended == {name}


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
    ends = iter([die, finish])
    worker = Worker(lambda *arguments: next(ends)(*arguments), status)
    other = Worker()
    # The other's trial is no failure of the one that dies.
    other.go_on = lambda: None
    process = join(tmp_path, planned(2)[:3], worker, other)
    for _ in range(4):
        next(process)
    assert worker.restarts == 1
    failed, ended = worker.ran
    result = (tmp_path / failed.directory / "result.json").read_text()
    assert words in result
    listing = list_claims(tmp_path)
    assert name_of(ended) in listing.ended
    assert listing.is_running(name_of(other.ran[0]))
    process.close()


def test_a_worker_that_dies_before_it_takes_a_trial_ends_the_sweep(tmp_path):
    worker = Worker()
    worker.train = lambda *_: dead
    dead = futures.Future()
    dead.set_exception(futures.BrokenExecutor("by a test"))
    with pytest.raises(UserError, match=r"died \(by a test\), before it took a trial"):
        train(tmp_path, planned(1), worker)


@pytest.mark.parametrize("is_told", [True, False])
def test_an_interrupted_process_gives_back_what_it_has(tmp_path, is_told):
    """It is told to stop, or another process has told its worker, which leaves at once."""
    trials = planned(1)
    interruption = Interruption()
    interruption.asked = is_told
    with pytest.raises(Interrupted):
        train(tmp_path, trials, Worker(die, STATUS), interruption=interruption)
    listing = list_claims(tmp_path)
    assert listing.running() == []
    assert len(listing.numbers) == (0 if is_told else 1)
    other = Worker()
    train(tmp_path, trials, other)
    assert sorted(ran(other)) == sorted(trials)


def test_a_cancelled_sweep_ends_everywhere_until_it_is_begun_again(tmp_path):
    trials = planned(1)
    worker = Worker()
    process = join(tmp_path, trials, worker)
    next(process)
    cancel(tmp_path, "me")
    worker.go_on = lambda: None
    with pytest.raises(CancelledError, match="was cancelled"):
        collections.deque(process)
    assert list_claims(tmp_path).running() == []
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


@pytest.mark.parametrize("is_guest", the_rest_in_ci([False, True], first=1))
def test_a_guest_leaves_what_the_living_train_and_the_host_waits(tmp_path, is_guest):
    trials = planned(1)
    with Presence(tmp_path, silence=0.4) as other:
        claims = Claims(tmp_path, other.name)
        claims.take(name_of(trials[0]), 0)
        worker = Worker()
        process = join(tmp_path, trials, worker, silence=30.0, is_guest=is_guest)
        deadline = time.monotonic() + 5
        collections.deque(
            itertools.takewhile(lambda _: time.monotonic() < deadline, process)
        )
        assert (time.monotonic() > deadline) != is_guest
        assert ran(worker) == trials[1:]
        finish(tmp_path, trials[0])
        claims.end(name_of(trials[0]))
        assert next(process, "ended") == "ended"


def test_what_has_ended_since_is_not_asked_for_again(tmp_path):
    trials = planned(1)
    train(tmp_path, trials, Worker())
    # Planned a while ago.
    begin(tmp_path, trials)
    assert list_claims(tmp_path).ended == names(trials)
    (tmp_path / trials[0].directory / "result.json").unlink()
    begin(tmp_path, trials)
    assert list_claims(tmp_path).ended == names(trials[1:])


def test_results_from_before_there_were_claims_are_kept(tmp_path):
    trials = planned(2)
    finish(tmp_path, trials[0])
    worker = Worker()
    train(tmp_path, trials, worker)
    assert sorted(ran(worker)) == sorted(trials[1:])


def scored(workdir, seeds=3):
    """Trials of rows that differ in their scores; the first and last share a program."""
    rows = ({}, {"evaluation.beam": 2}, {"evaluation.alpha": 0.0})
    points = [row | {"seed": seed} for row in rows for seed in range(seeds)]
    trials = plan_trials(tiny.config(), points)
    open_workdir(workdir, "config.py", tiny.config(), [], trials)
    return trials


@pytest.mark.parametrize("age", [0.0, 60.0])
def test_a_trial_waits_for_the_one_that_it_is_to_copy(tmp_path, monkeypatch, age):
    monkeypatch.setattr(joiner, "AGE", age)
    trials = scored(tmp_path)
    workers = [Worker(), Worker()]
    both = [join(tmp_path, trials, worker) for worker in workers]
    for _ in itertools.zip_longest(*both):
        keys = [w.trial.settings.training_key() for w in workers if w.trial]
        assert len({*keys}) == len(keys)
    assert sorted(ran(*workers)) == sorted(trials)


def test_the_copy_of_a_trial_that_fails_is_trained(tmp_path):
    first, *_ = trials = scored(tmp_path, seeds=1)
    ends = {name_of(first): fail}
    worker = Worker(lambda path, trial: ends.get(name_of(trial), finish)(path, trial))
    train(tmp_path, trials, worker)
    assert sorted(ran(worker)) == sorted(trials)
