"""The log of metrics: its lines, and what it skips."""

import json

import numpy as np
import pytest

from experiments.training import metric_log
from experiments.training.metric_log import Log
from experiments.training.run_dir import RunDir


def test_utilisation_is_work_over_what_could_be_done(tmp_path):
    directory = RunDir(tmp_path)
    said = []
    log = Log(directory, lambda: 0.0, said.append, peak=1e12)
    metrics = {
        name: np.ones(1, np.float32)
        for name in ("tokens", "loss", "nll", "learning_rate", "grad_norm")
    }
    log.steps(1, metrics, 3e9, due=False)
    log.steps(2, metrics, 5e9, due=True)
    log.steps(3, metrics, 7e9, due=True)
    for line, work in zip(directory.metrics(), (8e9 / 2, 7e9), strict=True):
        assert line["mfu"] == pytest.approx(work / 1e12 * line["tokens_per_second"])
    assert "% of peak" in said[0]


def test_time_of_an_evaluation_is_no_time_of_steps(tmp_path, monkeypatch):
    directory = RunDir(tmp_path)
    now = 0.0
    monkeypatch.setattr(metric_log.time, "perf_counter", lambda: now)
    log = Log(directory, lambda: now, lambda line: None)
    metrics = {
        name: np.full(1, 6, np.float32)
        for name in ("tokens", "loss", "nll", "learning_rate", "grad_norm")
    }
    # Two steps of a second, with an evaluation of ten seconds in between and after.
    now = 1.0
    log.steps(1, metrics, 70, due=False)
    now = 11.0
    log.validation(1, dict(perplexity=2.0))
    now = 12.0
    log.steps(2, metrics, 30, due=True)
    now = 22.0
    log.validation(2, dict(perplexity=2.0))
    now = 24.0
    log.steps(3, metrics, 0, due=True)
    lines = [line for line in directory.metrics() if line["split"] == "train"]
    assert [line["tokens_per_second"] for line in lines] == [6, 3]
    assert [line["flops"] for line in lines] == [100, 0] and directory.flops() == 100


def test_work_that_is_not_known_is_no_number(tmp_path):
    directory = RunDir(tmp_path)
    said = []
    log = Log(directory, lambda: 0.0, said.append, peak=1e12)
    metrics = {
        name: np.ones(1, np.float32)
        for name in ("tokens", "loss", "nll", "learning_rate", "grad_norm")
    }
    log.steps(1, metrics, None, due=False)
    noted = json.loads(json.dumps(log.noted()))
    again = Log(directory, lambda: 0.0, said.append, peak=1e12, noted=noted)
    again.steps(2, metrics, None, due=True)
    (line,) = directory.metrics()
    assert not {"flops", "mfu"} & line.keys()
    assert directory.flops() is None
    assert "% of peak" not in said[0]


def test_a_log_counts_what_is_skipped(tmp_path):
    def steps(*losses):
        fixed = dict(tokens=2.0, nll=1.0, learning_rate=0.1)
        return {
            name: np.full(len(losses), value, np.float32)
            for name, value in fixed.items()
        } | dict(
            loss=np.array(losses, np.float32), grad_norm=np.array(losses, np.float32)
        )

    directory = RunDir(tmp_path)
    nan = float("nan")
    log = Log(directory, lambda: 0.0, lambda line: None, skip=True)
    log.steps(2, steps(1.0, nan), 0, due=True)
    log.steps(4, steps(nan, nan), 0, due=True)
    log.steps(5, steps(3.0), 0, due=False)
    again = Log(
        directory,
        lambda: 0.0,
        lambda line: None,
        noted=json.loads(json.dumps(log.noted())),
        skip=True,
    )
    again.steps(8, steps(nan, np.inf, 5.0), 0, due=True)
    assert [
        (line["step"], line["loss"], line["skipped"]) for line in directory.metrics()
    ] == [(2, 1.0, 1), (8, 4.0, 4)]
    assert again.skipped() == 5
