"""The benchmarks of the runner itself."""

import io
import json
from pathlib import Path

import pytest
import rich.console

from experiments.sweep.plan import plan_trials
from experiments.sweep.points import expand, sweeps_of
from launch.bench.growth import command as growth
from launch.bench.growth import curves
from launch.bench.growth.curve import Curve
from launch.bench.harness.exponent import exponent
from launch.bench.harness.libraries import BenchError
from launch.bench.runner import overhead, sweeps
from launch.bench.table1 import kinds, measures
from tests.experiments import tiny, tiny_config
from tests.launch.toy_curves import level, squared


def planned():
    points = expand(sweeps_of(tiny_config), ["heads", "seed"])
    return plan_trials(tiny_config.get_config(), points)


def test_ways_do_the_same_trials(tmp_path, monkeypatch):
    """Looks for every trial where its way puts it, without running the commands."""
    called = []

    def call(words, cache):
        called.append(words)
        workdir = Path(words[-1].removeprefix("--workdir="))
        for trial in planned():
            place = workdir / trial.directory if words[0] == "launch.sweep" else workdir
            place.mkdir(parents=True, exist_ok=True)
            result = dict(
                status="finished",
                perplexity=2.0
                + trial.settings.seed
                + 0.002 * (words[0] == "launch.train"),
            )
            if words[0] == "launch.sweep" or str(workdir).endswith(trial.directory):
                (place / "result.json").write_text(json.dumps(result))

    monkeypatch.setattr(sweeps, "_call", call)
    console = rich.console.Console(file=io.StringIO())
    table, results = sweeps.time_ways(
        ["--config=c.py:tiny"],
        "heads,seed",
        ["--only=h"],
        planned(),
        ["lanes=2", "cold"],
        tmp_path,
        console,
    )
    assert [words[0] for words in called] == ["launch.sweep"] + 4 * ["launch.train"]
    assert called[0][1:5] == [
        "--config=c.py:tiny",
        "--sweep=heads,seed",
        "--only=h",
        "--lanes=2",
    ]
    assert called[4][1:5] == [
        "--config=c.py:tiny",
        "--config.model.h=2",
        "--config.model.d_k=8",
        "--config.seed=1",
    ]
    assert len(json.loads(results.read_text())["ways"]["cold"]["perplexities"]) == 4
    assert "1.0e-03" in table.read_text() and "0.0e+00" in table.read_text()
    with pytest.raises(
        BenchError,
        match="unknown way 'lanes=x'; known: sweep, one-by-one, cold, workers=N, lanes=N",
    ):
        sweeps.time_ways([], "heads", [], planned(), ["lanes=x"], tmp_path, console)


def test_a_trial_that_does_not_finish_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(sweeps, "_call", lambda words, cache: None)
    with pytest.raises(
        BenchError, match=r"sweep: h=1 d_k=16 seed=0, .* did not finish"
    ):
        sweeps.time_ways(
            [],
            "heads",
            [],
            planned(),
            ["sweep"],
            tmp_path,
            rich.console.Console(file=io.StringIO()),
        )


def test_overhead_is_relative_to_the_bare_step():
    rows = overhead.table(
        {"bare step": [0.02, 0.01, 0.03], "runner": [0.021, 0.5, 0.011]}
    ).rows
    assert [row[1:] for row in rows] == [
        ("20.0", "10.0", "+0.0%"),
        ("21.0", "11.0", "+5.0%"),
    ]


def test_saves_between_lines_are_counted():
    settings = tiny.resolve(
        training__steps=100, training__log_every=5, training__save_every=5
    )
    assert overhead.saving(settings, 1).training.save_every == 100
    often = overhead.saving(settings, 8)
    assert often.training.save_every == 15  # at 15, 30, 45, 60, 75, 90
    assert [overhead.saves_within(often, steps) for steps in (90, 85, 84, 10, 9)] == [
        6,
        6,
        5,
        1,
        0,
    ]
    assert overhead.saves_within(overhead.saving(settings, 1), 90) == 0
    assert overhead.table_of_saves([0.3, 0.6, 0.9]).rows == [
        ("save", "600", "900", "1.00%")
    ]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("kind", "trips", "paths"),
    list(
        zip(
            kinds.KINDS,
            [(1, 1), (1, 1), (16, 32), (1, 1), (1, 1)],
            [(1, 1), (1, 2), (16, 32), (15, 31), (15, 31)],
            strict=True,
        )
    ),
)
def test_sequential_operations_and_paths_are_the_papers(kind, trips, paths):
    assert tuple(measures.sequential(kind, n) for n in (16, 32)) == trips
    assert tuple(measures.path(kind, n) for n in (16, 32)) == paths


def test_exponents():
    slope, error = exponent({2: 12.0, 4: 48.0, 8: 192.0})
    assert (slope, error) == (pytest.approx(2), pytest.approx(0, abs=1e-9))
    slope, error = exponent({1: 1.0, 2: 4.0, 4: 4.0})
    assert slope == pytest.approx(1) and error == pytest.approx((2 / 3) ** 0.5 / 2**0.5)


def test_growth_has_the_slopes_of_its_curves(tmp_path):
    console = rich.console.Console(file=io.StringIO(), width=140)
    known = [
        Curve("squared", "tokens", (10, 20, 40), squared),
        Curve("level", "devices", (1, 2), level),
    ]
    table, results, image = growth.measure_curves(known, 2, tmp_path, console)
    assert (
        "| squared | 10 to 40 tokens | 0.1 to 1.6 | 2.00 ± 0.00 | 10.0 to 40.0 | 1.00 ± 0.00 |"
        in table.read_text()
    )
    assert "| level | 1 to 2 devices | 2.0 to 2.0 | 0.00 ± 0.00 |" in table.read_text()
    first, second = json.loads(results.read_text())["curves"]
    assert first["sizes"]["20"] == 2 * [{"seconds": 0.4, "bytes": 20 * 2**20}]
    assert second["axis"] == "devices"
    assert image.read_bytes().startswith(b"\x89PNG")


def test_growth_judges_whole_tables_and_plans_every_trial(monkeypatch):
    """A part that does nothing would look fast."""
    made = []
    monkeypatch.setattr(curves, "_called", lambda function: made.append(function()))
    curves.measure_verdicts(20)
    curves.measure_plan(7)
    rows, trials = made
    assert len(rows) == 20 // curves.SEEDS
    assert all(
        row.differences.keys() == {"perplexity", "bleu", "chrf"} for row in rows[1:]
    )
    assert [trial.settings.seed for trial in trials] == list(range(7))
