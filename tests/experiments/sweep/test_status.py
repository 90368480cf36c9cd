"""How a sweep stands, by its files."""

import json
import os
import time

import pytest

from experiments.errors import UserError
from experiments.sweep.claims import JOINERS, Claims
from experiments.sweep.joiner import begin, name_of
from experiments.sweep.plan import plan_trials
from experiments.sweep.status import lines_of, read_status, to_json
from experiments.sweep.workdir import (
    cancel,
    open_workdir,
    read_trials,
    record_failure,
)
from experiments.system.files import write_json
from tests.experiments import tiny


@pytest.fixture
def sweep(tmp_path):
    """Five trials: one has ended, one failed, two run, one of them in silence, one waits."""
    points = [{"seed": seed} for seed in range(4)]
    points.append({"seed": 4, "training.steps": 20})
    trials = plan_trials(tiny.config(), points)
    open_workdir(tmp_path, "tiny.py", tiny.config(), ["seed"], trials)
    ended, failed, running, silent, _ = trials
    write_json(
        tmp_path / ended.directory / "result.json", dict(status="finished", steps=12)
    )
    record_failure(tmp_path, failed, "no memory\nleft")
    line = dict(split="train", step=6, loss=2.5, seconds=3.0, tokens_per_second=10)
    (tmp_path / running.directory).mkdir(parents=True)
    (tmp_path / running.directory / "metrics.jsonl").write_text(json.dumps(line))
    for trial, name in ((running, "alive"), (silent, "gone")):
        Claims(tmp_path, name).take(name_of(trial), 0)
        path = tmp_path / JOINERS / f"{name}.json"
        write_json(path, dict(host=f"node-{name}", job="17_3", beats=4))
    long_ago = time.time() - 3600
    os.utime(tmp_path / JOINERS / "gone.json", (long_ago, long_ago))
    return tmp_path, trials


def test_a_status_says_what_ends_runs_waits_and_fails(sweep):
    workdir, trials = sweep
    status = read_status(workdir)
    assert status.counts == dict(finished=1, failed=1, running=2, waiting=1)
    assert status.processes == 1
    # Of 12, 12 and 20 steps 6 are done, at two a second.
    assert status.seconds_left == (6 + 12 + 20) / 2
    running, silent = status.trials[2:4]
    assert (running.step, running.steps, running.loss, running.speed) == (6, 12, 2.5, 2)
    assert (running.host, running.job) == ("node-alive", "17_3")
    assert 3500 < silent.silent < 3700 and running.silent < 600
    first, *lines = lines_of(status)
    assert first == (
        "5 trials: 1 finished, 1 failed, 2 running, 1 waiting; 1 processes, time left 19 s"
    )
    assert lines[0].startswith(
        f"running {trials[2].name} step 6/12 loss 2.500 on node-alive, job 17_3, since 2"
    )
    assert lines[1].endswith("no sign of life for 60 min")
    assert lines[2] == f"failed {trials[1].name} no memory left"
    assert len(lines) == 3


def test_time_left_goes_by_what_steps_take(sweep):
    """A trial that waits, of 20 steps that take three times as long as those of the others."""
    workdir, trials = sweep
    work = {trial.directory: 1.0 for trial in trials[2:4]}
    status = read_status(workdir, work | {trials[4].directory: 3.0})
    assert status.seconds_left == (6 + 12 + 3 * 20) / 2


def test_a_trial_of_unknown_work_counts_as_others_do(sweep):
    """Another command's trial that runs, where those of this one count in 10⁹ FLOPs."""
    workdir, trials = sweep
    work = {trials[3].directory: 1e9, trials[4].directory: 3e9}
    status = read_status(workdir, work)
    assert status.seconds_left == (2 * 6 + 1 * 12 + 3 * 20) / (2 * 2)


def test_a_status_as_json_is_the_same(sweep):
    workdir, trials = sweep
    values = json.loads(to_json(read_status(workdir)))
    assert values["counts"]["running"] == 2 and values["seconds_left"] == 19
    assert [trial["directory"] for trial in values["trials"]] == [
        trial.directory for trial in trials
    ]
    assert values["trials"][4]["steps"] == 20


def test_a_cancelled_sweep_says_so_until_it_is_begun_again(sweep):
    workdir, trials = sweep
    cancel(workdir, "me")
    assert lines_of(read_status(workdir))[0].endswith("; cancelled")
    begin(workdir, trials[1:])
    assert not read_status(workdir).cancelled


def test_only_some_of_many_are_shown(sweep):
    workdir, _ = sweep
    lines = lines_of(read_status(workdir), shown=1)
    assert "… and 1 more running" in lines


def test_there_has_to_be_a_sweep(tmp_path):
    with pytest.raises(UserError, match="holds no sweep"):
        read_status(tmp_path)


@pytest.mark.parametrize(
    "garbage", ["", "{", '{"split": "train"}', '{"split": "train", "step": "x"}', "[1]"]
)
def test_a_damaged_trial_does_not_hide_the_others(sweep, garbage):
    workdir, trials = sweep
    (workdir / trials[2].directory / "metrics.jsonl").write_text(garbage)
    (workdir / trials[0].directory / "result.json").write_text("{")
    (workdir / JOINERS / "alive.json").write_text(garbage)
    status = read_status(workdir)
    assert status.trials[0].state == "failed" and "damaged" in status.trials[0].error
    assert status.trials[2].state == "running" and status.trials[2].loss is None
    assert len(lines_of(status)) == 5
    json.loads(to_json(status))


def test_who_joins_reads_the_trials_that_were_planned(tmp_path):
    """Other kinds of models, rows of several seeds, what is spelled out in no point."""
    points = [
        {"seed": 3, "model.h": 1, "label": "one head"},
        {"seed": 4, "model.h": 1, "label": "one head"},
        {},
        {"model.positions": "rotary(fraction=0.5)"},
        {"training.steps": 20, "evaluation.beam": 2},
    ]
    overrides = {"training.batch_size": 8}
    trials = plan_trials(tiny.config(), points, overrides)
    rnn = tiny.config()
    rnn.model = dict(kind="rnn", d_model=16)
    others = plan_trials(rnn, [{}])
    open_workdir(tmp_path, "tiny.py", tiny.config(), [], [*trials, *others])
    assert read_trials(tmp_path) == [*trials, *others]


def test_who_joins_with_other_code_is_told(tmp_path):
    trials = plan_trials(tiny.config(), [{"seed": 1}])
    open_workdir(tmp_path, "tiny.py", tiny.config(), [], trials)
    path = tmp_path / "sweep.json"
    text = json.loads(path.read_text())
    del text["checksum"]
    text["trials"][0]["settings"]["training"] = dict(steps=16)
    path.write_text(json.dumps(text))
    with pytest.raises(UserError, match="use the same version of the code"):
        read_trials(tmp_path)
