"""Trials that end when their validation perplexity has stopped falling."""

import itertools
import json
import math

import jax
import pytest

from experiments.settings import SettingsError, Training, resolve
from experiments.system.signals import Interrupted
from experiments.training import early_stopping, loop
from experiments.training.early_stopping import ending, has_stopped_falling
from experiments.training.start_point import StartPoint
from experiments.trial.lanes import Lanes
from tests.experiments import tiny

FLAT = dict(
    training__until="flat",
    training__evaluate_every=4,
    training__save_every=8,
    training__steps=60,
    training__learning_rate=0.5,
    evaluation__sentences=1,
    evaluation__examples=0,
)
STILL = FLAT | dict(training__learning_rate=1e-20)
"""It learns nothing, so it ends as early as it may: at its sixth evaluation."""

TWO_LANES = Lanes(2, devices=tuple(jax.local_devices()[:1]))


def curve(losses):
    """Perplexities of these cross-entropies, by step."""
    return {25 * (i + 1): math.exp(x) for i, x in enumerate(losses)}


@pytest.mark.parametrize(
    ("losses", "is_flat"),
    [
        ([1, 1, 1, 1, 1, 1], True),
        ([1, 1, 1, 1, 1], False),
        ([], False),
        # The last two of six against the four before: 2 % less is a fall, 1.9 % is none.
        ([3, 2, 1.5, 1, 1, 0.979], False),
        ([3, 2, 1.5, 1, 1, 0.981], True),
        # A single bad evaluation changes nothing, nor does a rise.
        ([3, 2, 1.5, 1, 0.9, 5], False),
        ([3, 1, 2, 2, 2, 2], True),
        ([3, 1, 2, 2, 2, 0.9], False),
        # Eight: the last two; nine: the last three.
        ([3, 2, 1.5, 1.2, 1.1, 1, 1, 1], True),
        ([3, 2, 1.5, 1.2, 1.1, 1.05, 1, 1, 1], False),
        # A perplexity of 1 cannot fall.
        ([1, 0, 0, 0, 0, 0], True),
        # As cross-entropy falls with a power of the steps, evaluated at n = 1, …, 30.
        ([n**-0.5 for n in range(1, 31)], False),
        ([n**-0.04 for n in range(1, 31)], True),
    ],
)
def test_what_is_flat(losses, is_flat):
    assert has_stopped_falling(curve(losses)) == is_flat


def test_the_rule_goes_by_steps_and_not_by_the_order_of_evaluations():
    falling = curve([3, 2, 1.5, 1, 0.9, 0.8])
    assert not has_stopped_falling(dict(reversed(falling.items())))


@pytest.mark.parametrize("worst", [math.inf, math.nan])
def test_no_number_is_worse_than_any(worst):
    assert not has_stopped_falling({1: worst} | curve([3, 2, 1.5, 1, 0.9]))
    assert has_stopped_falling(curve([1, 1, 1, 1]) | {125: worst, 150: worst})


def test_a_curve_says_the_same_however_often_it_is_evaluated():
    """A fall that stops at step 1200 is over by 1800, where the last third begins."""
    ends = []
    for every in (25, 50, 100, 200):
        perplexities = {}
        for step in itertools.count(every, every):
            loss = 1000 / min(step, 1200)
            perplexities[step] = math.exp(loss)
            if has_stopped_falling(perplexities):
                ends.append(step)
                break
    # Of a fall of 1/step, 2 % are 24 steps.
    assert all(abs(end - 1.5 * 1200) <= 200 for end in ends)


def test_the_earliest_end_leaves_the_last_third_after_the_warm_up():
    for every, warmup in itertools.product((1, 7, 25, 250), (1, 4, 40, 100, 4000)):
        training = Training(
            evaluate_every=every,
            schedule=f"paper(warmup={warmup})",
            log_every=1,
            steps=100_000,
        )
        # By trying: the evaluation before the last third must not precede the warm-up.
        evaluations = 6
        while (evaluations - evaluations // 3) * every < warmup:
            evaluations += 1
        assert training.earliest_end == every * evaluations
    assert Training(schedule="constant", evaluate_every=25).earliest_end == 150


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"training.evaluate_every": 6},
            "training.evaluate_every=6 must be a multiple of training.log_every=4 with "
            "training.until=flat",
        ),
        (
            {"training.steps": 24},
            "training.until=flat can end a trial at step 24 at the earliest (6 evaluations, "
            "the last third of them after the warm-up of training.schedule="
            "paper(warmup=4)), and training.steps=24 does before: raise training.steps, or "
            "lower training.evaluate_every",
        ),
        (
            {"training.schedule": "paper(warmup=60)"},
            "can end a trial at step 88 at the earliest",
        ),
        (
            {"training.schedule": "cosine(warmup=4)"},
            "training.schedule=cosine(warmup=4) decays to the end of training.steps",
        ),
        ({"training.until": "never"}, "must be one of steps, flat"),
    ],
)
def test_what_makes_no_sense_is_refused(changes, message):
    config = tiny.shared(**FLAT).to_dict()
    with pytest.raises(SettingsError) as caught:
        resolve(config, changes)
    assert message in str(caught.value)


