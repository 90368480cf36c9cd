"""Processes that join a sweep, as on several machines that see one directory."""

import contextlib
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.sweep.claims import list_claims, read_claim
from tests.calls import call
from tests.end_to_end import faults

# How ml_collections loads a config.
pytestmark = pytest.mark.filterwarnings("ignore:.*load_module:DeprecationWarning")

ROOT = Path(__file__).parents[2]
CONFIG = "tests/experiments/tiny_config.py"


def sweep(*flags):
    return [sys.executable, "-m", "launch.sweep", *flags]


def call_sweep(command):
    """Calls in this process what `sweep` and `planned` give."""
    return call("sweep", *command[3:])


def planned(workdir, *flags):
    """The command that plans a sweep."""
    config = (f"--config={CONFIG}", "--sweep=positions", f"--workdir={workdir}")
    return sweep(*config, *flags)


@pytest.fixture
def start():
    """A function that starts a command; what still runs at the test's end is killed."""
    with contextlib.ExitStack() as processes:

        def start(command):
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            processes.enter_context(process)
            processes.callback(process.kill)
            return process

        yield start


def wait_for(holds, process, seconds=120):
    deadline = time.monotonic() + seconds
    while not holds():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.ci
def test_processes_that_are_killed_make_the_table(start, tmp_path):
    """Twelve trials; whenever four more have ended one of two dies, and another comes."""
    workdir = tmp_path / "sweep"
    seeds = "--seeds=6"
    joins = sweep("--join", f"--workdir={workdir}", "--workers=1", "--silence=10")
    planner = start(planned(workdir, seeds, "--on=join"))
    wait_for((workdir / "sweep.json").exists, planner)
    rng = random.Random(0)
    joiners = [start(joins) for _ in range(2)]
    kills = 0
    written = {}
    deadline = time.monotonic() + 400
    while len(written) < 12:
        time.sleep(0.1)
        for path in workdir.glob("trials/*/result.json"):
            at = path.stat().st_mtime_ns
            # No trial is trained again after its end.
            assert written.setdefault(path, at) == at
        assert time.monotonic() < deadline
        if 4 * (kills + 1) <= len(written) < 12:
            victim = rng.randrange(2)
            joiners[victim].send_signal(signal.SIGKILL)
            joiners[victim].communicate()
            joiners[victim] = start(joins)
            kills += 1
    printed = planner.communicate(timeout=60)[0]
    assert planner.returncode == 0 and "[12/12]" in printed
    for joiner in joiners:
        last = joiner.communicate(timeout=60)[0].splitlines()[-1]
        # One may leave while another trains the last trial.
        left = "all 12 trials have ended", "nothing is left to take"
        assert joiner.returncode == 0 and any(words in last for words in left)
    assert kills == 2
    undisturbed = tmp_path / "undisturbed"
    done = call_sweep(planned(undisturbed, seeds, "--workers=1"))
    assert done.returncode == 0, done.stderr
    assert faults.differences(undisturbed, workdir) == []


@pytest.mark.ci
def test_a_second_machine_helps_and_what_it_does_shows(start, tmp_path):
    """A process joins a sweep that another runs; status and cancel see both."""
    workdir = tmp_path / "sweep"
    host = start(planned(workdir, "--seeds=30", "--workers=1"))
    wait_for(lambda: list_claims(workdir).running(), host)
    guest = start(sweep("--join", f"--workdir={workdir}", "--workers=1"))

    def status(*flags):
        return call("status", f"--workdir={workdir}", *flags)

    # Either may be between two trials when one looks.
    wait_for(lambda: " 2 running," in status().stdout, guest)
    said = status()
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith("60 trials: ")
    assert "2 processes, time left" in said.stdout
    values = json.loads(status("--json").stdout)
    states = {trial["state"] for trial in values["trials"]}
    assert "waiting" in states and values["counts"]["running"] <= 2

    def owners():
        ended = list_claims(workdir).ended
        return {read_claim(workdir, name, 0)["joiner"] for name in ended}

    wait_for(lambda: len(owners()) == 2, guest)
    assert call("cancel", f"--workdir={workdir}").returncode == 0
    said, told = (process.communicate(timeout=60)[0] for process in (host, guest))
    # The planner's sweep has not ended; a scheduler is not to start the guest again.
    assert host.returncode == 2 and "was cancelled" in said
    assert guest.returncode == 0 and "was cancelled" in told
    assert list_claims(workdir).running() == []
    assert "cancelled" in status().stdout
    # What is joined now is refused until it is begun again.
    refused = call("sweep", "--join", f"--workdir={workdir}")
    assert refused.returncode == 0 and "was cancelled" in refused.stdout


@pytest.mark.ci
def test_who_joins_waits_for_what_is_planned_later(start, tmp_path):
    """Compared trials are planned when the tuning trials have ended."""
    workdir = tmp_path / "sweep"
    tune = "--tune=training.learning_rate:0.1,0.4"
    planner = start(planned(workdir, "--seeds=1", "--only=none", tune, "--on=join"))
    wait_for((workdir / "sweep.json").exists, planner)
    first = len(json.loads((workdir / "sweep.json").read_text())["trials"])
    guest = start(sweep("--join", f"--workdir={workdir}", "--workers=1"))
    printed = planner.communicate(timeout=200)[0]
    assert planner.returncode == 0, printed
    said = guest.communicate(timeout=60)[0]
    trials = json.loads((workdir / "sweep.json").read_text())["trials"]
    assert len(trials) > first and len(list_claims(workdir).ended) == len(trials)
    assert guest.returncode == 0 and f"all {len(trials)} trials have ended" in said


def test_there_has_to_be_a_sweep_to_join(tmp_path):
    refused = call("sweep", "--join", f"--workdir={tmp_path}")
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    assert "holds no sweep yet" in refused.stderr


def test_status_and_cancel_need_a_sweep(tmp_path):
    for name in ("status", "cancel"):
        refused = call(name, f"--workdir={tmp_path}")
        assert refused.returncode == 2 and "holds no sweep" in refused.stderr
