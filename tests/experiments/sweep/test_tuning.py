"""Which values each row of a tuned sweep is tried at, which are chosen, and what is run."""

import json
import math
import re

import pytest

from experiments.errors import WorkdirError
from experiments.settings import SettingsError
from experiments.sweep.plan import group_trials, plan_trials
from experiments.sweep.points import SweepError, expand, sweeps_of
from experiments.sweep.status import read_status
from experiments.sweep.tuning import (
    choices,
    choose,
    costliest,
    plan_rows,
    read_tuning,
    trials_to_run,
    tuning_trials,
)
from experiments.sweep.workdir import open_workdir
from tests.experiments import tiny_config

pytestmark = pytest.mark.quick

KNOWN = sweeps_of(tiny_config)
RATES = ("training.learning_rate:0.5,1,2",)


def planned(*names, seeds=2):
    config = tiny_config.get_config()
    return plan_trials(config, expand(KNOWN, list(names), config, seeds))


def rows_of(*names, texts=RATES, tune_seeds=1, overrides=None, seeds=2):
    tuning = read_tuning(texts, tune_seeds)
    config = tiny_config.get_config()
    return plan_rows(config, planned(*names, seeds=seeds), overrides or {}, tuning)


def test_values_are_read_as_numbers():
    tuning = read_tuning(
        ["training.learning_rate:0.5, 1,1.0,2e0", "training.clip:2,4"], 3
    )
    assert tuning.grid == {
        "training.learning_rate": (0.5, 1, 2),
        "training.clip": (2, 4),
    }
    assert [type(x) for x in tuning.grid["training.learning_rate"]] == [
        float,
        int,
        float,
    ]
    assert tuning.seeds == (1000, 1001, 1002)
    assert len(tuning.values) == 6
    assert tuning.values[1] == {"training.learning_rate": 0.5, "training.clip": 4}
    assert json.loads(json.dumps(tuning.to_json())) == dict(
        grid={"training.learning_rate": [0.5, 1, 2.0], "training.clip": [2, 4]},
        seeds=[1000, 1001, 1002],
    )


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (
            ["training.learning_rate"],
            "has no values: give --tune=training.learning_rate",
        ),
        (["training.rate:1,2"], "training.rate: no such setting"),
        (["training:1,2"], "training is a group of settings"),
        (["model.positions:1,2"], "model.positions is no number"),
        (["training.scan:0,1"], "training.scan is no number"),
        (["data.pairs:1,2"], "must be on the same data"),
        (["evaluation.beam:1,2"], "tune a setting of model or training"),
        (["seed:1,2"], "tune a setting of model or training"),
        (["training.clip:1,fast"], "'fast' is no number"),
        (["training.clip:1,"], "'' is no number"),
        (["training.learning_rate:1,inf"], "'inf' is no number"),
        (["training.clip:4"], "one value is no choice: give two or more"),
        (["training.clip:4,4"], "one value is no choice"),
        (["training.clip:1,2", "training.clip:3,4"], "has its values already"),
    ],
)
def test_what_cannot_be_tuned_is_refused_in_one_line(texts, message):
    with pytest.raises(SweepError, match=re.escape(message)) as caught:
        read_tuning(texts, 1)
    assert f"--tune={texts[-1]}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_the_sweep_sets_is_not_tuned():
    with pytest.raises(
        SweepError,
        match=r"--tune=model\.h and the sweep both set model\.h, in the point",
    ):
        rows_of("heads", texts=["model.h:1,2"])


def test_a_tuning_seed_is_none_of_the_comparison():
    config = tiny_config.get_config()
    tuning = read_tuning(RATES, 1)

    def plan(seed):
        return plan_rows(config, plan_trials(config, [{"seed": seed}]), {}, tuning)

    with pytest.raises(
        SweepError, match=r"seed 1000 is one of the sweep's.* seeds 1000 to 1000"
    ):
        plan(1000)
    assert len(plan(999)) == len(plan(1001)) == 1


