"""Logs: what is written is read, what has changed since is refused."""

import math
from pathlib import Path

import pytest

from experiments.bar import entry, logs, rules, verify
from experiments.bar.logs import LogError, Run
from experiments.sweep.plan import plan_trials
from tests.experiments import own_parts
from tests.experiments.bar import fakes

pytestmark = pytest.mark.quick


@pytest.fixture
def written(tmp_path):
    directory = tmp_path / "log"
    made = fakes.runs(seeds=4)
    logs.write(directory, fakes.about("alibi", {"positions": "alibi"}), made, {})
    return directory


def test_a_log_is_read_as_it_was_written(written):
    log = logs.read(written)
    assert sorted(log.runs) == sorted(fakes.runs(seeds=4))
    assert log.name == "alibi"
    assert log.tasks == rules.tasks_of("small")


@pytest.mark.parametrize("name", [logs.ABOUT, logs.RUNS])
def test_a_changed_file_is_named(written, name):
    with (written / name).open("a") as file:
        file.write(" \n")
    with pytest.raises(LogError, match=f"{name} is not what was written"):
        logs.read(written)


def test_checksums_that_are_gone_do_not_make_a_log(written):
    text = (written / "checksums.json").read_text()
    (written / "checksums.json").write_text(text.replace("sha256", "sha"))
    with pytest.raises(LogError, match="is not what was written"):
        logs.read(written)
    (written / "checksums.json").unlink()
    with pytest.raises(LogError, match=r"checksums\.json is not what was written"):
        logs.read(written)


def test_the_workdir_in_place_of_its_log_is_told(written):
    with pytest.raises(LogError, match=f"holds no entry.json.*; give {written}"):
        logs.read(written.parent)


def test_no_log_and_one_of_other_rules_are_named(tmp_path):
    with pytest.raises(LogError, match=r"holds no entry\.json"):
        logs.read(tmp_path)
    about = fakes.about("old", {}) | {"rules": rules.VERSION - 1}
    logs.write(tmp_path / "old", about, fakes.runs(), {})
    with pytest.raises(LogError, match="enter it again"):
        logs.read(tmp_path / "old")


def test_the_run_of_the_best_rate_on_validation_counts():
    runs = [
        Run("copy", 0, 0.001, 2.0, 0.9, 1.0),
        Run("copy", 0, 0.003, 1.5, 0.4, 1.0),
        Run("copy", 1, 0.001, math.inf, math.nan, 1.0),
        Run("copy", 1, 0.003, math.inf, math.nan, 1.0),
        Run("characters", 0, 0.001, 2.0, 1.3, 1.0),
    ]
    tasks = rules.tasks_of("small")
    values = logs.values_of(runs, tasks)
    assert values["copy"] == {0: 0.4, 1: -math.inf}
    assert values["characters"] == {0: -1.3}


def test_a_rate_whose_validation_is_no_number_is_not_chosen(tmp_path, monkeypatch):
    """NaN is not above another perplexity, and so no run would be better."""
    (task, *_) = rules.tasks_of("small")
    points = entry.points("small", {"positions": "alibi"}, [0], [task.name])
    trials = plan_trials(rules.get_config("small"), points)
    found = dict(zip((t.directory for t in trials), (math.nan, 2.0, 3.0), strict=True))

    def read(directory):
        perplexity = found[str(directory.relative_to(tmp_path))]
        return dict(status="finished", perplexity=perplexity, accuracy=0.5)

    monkeypatch.setattr(logs, "read_result", read)
    runs = logs.runs_of(tmp_path, trials, "small")
    assert logs.chosen(runs)[task.name][0].validation == 2.0


def test_a_run_that_diverged_is_kept(tmp_path):
    diverged = Run("copy", 0, 0.001, math.inf, math.nan, 1.0)
    logs.write(tmp_path, fakes.about("x", {}), [diverged], {})
    (read,) = logs.read(tmp_path).runs
    assert read.validation == math.inf
    assert math.isnan(read.value)


