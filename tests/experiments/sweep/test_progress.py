"""What a sweep says of itself while it runs."""

import io
import json
import time

import rich.console

from experiments.sweep.claims import Claims
from experiments.sweep.joiner import name_of
from experiments.sweep.plan import plan_trials
from experiments.sweep.progress import Progress
from experiments.sweep.workdir import open_workdir, record_failure
from experiments.system.files import write_json
from tests.experiments import fakes, tiny


def planned(workdir, count):
    trials = plan_trials(tiny.config(), [{"seed": seed} for seed in range(count)])
    open_workdir(workdir, "tiny.py", tiny.config(), ["seed"], trials)
    return trials


def run_one(workdir, trial):
    """Makes a trial one that is at step 6 after two seconds."""
    Claims(workdir, "here").take(name_of(trial), 0)
    (workdir / trial.directory).mkdir(parents=True)
    line = dict(step=6, split="train", loss=2.5, seconds=2.0)
    (workdir / trial.directory / "metrics.jsonl").write_text(json.dumps(line) + "\n")


STATUS = "2 trials: 1 running, 1 waiting; 0 processes, time left 6 s"


def test_a_line_now_and_then_says_how_the_sweep_stands(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    trials = planned(tmp_path, 2)
    run_one(tmp_path, trials[0])
    printed = io.StringIO()
    progress = Progress(tmp_path, trials, 0, rich.console.Console(file=printed))
    now[0] = 19.0
    progress.look()
    assert printed.getvalue() == ""
    now[0] = 21.0
    for _ in range(2):
        progress.look()
    (line,) = printed.getvalue().splitlines()
    assert line.startswith(f"{STATUS} | running seed=0 step 6/12 loss 2.500 on here")


def test_a_terminal_shows_it_all_the_time(tmp_path):
    trials = planned(tmp_path, 2)
    run_one(tmp_path, trials[0])
    printed = io.StringIO()
    console = rich.console.Console(
        file=printed, force_terminal=True, color_system=None, width=200
    )
    Progress(tmp_path, trials, 0, console).follow(None for _ in range(2))
    shown = printed.getvalue()
    assert STATUS in shown and "running seed=0 step 6/12 loss 2.500" in shown


def test_what_becomes_of_trials_is_said_once(tmp_path):
    """One ends, one diverges, and one fails, as it did in an earlier call."""
    ended, diverged, failed = planned(tmp_path, 3)
    before = Claims(tmp_path, "before")
    before.take(name_of(failed), 0)
    before.give_back(name_of(failed), "no memory", failed=True)
    printed = io.StringIO()
    console = rich.console.Console(file=printed, width=200)
    progress = Progress(tmp_path, [ended, diverged, failed], 0, console)
    progress.look()
    assert printed.getvalue() == ""
    claims = Claims(tmp_path, "now")
    results = (fakes.finished(steps=12), dict(status="diverged", error="loss nan"))
    for trial, result in zip((ended, diverged), results, strict=True):
        claims.take(name_of(trial), 0)
        write_json(tmp_path / trial.directory / "result.json", result)
        claims.end(name_of(trial))
    claims.take(name_of(failed), 2)
    record_failure(tmp_path, failed, "no memory")
    claims.give_back(name_of(failed), "no memory", failed=True)
    for _ in range(2):
        progress.look()
    lines = printed.getvalue().splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "[1/3] seed=0",
        "[2/3] seed=1",
        "[3/3] seed=2",
    ]
    assert lines[1].endswith("FAILED: loss nan")
    assert lines[2].endswith("FAILED: no memory")