def test_values_that_a_row_cannot_take_name_the_point():
    with pytest.raises(
        SettingsError, match=r"schedule=paper\(warmup=50\): .* does not fit .*h=1"
    ):
        rows_of("heads", texts=["training.schedule:paper(warmup=2),paper(warmup=50)"])
    with pytest.raises(SettingsError, match=r"training\.batch_size=2\.5 must be int"):
        rows_of("heads", texts=["training.batch_size:2,2.5"])


def test_an_optimizer_and_a_schedule_are_tuned_with_their_options():
    texts = ["training.optimizer:lion,sgd(momentum=0.9, nesterov=True), adamw(b1=0.8)"]
    (one, _) = rows_of("heads", texts=texts)
    assert [c.tuning[0].settings.training.optimizer for c in one.candidates] == [
        "adam",
        "lion",
        "sgd(momentum=0.9, nesterov=True)",
        "adamw(b1=0.8)",
    ]
    assert one.candidates[1].compared[0].name == "h=1 d_k=16 optimizer=lion seed=0"


def test_too_many_trials_are_refused():
    many = ",".join(map(str, range(1, 1000)))
    with pytest.raises(SweepError, match=r"--tune takes 400,400 trials, more than"):
        rows_of("heads", texts=[f"training.clip:0,{many}"], tune_seeds=200)


def test_a_row_is_tried_at_its_own_values_and_at_the_others():
    one, two = rows_of("heads", tune_seeds=2)
    assert (one.name, two.name) == ("h=1 d_k=16", "h=2 d_k=8")
    # Its own rate is 1, which the grid has too.
    assert [candidate.values for candidate in one.candidates] == [
        {},
        {"training.learning_rate": 0.5},
        {"training.learning_rate": 2},
    ]
    assert [trial.settings.seed for trial in one.candidates[1].tuning] == [1000, 1001]
    assert [trial.name for trial in two.candidates[2].tuning] == [
        "h=2 d_k=8 learning_rate=2 seed=1000",
        "h=2 d_k=8 learning_rate=2 seed=1001",
    ]
    assert [trial.name for trial in two.candidates[2].compared] == [
        "h=2 d_k=8 learning_rate=2 seed=0",
        "h=2 d_k=8 learning_rate=2 seed=1",
    ]
    assert [trial.role for trial in one.untuned] == ["untuned"] * 2
    # At a row's own values what is compared are its untuned trials.
    own = [trial._replace(role="compared") for trial in one.untuned]
    assert list(one.candidates[0].compared) == own
    assert {trial.role for trial in tuning_trials([one, two])} == {"tuning"}


def test_own_values_are_tried_where_the_grid_lacks_them():
    (one, _) = rows_of("heads", overrides={"training.learning_rate": 0.7})
    rates = [c.tuning[0].settings.training.learning_rate for c in one.candidates]
    assert rates == [0.7, 0.5, 1.0, 2.0]
    assert one.candidates[2].values == {"training.learning_rate": 1}


def test_values_that_differ_in_numbers_alone_are_lanes_of_the_rows_program():
    rows = rows_of("heads", tune_seeds=2)
    groups = group_trials(trials_to_run(rows, [None, None]))
    # Two rows, each with 3 values on 2 seeds and 2 untuned.
    assert [len(group) for group in groups] == [8, 8]


def test_labels_are_the_rows():
    config = tiny_config.get_config()
    points = [
        {"label": "base", "seed": 0},
        {"label": "base", "seed": 1},
        {"label": "(A)", "model.h": 1, "seed": 0},
    ]
    rows = plan_rows(config, plan_trials(config, points), {}, read_tuning(RATES, 1))
    assert [row.name for row in rows] == ["base", "(A)"]
    trials = trials_to_run(rows, [rows[0].candidates[1], None])
    assert [trial.label for trial in trials] == ["base"] * 3 + ["(A)"] * 3 + [
        *["base"] * 4,
        "(A)",
    ]
    # Titles tell apart what is tried, at the row's own values too.
    assert [trial.title for trial in trials[:6]] == [
        f"{row}{tried} seed=1000"
        for row in ("base", "(A)")
        for tried in ("", " learning_rate=0.5", " learning_rate=2")
    ]


