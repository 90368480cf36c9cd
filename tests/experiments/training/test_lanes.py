"""Several trials at once, each in a lane of its own."""

import json
import os
import re

import jax
import numpy as np
import pytest

from experiments.data.batches import Batches
from experiments.system.files import LockedError, lock
from experiments.training import loop
from experiments.trial.lanes import Lanes
from tests.experiments import tiny
from tests.experiments.training.trials import ONE_DEVICE, Interrupted, metrics


@pytest.mark.ci
def test_a_trial_without_numbers_is_stopped_and_recorded(tmp_path):
    """The trial beside it ends as if alone, and the next takes the lane that became free."""
    wild, well, later = (
        tiny.shared(seed=1, training__learning_rate=1e30),
        tiny.shared(seed=2),
        tiny.shared(seed=3),
    )
    jobs = [
        loop.Job(settings, tmp_path / f"{i}", f"{i}")
        for i, settings in enumerate((wild, well, later))
    ]
    loop.run_all(jobs, tiny.corpus(), ONE_DEVICE)
    results = [json.loads((job.path / "result.json").read_text()) for job in jobs]
    assert [result["status"] for result in results] == [
        "diverged",
        "finished",
        "finished",
    ]
    assert re.fullmatch(
        rf"diverged: loss .* at step {results[0]['step']}", results[0]["error"]
    )
    assert 2 <= results[0]["step"] <= 4
    source = Batches(tiny.corpus().train, batch_size=4, sequence_length=48, seed=1)
    pairs = source.take(4)[results[0]["step"] - 1]
    assert results[0]["batch"] == dict(
        epoch=0, part=0, batch=results[0]["step"] - 1, pairs=pairs[pairs >= 0].tolist()
    )
    others = [
        job._replace(path=tmp_path / f"again{job.name}") for job in (jobs[2], jobs[1])
    ]
    loop.run_all(
        others, tiny.corpus(), ONE_DEVICE
    )  # without the first, in each other's places
    for job in others:
        assert metrics(job.path) == metrics(tmp_path / job.name)
    assert loop.run_all(jobs[:1], tiny.corpus(), ONE_DEVICE) == results[:1]


def test_a_trial_is_locked_while_it_trains_and_no_longer(tmp_path):
    first, second = (
        loop.Job(tiny.shared(seed=seed), tmp_path / f"{seed}") for seed in range(2)
    )
    failed = []

    def say(line):
        # The lane trains the first, and then the second.
        trained = [
            job for job in (first, second) if not (job.path / "result.json").exists()
        ]
        with pytest.raises(LockedError, match=f"is in use by process {os.getpid()}"):
            loop.run(trained[0].settings, tiny.corpus(), trained[0].path)

    with lock(tmp_path / "2"):
        locked = loop.Job(tiny.shared(seed=2), tmp_path / "2")
        results = loop.run_all(
            [first, locked, second],
            tiny.corpus(),
            say=say,
            failed=lambda job, error: failed.append((job, str(error))),
        )
    assert len(results) == 2
    ((job, error),) = failed
    assert job is locked and "is in use by process" in error
    for job in (first, second):
        with lock(job.path):
            pass


@pytest.mark.ci
def test_a_lane_takes_what_comes_later(tmp_path):
    """Of two lanes one is empty until the trial in the other has logged a line."""
    first, second = (
        loop.Job(tiny.shared(seed=seed), tmp_path / f"{seed}") for seed in range(2)
    )
    waiting = [first]
    seen = []

    def say(line):
        if not seen:
            waiting.append(second)
        seen.append(line)

    take = lambda: waiting.pop() if waiting else None
    results = loop.run_all(take, tiny.corpus(), ONE_DEVICE, say=say)
    assert len(results) == 2
    alone = second._replace(path=tmp_path / "alone")
    assert (
        loop.run_all([alone], tiny.corpus(), ONE_DEVICE)[0]["bleu"]
        == results[1]["bleu"]
    )
    assert metrics(alone.path) == metrics(second.path)


@pytest.mark.ci
def test_lanes_are_resumed_each_from_its_own_step(tmp_path):
    """One at its end and one half way, killed; a third never begun."""
    jobs = [
        loop.Job(tiny.shared(seed=seed, training__steps=steps), tmp_path / f"{seed}")
        for seed, steps in ((1, 8), (2, 12), (3, 4))
    ]
    said = []

    def say(line):
        said.append(line)
        if len([text for text in said if "step     12" in text]) == 1:
            raise Interrupted

    with pytest.raises(Interrupted):
        loop.run_all(jobs, tiny.corpus(), ONE_DEVICE, say=say)
    (tmp_path / "1" / "result.json").unlink()  # as if killed just before
    results = loop.run_all(jobs, tiny.corpus(), ONE_DEVICE)
    assert sorted(result["steps"] for result in results if result["steps"]) == [
        4,
        8,
        12,
    ]
    whole = loop.run_all(
        [job._replace(path=tmp_path / "whole" / job.path.name) for job in jobs],
        tiny.corpus(),
        ONE_DEVICE,
    )
    assert {r["steps"]: (r["perplexity"], r["bleu"]) for r in results} == {
        r["steps"]: (r["perplexity"], r["bleu"]) for r in whole
    }
    for job in jobs:
        assert metrics(job.path) == metrics(tmp_path / "whole" / job.path.name)


@pytest.mark.ci
def test_lanes_on_several_devices_take_the_next_trials_too(tmp_path):
    """Five trials in two lanes on two devices write what they do on one device, to rounding."""
    jobs = [
        loop.Job(
            tiny.shared(seed=seed, training__steps=4 + seed % 2 * 4),
            tmp_path / f"{seed}",
        )
        for seed in range(5)
    ]
    two = Lanes(2, devices=tuple(jax.local_devices()[:2]))
    results = loop.run_all(jobs, tiny.corpus(), two)
    # In another order: what a trial has from the one that was in its place before would show.
    alone = loop.run_all(
        [job._replace(path=tmp_path / "one" / job.path.name) for job in jobs[::-1]],
        tiny.corpus(),
        ONE_DEVICE,
    )
    assert sorted(result["steps"] for result in results) == [4, 4, 4, 8, 8]
    by_name = [
        {
            name: json.loads((path / name / "result.json").read_text())["perplexity"]
            for name in "01234"
        }
        for path in (tmp_path, tmp_path / "one")
    ]
    assert by_name[0] == pytest.approx(by_name[1], rel=1e-5) and len(
        set(by_name[0].values())
    ) == 5 == len(alone)
    for name in "01234":
        losses = [
            np.load(path / name / "sentences.npz")["validation_nll"]
            for path in (tmp_path, tmp_path / "one")
        ]
        np.testing.assert_allclose(*losses, rtol=1e-4)


@pytest.mark.parametrize(
    "lanes",
    [Lanes(), pytest.param(ONE_DEVICE, marks=pytest.mark.ci)],
    ids=["one", "two"],
)
def test_an_error_of_one_trial_is_its_own(tmp_path, lanes):
    jobs = [loop.Job(tiny.shared(seed=seed), tmp_path / f"{seed}") for seed in (1, 2)]
    (tmp_path / "1").write_text("a file where a directory is to be")
    told = []
    results = loop.run_all(
        jobs,
        tiny.corpus(),
        lanes,
        failed=lambda job, error: told.append((job, str(error))),
    )
    assert [result["steps"] for result in results] == [12]
    assert told[0][0] == jobs[0] and "is a file; choose another --workdir" in told[0][1]
