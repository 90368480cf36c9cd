"""Trials that processes on several nodes train; here a script stands in their place."""

import sys

import pytest

from experiments.sweep.claims import list_claims
from experiments.sweep.joiner import name_of
from experiments.sweep.nodes import LOG, train_on_nodes
from experiments.sweep.plan import plan_trials
from experiments.system.files import read_json
from experiments.system.signals import STATUS, Interrupted, Interruption
from tests.experiments import tiny

FINISHES = """
import json, pathlib, sys
name = sys.argv[1].removeprefix("--trial=")
print("trains", name)
(pathlib.Path("{workdir}") / "trials" / name / "result.json").write_text(
    json.dumps(dict(status="finished"))
)
"""


def train(workdir, trials, script):
    command = [sys.executable, "-c", script.replace("{workdir}", str(workdir))]
    for _ in train_on_nodes(workdir, trials, command, Interruption()):
        pass


def planned():
    return plan_trials(tiny.config(), [{"seed": 0}, {"seed": 1}, {"model.h": 1}])


def test_a_command_is_started_for_each_trial(tmp_path):
    trials = planned()
    train(tmp_path, trials, FINISHES)
    assert list_claims(tmp_path).ended == {name_of(trial) for trial in trials}
    for trial in trials:
        log = (tmp_path / trial.directory / LOG).read_text()
        assert log == f"trains {name_of(trial)}\n"


def test_the_error_of_a_command_is_the_failure_of_its_trial(tmp_path):
    (trial, *_) = planned()
    train(
        tmp_path,
        [trial],
        "print('error: no memory'); print('bye'); raise SystemExit(3)",
    )
    result = read_json(tmp_path / trial.directory / "result.json")
    assert result["status"] == "failed"
    assert result["error"] == "exit status 3: no memory"


def test_a_command_that_was_stopped_is_an_interruption(tmp_path):
    (trial, *_) = planned()
    with pytest.raises(Interrupted):
        train(tmp_path, [trial], f"raise SystemExit({STATUS})")
    assert list_claims(tmp_path).running() == []