def perplexities(row, *scores):
    """Those of a row's candidates, a tuple for the seeds of each."""
    found = {}
    for candidate, of_seeds in zip(row.candidates, scores, strict=True):
        for trial, score in zip(candidate.tuning, of_seeds, strict=True):
            if score is not None:
                found[trial.settings] = score
    return found


@pytest.mark.parametrize(
    ("scores", "chosen"),
    [
        ([(1.3, 1.3), (1.2, 1.3), (1.4, 1.3)], 1),
        ([(1.3, 1.3), (1.3, 1.3), (1.3, 1.3)], 0),
        ([(1.4, 1.3), (1.3, 1.3), (1.3, 1.3)], 1),
        # By the geometric mean: √(1 · 9) < √(4 · 4), though 5 > 4.
        ([(4.0, 4.0), (1.0, 9.0), (5.0, 5.0)], 1),
        # A value at which one seed diverged is not chosen, unless nothing else is left.
        ([(9.0, 9.0), (1.1, math.inf), (1.1, math.nan)], 0),
        ([(math.inf, 1.1), (1.1, math.inf), (9.0, 9.0)], 2),
        ([(math.inf, math.inf)] * 3, 0),
        # All have to have ended.
        ([(1.3, 1.3), (1.2, 1.3), (1.4, None)], None),
        ([(None, None)] * 3, None),
    ],
)
def test_the_lowest_perplexity_is_chosen(scores, chosen):
    (row, _) = rows_of("heads", tune_seeds=2)
    found = choose(row, perplexities(row, *scores))
    assert found == (None if chosen is None else row.candidates[chosen])


def test_what_is_run_follows_from_the_choice():
    rows = rows_of("heads")
    first, second = rows

    def run(*chosen):
        trials = trials_to_run(rows, chosen)
        assert len({trial.directory for trial in trials}) == len(trials)
        assert [t for t in trials if t.role == "tuning"] == tuning_trials(rows)
        return [(t.role, t.name) for t in trials if t.role != "tuning"]

    untuned = [("untuned", f"h=1 d_k=16 seed={seed}") for seed in (0, 1)]
    assert run(None, None)[:2] == untuned
    assert run(first.candidates[2], None)[:4] == [
        ("compared", "h=1 d_k=16 learning_rate=2 seed=0"),
        ("compared", "h=1 d_k=16 learning_rate=2 seed=1"),
        *untuned,
    ]
    # A row that is best at its own values has its runs once.
    assert run(None, second.candidates[0])[2:] == [
        ("compared", "h=2 d_k=8 seed=0"),
        ("compared", "h=2 d_k=8 seed=1"),
    ]


def finish(workdir, trial, **result):
    directory = workdir / trial.directory
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "result.json").write_text(json.dumps(dict(status="finished") | result))


def test_choices_are_read_from_results(tmp_path):
    rows = rows_of("heads")
    assert choices(rows, tmp_path) == [None, None]
    for i, candidate in enumerate(rows[0].candidates):
        finish(tmp_path, candidate.tuning[0], perplexity=1.3 - i / 10)
    for candidate in rows[1].candidates[:2]:
        finish(tmp_path, candidate.tuning[0], status="diverged")
    finish(tmp_path, rows[1].candidates[2].tuning[0], status="failed")
    # A failed trial is to be run again, so its row waits.
    assert choices(rows, tmp_path) == [rows[0].candidates[2], None]
    finish(tmp_path, rows[1].candidates[2].tuning[0], perplexity=50.0)
    assert choices(rows, tmp_path)[1] == rows[1].candidates[2]


def test_what_takes_longest_is_estimated():
    (one, _) = rows_of("heads", texts=["model.d_ff:8,64"])
    assert {trial.settings.model.d_ff for trial in costliest([one])} == {64}
    (one, _) = rows_of("heads", texts=["training.steps:8,10"])
    assert costliest([one]) == list(one.candidates[0].compared)