def test_flat_is_refused_only_where_it_is_asked_for():
    changes = {"training.until": "steps", "training.evaluate_every": 6}
    assert resolve(tiny.shared(**FLAT).to_dict(), changes).training.evaluate_every == 6


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        (24, "ended at step 24: validation perplexity has stopped falling"),
        (
            60,
            "ended at training.steps=60, the most it may take: validation perplexity was "
            "still falling",
        ),
    ],
)
def test_the_end_is_said(steps, text):
    assert ending(steps, tiny.shared(**FLAT).training) == text


def metrics(workdir):
    lines = []
    for line in (workdir / "metrics.jsonl").read_text().splitlines():
        line = json.loads(line)
        clocked = ("seconds", "tokens_per_second", "peak_memory")
        lines.append({key: x for key, x in line.items() if key not in clocked})
    return lines


def unclocked(result):
    return {
        key: value
        for key, value in result.items()
        if key not in ("seconds", "tokens_per_second", "peak_memory")
    }


def first_flat(lines, earliest, last):
    """The step at which a trial should end by its log, in a way of its own."""
    evaluated = [line for line in lines if line["split"] == "validation"]
    losses = [math.log(line["perplexity"]) for line in evaluated]
    for n in range(1, len(losses) + 1):
        step = evaluated[n - 1]["step"]
        window = sorted(losses[n - n // 3 : n])
        earlier = sorted(losses[: n - n // 3])
        if step >= earliest and window[0] / earlier[0] >= 1 - early_stopping.TOLERANCE:
            return step
    return last


@pytest.fixture
def loose(monkeypatch):
    """The tiny trial of seed 0 falls by less from step 40 on, that of seed 2 never does."""
    monkeypatch.setattr(early_stopping, "TOLERANCE", 0.006)


@pytest.mark.ci
def test_it_ends_where_the_rule_says_and_the_same_after_interruptions(loose, tmp_path):
    settings = tiny.shared(**FLAT, training__keep_best=True, training__average=2)

    def run(workdir, **options):
        return loop.run(settings, tiny.corpus(), workdir, **options)

    whole = run(tmp_path / "whole")
    lines = metrics(tmp_path / "whole")
    assert 24 < whole["steps"] < 60
    assert whole["steps"] == first_flat(lines, 24, 60)
    # All is logged, saved and scored there, as at the end of any trial.
    assert {line["step"] for line in lines[-2:]} == {whole["steps"]}
    assert (tmp_path / "whole" / "checkpoints" / str(whole["steps"])).is_dir()
    assert whole["beside"]["raw"]["steps"] == [whole["steps"]]
    assert whole["beside"]["average"]["steps"][-1] == whole["steps"]
    assert whole["beside"]["best"]["steps"][0] <= whole["steps"]

    again = tmp_path / "again"
    for n in (1, 3, 5, 9, 14, 20):
        with pytest.raises(Interrupted):
            run(again, interruption=tiny.StopAt(n))
    # A line that is lost is written again: checkpoints keep the file too.
    path = again / "metrics.jsonl"
    kept = path.read_text().splitlines(keepends=True)
    assert sum("validation" in line for line in kept) > 2
    path.write_text("".join(line for line in kept if '"step": 4,' not in line))
    # FLOPs are summed over the lines.
    del whole["training_flops"]
    result = run(again)
    assert result.pop("training_flops") > 0
    assert unclocked(result) == unclocked(whole)
    assert metrics(again) == lines
    # As if killed at the very end.
    (again / "result.json").unlink()
    result = run(again)
    del result["training_flops"]
    assert unclocked(result) == unclocked(whole)


@pytest.mark.ci
def test_lanes_end_each_by_itself(loose, tmp_path):
    """One learns nothing, one learns, one comes later; each is as in other company."""
    settings = [
        tiny.shared(**STILL, seed=1),
        tiny.shared(**FLAT, seed=2),
        tiny.shared(**FLAT, seed=0),
    ]
    jobs = [
        loop.Job(of_trial, tmp_path / f"{i}") for i, of_trial in enumerate(settings)
    ]
    loop.run_all(jobs, tiny.corpus(), TWO_LANES)
    others = [job._replace(path=tmp_path / "other" / job.path.name) for job in jobs]
    loop.run_all(others[::-1], tiny.corpus(), TWO_LANES)
    alone = jobs[1]._replace(path=tmp_path / "alone")
    loop.run_all([alone], tiny.corpus(), TWO_LANES)
    steps = []
    for job, other in zip(jobs, others, strict=True):
        result = json.loads((job.path / "result.json").read_text())
        steps.append(result["steps"])
        assert result["steps"] == first_flat(metrics(job.path), 24, 60)
        assert metrics(job.path) == metrics(other.path)
    assert steps[0] == 24 < steps[2] < steps[1] == 60
    assert metrics(alone.path) == metrics(jobs[1].path)


@pytest.mark.ci
def test_another_trials_evaluations_do_not_end_this_one(tmp_path):
    still = tiny.shared(**STILL)
    first = loop.run(still, tiny.corpus(), tmp_path / "first")
    assert first["steps"] == 24
    resumed = loop.run(
        still,
        tiny.corpus(),
        tmp_path / "second",
        start=StartPoint(resume=str(tmp_path / "first")),
    )
    # Six evaluations of its own, that of step 24 among them.
    assert resumed["steps"] == 44
