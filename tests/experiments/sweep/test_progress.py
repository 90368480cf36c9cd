"""What a sweep says of itself while it runs."""

import io
import json
import time

import rich.console

from experiments.sweep.plan import plan_trials
from experiments.sweep.progress import Progress
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
    assert "1 of 3 trials done, 1 to come" in printed.getvalue()
    assert "4 min left" in printed.getvalue()
