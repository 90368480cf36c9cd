"""launch.sweep --tune as a person types it: what is trained, and what a kill changes."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.end_to_end.test_commands import CONFIG, ENVIRONMENT, ROOT, sweep

# How ml_collections loads a config.
pytestmark = pytest.mark.filterwarnings("ignore:.*load_module:DeprecationWarning")

TUNED = ("--seeds=2", "--tune=training.learning_rate:0.5,1", "--workers=1")


def entries(workdir):
    return json.loads((workdir / "sweep.json").read_text())["trials"]


def results(workdir):
    """{(role, name): (perplexity, BLEU)} of all trials."""
    found = {}
    for entry in entries(workdir):
        result = json.loads((workdir / entry["directory"] / "result.json").read_text())
        scores = result["perplexity"], result["bleu"]
        found[entry["role"], entry["name"]] = scores
    return found


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("tuned")
    done = sweep(workdir, *TUNED, names="positions")
    assert (done.returncode, done.stderr) == (0, "")
    return workdir, done.stdout


@pytest.mark.ci
def test_each_row_is_compared_at_its_best_value(tuned):
    workdir, printed = tuned
    found = results(workdir)
    assert [role for role, _ in found].count("tuning") == 4
    for row in ("positions=sinusoidal", "positions=none"):
        # The row's own rate, 1, is not in the name.
        tried = {
            rate: found["tuning", f"{row}{rate} seed=1000"][0]
            for rate in (" learning_rate=0.5", "")
        }
        best = min(tried, key=tried.get)
        compared = {name for role, name in found if role == "compared" and row in name}
        assert compared == {f"{row}{best} seed={seed}" for seed in (0, 1)}
        if best:
            assert ("untuned", f"{row} seed=1") in found
    assert "against base, untuned" in printed
    assert len(list(workdir.glob("trials/*"))) == len(found)


@pytest.mark.ci
def test_the_same_command_has_nothing_left_to_do(tuned):
    workdir, _ = tuned
    before = (workdir / "sweep.json").read_bytes()
    done = sweep(workdir, *TUNED, names="positions")
    count = len(entries(workdir))
    assert f"{count} of {count} trials were finished before" in done.stdout
    assert (workdir / "sweep.json").read_bytes() == before
    done = sweep(workdir, "--seeds=2", names="positions")
    assert done.returncode == 2 and "belongs to a sweep with --tune=" in done.stderr


@pytest.mark.ci
def test_a_killed_sweep_chooses_the_same(tuned, tmp_path):
    """Killed while it trains what was chosen, after four tuning trials."""
    flags = (f"--config={CONFIG}", "--sweep=positions", f"--workdir={tmp_path}")
    command = [sys.executable, "-m", "launch.sweep", *flags, *TUNED]
    # A group of its own, so that the workers are killed too.
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    while len(list(tmp_path.glob("trials/*/result.json"))) < 5:
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = sweep(tmp_path, *TUNED, names="positions")
    assert (done.returncode, done.stderr) == (0, "")
    assert results(tmp_path) == results(tuned[0])
    ours = [(entry["name"], entry["role"]) for entry in entries(tmp_path)]
    theirs = [(entry["name"], entry["role"]) for entry in entries(tuned[0])]
    assert ours == theirs


def test_dry_run_prints_the_tuning_trials_and_says_what_depends_on_them(tmp_path):
    done = sweep(tmp_path, *TUNED, "--dry_run", "--tune_seeds=2", names="positions")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert sum(line.startswith("tuning: ") for line in lines) == 8
    assert sum(line.startswith("untuned: ") for line in lines) == 4
    assert "16 trials in 1 groups, each builds" in done.stdout
    assert lines[-1].startswith(
        "4 of them are compared trials, which depend on what the tuning trials choose, of "
        "positions=sinusoidal, positions=none; "
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "message"),
    (
        [
            (["--tune=training.learning_rate:1"], "one value is no choice"),
            (["--tune=training.rate:1,2"], "training.rate: no such setting"),
            (["--tune=training.clip:1,x"], "'x' is no number"),
            (
                ["--tune=training.clip:1,2", "--seeds=auto", "--budget=9"],
                "--tune and --seeds=auto both choose what to train: give --seeds a number",
            ),
            (["--tune=training.clip:1,2", "--tune_seeds=0"], "tune_seeds"),
            (["--tune_seeds=2"], "--tune_seeds=2 is for --tune: give that too"),
        ]
    ),
)
def test_mistakes_are_one_line_before_any_work(tmp_path, flags, message):
    done = sweep(tmp_path / "new", *flags, names="positions")
    assert done.returncode == 2 and done.stdout == ""
    assert message in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "new").exists()
