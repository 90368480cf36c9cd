"""The log of metrics: its lines, and what it skips."""

import json

import numpy as np
import pytest

from experiments.evaluation.decode import search_text
from experiments.evaluation.metrics import METRICS, Metric
from experiments.settings import resolve
from experiments.training import metric_log
from experiments.training.metric_log import Log
from experiments.training.run_dir import RunDir
from tests.experiments import own_parts, tiny


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
    # The first step of a process is compiled then, and is no part of speeds.
    for line, work in zip(directory.metrics(), (5e9, 7e9), strict=True):
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


def test_compiling_is_no_time_of_steps(tmp_path, monkeypatch):
    directory = RunDir(tmp_path)
    now = 0.0
    monkeypatch.setattr(metric_log.time, "perf_counter", lambda: now)
    metrics = {
        name: np.full(1, 6, np.float32)
        for name in ("tokens", "loss", "nll", "learning_rate", "grad_norm")
    }

    def step(log, seconds, number, due):
        nonlocal now
        now += seconds
        log.steps(number, metrics, 10, due=due)

    log = Log(directory, lambda: now, lambda line: None)
    # A minute of compiling, then steps of two seconds.
    step(log, 60.0, 1, False)
    step(log, 2.0, 2, True)
    step(log, 2.0, 3, True)
    # Interrupted in the middle of a line: the next process compiles again.
    step(log, 2.0, 4, False)
    again = Log(directory, lambda: now, lambda line: None, noted=log.noted())
    step(again, 30.0, 5, False)
    step(again, 2.0, 6, True)
    # And in the middle of its first line, which then has been compiled twice.
    early = Log(directory, lambda: now, lambda line: None)
    step(early, 60.0, 1, False)
    step(early, 2.0, 2, False)
    noted = json.loads(json.dumps(early.noted()))
    late = Log(directory, lambda: now, lambda line: None, noted=noted)
    step(late, 60.0, 3, False)
    step(late, 2.0, 4, True)
    # A line of nothing else has all of its time.
    alone = Log(directory, lambda: now, lambda line: None)
    step(alone, 60.0, 7, True)
    speeds = [line["tokens_per_second"] for line in directory.metrics()]
    assert speeds == pytest.approx([3, 3, 3, 3, 0.1])


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


@pytest.mark.parametrize(
    ("scores", "shown"),
    [
        (dict(perplexity=1.5), "perplexity 1.500"),
        (
            dict(perplexity=1.5, bleu=13.84, exact_match=0.025),
            "perplexity 1.500;  greedy on the first 2 of 9 sentences: "
            "BLEU 13.8  exact match 2.5%",
        ),
        # No metric is named: a line has those that there are, one's own too.
        (
            dict(perplexity=1.5, exact_match=0.5, accuracy=0.75, ter=12.0),
            "perplexity 1.500;  greedy on the first 2 of 9 sentences: "
            "exact match 50.0%  accuracy 75.0%  TER 12.0%",
        ),
    ],
)
def test_a_validation_line_has_all_scores_and_how_they_were_made(
    tmp_path, scores, shown
):
    said = []
    how = search_text(tiny.resolve(), beam=1, count=2, whole=9)

    class TER(Metric):
        key = "ter"
        heading = "TER, %"

    log = Log(
        RunDir(tmp_path),
        lambda: 0.0,
        said.append,
        metrics=(*METRICS, TER()),
        scored=how,
    )
    log.validation(7, scores)
    assert said == [f"step      7  validation: {shown}"]


def test_how_texts_were_made():
    translating = tiny.resolve()
    assert search_text(translating, 4, 500, 500) == "beam 4 on 500 sentences"
    assert search_text(translating, 1, 12, 12) == "greedy on 12 sentences"
    corpus = f"{own_parts.PLACE}:Labels"
    labels = resolve(
        {"model": {"kind": "language"}, "data": {"corpus": corpus, "max_length": 40}}
    )
    assert search_text(labels, 4, 2, 9) == "on the first 2 of 9 sentences"


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
