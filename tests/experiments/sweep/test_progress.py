"""What a sweep says of itself while it runs."""

import io
import json
import time

import rich.console

from experiments.sweep.claims import Claims
from experiments.sweep.joiner import name_of
from experiments.sweep.plan import plan_trials
from experiments.sweep.progress import Progress
from experiments.sweep.workdir import record_failure
from experiments.system.files import write_json
from tests.experiments import fakes, tiny


def test_time_left_is_guessed_without_the_steps_that_were_not_needed(
    tmp_path, monkeypatch
):
    """Three trials of at most 60 steps; the first ends flat after 20, in 40 seconds."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    config = tiny.config()
    config.training.update(until="flat", steps=60, evaluate_every=4)
    points = [{"seed": seed} for seed in range(3)]
    trials = plan_trials(config, points)
    printed = io.StringIO()
    progress = Progress(tmp_path, trials, 0, rich.console.Console(file=printed))
    now[0] = 40.0
    directory = tmp_path / trials[0].directory
    directory.mkdir(parents=True)
    (directory / "result.json").write_text(json.dumps(fakes.finished(steps=20)))
    progress.ended(trials[0])
    progress.update(trials[1:2])
    # 120 steps are left at the most, at 2 seconds each.
    assert "1 of 3 trials done, 1 running, 1 to come" in printed.getvalue()
    assert "4 min left" in printed.getvalue()


def test_time_left_is_guessed_from_what_steps_cost(tmp_path, monkeypatch):
    """Two trials of as many steps; the first ends after 10 seconds."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    points = [{"model.d_ff": d_ff} for d_ff in (4, 8)]
    trials = plan_trials(tiny.config(), points)
    cost = {4: 10**6, 8: 5 * 10**6}
    monkeypatch.setattr(
        "experiments.sweep.progress.assumed_flops_of_a_step",
        lambda settings: cost[settings.model.d_ff],
    )
    printed = io.StringIO()
    progress = Progress(tmp_path, trials, 0, rich.console.Console(file=printed))
    now[0] = 10.0
    directory = tmp_path / trials[0].directory
    directory.mkdir(parents=True)
    steps = trials[0].settings.training.steps
    (directory / "result.json").write_text(json.dumps(fakes.finished(steps=steps)))
    progress.ended(trials[0])
    now[0] = 40.0
    progress.update([])
    # Of 6 parts one is done, in 40 seconds.
    assert "3 min left" in printed.getvalue()


def test_steps_before_this_call_took_none_of_its_time(tmp_path, monkeypatch):
    """One trial of 12 steps, of which 6 are behind it, makes 2 more in 24 seconds."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    trials = plan_trials(tiny.config(), [{}])
    directory = tmp_path / trials[0].directory
    directory.mkdir(parents=True)
    line = dict(step=6, split="train", loss=2.5)
    (directory / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    printed = io.StringIO()
    progress = Progress(tmp_path, trials, 0, rich.console.Console(file=printed))
    (directory / "metrics.jsonl").write_text(json.dumps({**line, "step": 8}) + "\n")
    # A line is printed after 20 seconds at the earliest.
    now[0] = 24.0
    progress.update(trials)
    assert trials[0].settings.training.steps == 12
    assert "48 s left" in printed.getvalue()


def test_a_terminal_shows_a_bar_for_each_running_trial(tmp_path):
    points = [{"label": "[red]", "seed": seed} for seed in range(2)]
    trials = plan_trials(tiny.config(), points)
    directory = tmp_path / trials[0].directory
    directory.mkdir(parents=True)
    line = dict(step=6, split="train", loss=2.5, tokens_per_second=100)
    (directory / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    printed = io.StringIO()
    console = rich.console.Console(file=printed, force_terminal=True, color_system=None)
    with Progress(tmp_path, trials, 0, console) as progress:
        progress.update(trials)
        console.print(progress._live.renderable)
    shown = printed.getvalue()
    assert "2 running, 0 to come, 100 tokens/s" in shown
    assert "step 6/12 loss 2.500" in shown and "compiling" in shown
    assert "seed=1" in shown


def test_what_becomes_of_trials_is_said_once(tmp_path):
    """One ends, one diverges, and one fails, as it did in an earlier call."""
    points = [{"seed": seed} for seed in range(3)]
    ended, diverged, failed = plan_trials(tiny.config(), points)
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