def test_base_comes_first_then_the_oldest(tmp_path):
    for name, date in (
        ("late", "2026-12-02"),
        ("base", "2026-12-03"),
        ("early", "2026-12-01"),
    ):
        log = fakes.log(name, date=date)
        logs.write(tmp_path / "small" / name, log.about, log.runs, {})
    assert [log.name for log in logs.read_all("small", tmp_path)] == [
        "base",
        "early",
        "late",
    ]


def test_an_entry_is_copied_once(written, tmp_path):
    log = logs.read(written)
    place = logs.copy(log, tmp_path / "entries")
    assert logs.read(place).runs == log.runs
    with pytest.raises(LogError, match="another --name"):
        logs.copy(log, tmp_path / "entries")


def test_classes_of_ones_own_are_kept_and_found_again(tmp_path):
    source = tmp_path / "mine" / "my_heads.py"
    source.parent.mkdir()
    source.write_text(Path(own_parts.__file__).read_text())
    changes = entry.read_changes([f"{source}:Heads"])
    record = dict.fromkeys(("device", "versions", "python", "git", "code"), "")
    about = logs.describe("mine", "small", changes, record)
    assert about["changes"]["heads"].startswith("my_heads.py:Heads@")
    logs.write(tmp_path / "log", about, fakes.runs(), changes)
    source.unlink()
    found = logs.changes_of(logs.read(tmp_path / "log"))
    kept = tmp_path / "log" / "my_heads.py"
    place = found["heads"]
    assert place.startswith(f"{tmp_path / 'log' / 'my_heads.py'}:Heads@")
    assert entry.read_changes([place]) == {"heads": place}
    kept.unlink()
    with pytest.raises(LogError, match=r"my_heads\.py is not what was written"):
        logs.read(tmp_path / "log")


def test_a_log_with_the_same_runs_again_is_the_same():
    log = fakes.log("x")
    again = [runs[0] for runs in log.chosen().values()]
    lines, agrees = verify.compare(log, again)
    assert agrees
    assert lines[-1] == "every run came out the same"
    assert lines[0].endswith(": the same")


def test_other_runs_of_the_same_distribution_are_like_the_log():
    log = fakes.log("x")
    again = [runs[0] for runs in fakes.log("x", seed=4).chosen().values()]
    lines, agrees = verify.compare(log, again)
    assert agrees
    assert "0 of 7 runs came out the same; the others are like" in lines[-1]


@pytest.mark.parametrize("better", [-3.0, 3.0])
def test_numbers_that_nobody_gets_again_are_doubted(better):
    log = fakes.log("x", better=better)
    again = [runs[0] for runs in fakes.log("x", seed=4).chosen().values()]
    lines, agrees = verify.compare(log, again)
    assert not agrees
    assert "are NOT like" in lines[-1]


def test_a_run_that_diverges_again_is_the_same():
    log = fakes.log("x")
    diverged = [
        run._replace(validation=math.inf, value=math.nan) if run.task == "copy" else run
        for run in log.runs
    ]
    log = log._replace(runs=tuple(diverged))
    again = [runs[0] for runs in log.chosen().values()]
    _, agrees = verify.compare(log, again)
    assert agrees
    better = [run._replace(value=0.5) if run.task == "copy" else run for run in again]
    lines, _ = verify.compare(log, better)
    assert "6 of 7 runs came out the same" in lines[-1]


def test_other_parameters_than_the_log_says_are_refused():
    log = fakes.log("alibi")
    with pytest.raises(LogError, match="its parameters are"):
        verify.check_parameters(log, {"positions": "alibi"})
    counted = entry.parameters("small", {"positions": "alibi"})
    log = log._replace(about={**log.about, "parameters": counted})
    verify.check_parameters(log, {"positions": "alibi"})
