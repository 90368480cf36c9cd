"""What launch.train says at the end of a trial, and what it makes of a budget."""

import sys
from pathlib import Path

import pytest

from experiments.evaluation.metrics import METRICS
from experiments.sweep import estimate
from experiments.system.files import lock
from experiments.training import budget
from tests.experiments import fakes, tiny


@pytest.fixture
def train(run):
    """The module of the command, whose flags the fixture `run` defines and removes."""
    run("train", "--help")
    return sys.modules["launch.train"]


def test_scores_at_the_end_say_how_they_were_made(train):
    """Greedy scores of the same weights on fewer sentences stand some lines above."""
    scores = dict(perplexity=18.4, bleu=10.54)
    result = fakes.finished(18.4, 10.54) | {
        "beside": {
            "raw": dict(validation=scores, test=dict(bleu=10.5, exact_match=0.9))
        }
    }
    settings = tiny.resolve(evaluation__beam=4)
    last, beside = train.ending(settings, tiny.corpus(), result, METRICS)
    assert last.startswith("\ntest, beam 4 on 12 sentences: BLEU 10.5  chrF 95.0")
    assert "; validation perplexity 18.400; 241,664 parameters" in last
    assert beside == (
        "raw       validation, beam 4 on 12 sentences: perplexity 18.400  BLEU 10.5  "
        "test, beam 4 on 12 sentences: BLEU 10.5  exact match 90.0%"
    )


def test_a_language_model_searches_for_nothing(train):
    result = dict(parameters=1000, perplexity=2.0, test_perplexity=3.0)
    (last,) = train.ending(tiny.resolve(), tiny.corpus(), result, METRICS)
    assert last == (
        "\ntest, on 12 sentences: perplexity 3.000; validation perplexity 2.000; "
        "1,000 parameters"
    )


CONFIG = """
from tests.experiments import tiny

def get_config():
    return tiny.config()

def sizes(config):
    for d_ff in (24, 48, 96):
        yield {"model.d_ff": d_ff}
"""


@pytest.fixture
def planned(run, tmp_path, monkeypatch):
    """Trains by a config of 12 steps, with three sizes; a step is said to take 100 s or more."""
    path = tmp_path / "sized.py"
    path.write_text(CONFIG)
    monkeypatch.chdir(Path(__file__).parents[2])
    monkeypatch.setattr(estimate, "seconds_of_a_step", lambda settings: 0.0)

    def measured(settings, prepared):
        return budget.Costs(100 * settings.model.d_ff / 24, evaluation=200, end=500)

    monkeypatch.setattr(budget, "measure_costs", measured)

    def call(*arguments):
        status, out, error = run("train", f"--config={path}", *arguments)
        return status, out + error

    return call


@pytest.mark.parametrize(
    ("given", "d_ff", "steps"),
    [
        # 12 steps of 400 s, an evaluation and the end.
        ("6000s", 96, 12),
        ("3200s", 48, 12),
        ("2200s", 24, 14),
        # Nothing smaller is there.
        ("1300s", 24, 5),
    ],
)
def test_a_budget_chooses_the_largest_model_that_has_all_steps(
    planned, given, d_ff, steps
):
    status, said = planned(f"--budget={given}", "--dry_run")
    assert status == 0
    assert f"model.d_ff={d_ff}; training.steps={steps} of {100 * d_ff // 24} s" in said


def test_a_model_that_was_asked_for_stays(planned):
    _, said = planned("--budget=3200s", "--dry_run", "--config.model.d_ff=24")
    assert "--budget=3200s: training.steps=24 of 100 s" in said


def test_a_trial_with_a_budget_goes_on_to_its_steps_and_further(
    planned, tmp_path, monkeypatch
):
    workdir = tmp_path / "trial"
    status, said = planned("--budget=2200s", f"--workdir={workdir}")
    assert status == 0 and "step     14  validation" in said
    assert "of the 26.7 min planned" in said and "something else slowed" not in said
    # The machine is another's meanwhile; nothing is measured, and nothing trained.
    monkeypatch.delattr(budget, "measure_costs")
    for arguments in (["--budget=2200s"], []):
        status, said = planned(*arguments, f"--workdir={workdir}")
        assert status == 0 and "training.steps=14" in said and "step     " not in said
    status, said = planned("--config.training.steps=16", f"--workdir={workdir}")
    assert status == 0 and "step     16  validation" in said
    assert f"{workdir}/at-14 keeps the trial of 14 steps" in said
    status, said = planned("--budget=2200s", f"--workdir={workdir}")
    assert (
        status == 2
        and "leave --budget out, and give --config.training.steps=16" in said
    )


def test_a_warm_up_that_does_not_fit_is_refused_and_nothing_is_kept(planned, tmp_path):
    workdir = tmp_path / "trial"
    long = "--config.training.schedule=paper(warmup=10)"
    status, said = planned("--budget=1300s", long, f"--workdir={workdir}")
    assert status == 2 and "does not fit into training.steps=5" in said
    assert not (workdir / "budget.json").exists()
    # With more time the same directory will do.
    status, said = planned("--budget=2200s", long, f"--workdir={workdir}", "--dry_run")
    assert status == 0 and "training.steps=14" in said


def test_weights_of_another_vocabulary_are_refused_before_anything_is_written(
    planned, tmp_path
):
    other = tmp_path / "other"
    planned(f"--workdir={other}")
    begun = ("--config.data.vocabulary_size=450", f"--workdir={tmp_path / 'own'}")
    status, said = planned("--budget=2200s", f"--init_from={other}", *begun)
    assert status == 2 and "measuring" not in said
    assert f"give --config.data.vocabulary={other}" in said
    assert not (tmp_path / "own").exists()
    status, said = planned(f"--resume={other}", *begun)
    assert status == 2 and f"--resume={other} is of other data" in said
    assert not (tmp_path / "own").exists()


def test_a_directory_that_is_in_use_is_not_planned_for(planned, tmp_path):
    workdir = tmp_path / "trial"
    with lock(workdir):
        status, said = planned("--budget=2200s", f"--workdir={workdir}")
    assert status == 2 and "is in use by" in said
    assert not (workdir / "budget.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config.training.steps=9"], "chooses training.steps: leave"),
        (["--hosts=auto"], "is measured on one host"),
        (["--resume=runs/other"], "is for a trial from its beginning"),
    ],
)
def test_a_budget_beside_what_contradicts_it_is_refused(planned, arguments, message):
    status, said = planned("--budget=2200s", "--workdir=never", *arguments)
    assert status == 2 and f"--budget=2200s {message}" in said


@pytest.mark.parametrize("given", ["8", "8w", "", "-3h", "0m", "nanh", "1e3h"])
def test_what_is_no_time_is_refused(planned, given):
    status, said = planned(f"--budget={given}", "--workdir=never")
    assert status == 2 and "it is no time; write 90s, 10m, 8h or 2d" in said


def test_training_that_took_longer_says_so(train):
    plan = budget.Plan("1h", {"training.steps": 9}, budget.Costs(1, 1, 1), 3000.0)
    said = train.budget.ending(plan, dict(seconds=4500.0))
    assert said == (
        "--budget=1h: training took 75.0 min of the 50.0 min planned, 1.5 times as long: "
        "something else slowed it down"
    )