TUNING = read_tuning(RATES, 1).to_json()


def open_tuned(workdir, trials, tuning=TUNING):
    config = tiny_config.get_config()
    open_workdir(workdir, "tiny.py", config, ["heads"], trials, tuning=tuning)


def roles(workdir):
    sweep = json.loads((workdir / "sweep.json").read_text())
    return {trial["name"]: trial.get("role") for trial in sweep["trials"]}


def test_a_workdir_keeps_roles_and_what_was_tuned(tmp_path):
    rows = rows_of("heads")
    open_tuned(tmp_path, trials_to_run(rows, [None, None]))
    assert json.loads((tmp_path / "sweep.json").read_text())["tuning"] == TUNING
    assert roles(tmp_path)["h=1 d_k=16 seed=0"] == "untuned"
    chosen = [rows[0].candidates[0], rows[1].candidates[1]]
    open_tuned(tmp_path, trials_to_run(rows, chosen))
    found = roles(tmp_path)
    assert found["h=1 d_k=16 seed=0"] == "compared"
    assert found["h=2 d_k=8 seed=0"] == "untuned"
    assert found["h=2 d_k=8 learning_rate=0.5 seed=0"] == "compared"
    assert found["h=2 d_k=8 learning_rate=0.5 seed=1000"] == "tuning"
    names = {trial.name for trial in read_status(tmp_path).trials}
    assert {"h=2 seed=0", "h=2 learning_rate=0.5 seed=0"} <= names


def test_values_that_are_chosen_no_more_are_not_compared(tmp_path):
    rows = rows_of("heads")
    open_tuned(tmp_path, trials_to_run(rows, [row.candidates[1] for row in rows]))
    # Of the first row alone, as with --only.
    open_tuned(tmp_path, trials_to_run(rows[:1], [rows[0].candidates[2]]))
    found = roles(tmp_path)
    assert found["h=1 d_k=16 learning_rate=2 seed=0"] == "compared"
    assert found["h=1 d_k=16 learning_rate=0.5 seed=0"] == "tuning"
    assert found["h=2 d_k=8 learning_rate=0.5 seed=0"] == "compared"


@pytest.mark.parametrize(
    "tuning",
    [
        None,
        TUNING | dict(seeds=[1000, 1001]),
        TUNING | dict(grid={"training.learning_rate": [0.5, 1]}),
    ],
)
def test_a_workdir_that_was_tuned_otherwise_is_refused(tmp_path, tuning):
    rows = rows_of("heads")
    open_tuned(tmp_path, trials_to_run(rows, [None, None]))
    with pytest.raises(
        WorkdirError,
        match=r"belongs to a sweep with --tune=training\.learning_rate:0\.5,1,2 "
        "--tune_seeds=1: give the same, or choose another --workdir",
    ):
        open_tuned(tmp_path, planned("heads"), tuning)


def test_a_sweep_that_was_not_tuned_may_be(tmp_path):
    config = tiny_config.get_config()
    swept = plan_trials(config, [{"training.learning_rate": 2.0, "seed": 0}])
    open_tuned(tmp_path, [*planned("heads", seeds=3), *swept], None)
    assert set(roles(tmp_path).values()) == {None}
    rows = rows_of("heads")
    open_tuned(tmp_path, trials_to_run(rows[:1], [rows[0].candidates[1]]))
    found = roles(tmp_path)
    assert found["h=1 d_k=16 seed=0"] == "untuned"
    assert found["h=1 d_k=16 learning_rate=0.5 seed=0"] == "compared"
    # Of the earlier call: a seed more and another row, at their own values.
    assert found["h=1 d_k=16 seed=2"] == found["h=2 d_k=8 seed=0"] == "untuned"
    # And a row that was swept over what is tuned now.
    assert found["learning_rate=2.0 seed=0"] == "tuning"
