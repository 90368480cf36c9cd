"""Trackers: each has every line once, although a run is killed and goes on from earlier."""

import os
import subprocess
import sys
import types
from pathlib import Path

from experiments.training.trackers import Tracked, Trackers, mistake_in
from tests.experiments.event_files import hyperparameters, scalars

ROOT = Path(__file__).parents[3]
LINES = [
    dict(step=2, split="train", loss=3.0, seconds=1.0),
    dict(step=4, split="train", loss=2.5, seconds=2.0),
    dict(step=4, split="validation", perplexity=9.0, seconds=3.0),
    dict(step=6, split="train", loss=2.0, seconds=4.0),
    dict(step=8, split="train", loss=1.5, seconds=5.0),
    dict(step=8, split="validation", perplexity=7.0, seconds=6.0),
]
RESULT = dict(status="finished", steps=8, bleu=50.0, beside={})
EXPECTED = sorted(
    (line["step"], f"{line['split']}/{name}", value)
    for line in [*LINES, dict(step=8, split="result", bleu=50.0, seconds=7.0)]
    for name, value in line.items()
    if name not in ("step", "split")
)
"""(step, tag, value) of all lines."""

PART = """
import json, os, pathlib, signal, sys
from tests.experiments.training.test_trackers import LINES, RESULT, open_trackers
path, first, last = sys.argv[1:]
trackers = open_trackers("tensorboard", pathlib.Path(path), LINES[: int(first)])
for line in LINES[int(first) : int(last)]:
    trackers.write(line)
if int(last) < len(LINES):
    os.kill(os.getpid(), signal.SIGKILL)
trackers.result(RESULT, 7.0)
trackers.close()
"""


def open_trackers(name, path, lines):
    settings = {"model.h": 4, "seed": 0, "model.score": "dot"}
    trial = Tracked(path, path, "a trial", settings, ("bleu",), lines)
    return Trackers([name], trial)


def test_a_killed_run_neither_doubles_nor_loses_a_line(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    # Killed after line 5, it goes on from a checkpoint at line 3, and then from one at 5.
    for first, last, status in ((0, 5, -9), (3, 5, -9), (5, 6, 0)):
        call = [sys.executable, "-c", PART, str(tmp_path), str(first), str(last)]
        done = subprocess.run(call, env=environment, capture_output=True, text=True)
        assert done.returncode == status, done.stderr
        assert "left out" not in done.stderr
    assert sorted(scalars(tmp_path / "tensorboard")) == EXPECTED


def test_wandb_online_gets_what_its_server_lacks(tmp_path, monkeypatch):
    """A stand-in for W&B, whose server has the first three lines of this run."""
    logged = []
    run = types.SimpleNamespace(
        step=3,
        offline=False,
        define_metric=lambda *_, **__: None,
        log=lambda values, step: logged.append((step, values)),
        finish=lambda: logged.append("finished"),
    )
    asked = []
    module = types.SimpleNamespace(
        init=lambda **options: asked.append(options) or run, Settings=dict
    )
    monkeypatch.setitem(sys.modules, "wandb", module)
    for _ in range(2):
        trackers = open_trackers("wandb", tmp_path, LINES[:2])
        for line in LINES[2:]:
            trackers.write(line)
        trackers.close()
    first, second = asked
    assert first["id"] == second["id"] and first["resume"] == "allow"
    expected = [(3, {"train/loss": 2.0, "train/seconds": 4.0, "step": 6})]
    assert logged[:1] == expected
    assert [entry[0] for entry in logged[:3]] == [3, 4, 5] and logged[3] == "finished"


def test_tensorboard_knows_the_hyperparameters(tmp_path):
    trackers = open_trackers("tensorboard", tmp_path, LINES)
    trackers.result(RESULT, 7.0)
    trackers.close()
    given, metrics = hyperparameters(tmp_path / "tensorboard")
    assert given == {"model.h": 4.0, "seed": 0.0, "model.score": "dot"}
    assert metrics == ["result/bleu"]


def test_a_tracker_that_fails_is_left_out(tmp_path, capsys):
    # A file stands where its folder is to be.
    (tmp_path / "tensorboard").touch()
    trackers = open_trackers("tensorboard", tmp_path, LINES)
    trackers.write(LINES[0])
    trackers.close()
    said = capsys.readouterr().err
    assert (
        said.startswith("--tracker=tensorboard is left out") and said.count("\n") == 1
    )


def test_what_cannot_be_used_is_said():
    assert mistake_in(["tensorboard"]) == ""
    assert mistake_in(["aim"]).startswith("'aim' is no tracker; tensorboard, wandb")
