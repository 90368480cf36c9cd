"""A trial's directory: what is damaged in it is written again, left out, or named."""

import json
import shutil

import pytest

from experiments.errors import WorkdirError
from experiments.system import code
from experiments.system.files import DamagedError, write_bytes
from experiments.training.run_dir import RunDir, read_result
from tests.experiments import tiny

LINES = [
    dict(step=4, split="train", loss=2.5, tokens_per_second=9.0, seconds=1.5),
    dict(step=6, split="validation", perplexity=3.5, seconds=2.5),
]


@pytest.fixture
def trial(tmp_path):
    """A trial that has begun and logged, and what it says."""
    said = []
    run_dir = RunDir(tmp_path / "trial", said.append)
    settings = tiny.resolve()
    run_dir.open(settings)
    run_dir.describe("trial", {}, settings, tiny.corpus(), 48, None)
    for line in LINES:
        run_dir.append_metrics(line)
    return run_dir, said


HARMS = {
    "deleted": lambda path, text: path.unlink(),
    "a digit": lambda path, text: path.write_text(text.replace("2.5", "2.4", 1)),
    "a line": lambda path, text: path.write_text(text.splitlines(True)[1]),
    "zeroed": lambda path, text: path.write_bytes(bytes(len(text))),
    "no text": lambda path, text: path.write_bytes(b"\xff" + text.encode()),
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_metrics_that_were_lost_are_named_and_written_again(trial, harm):
    run_dir, said = trial
    path = run_dir.path / "metrics.jsonl"
    logged = run_dir.logged()
    harm(path, path.read_text())
    clock = run_dir.resume(logged)
    (line,) = said
    assert f"{path} is damaged" in line and "\n" not in line
    assert [json.loads(row) for row in path.read_bytes().splitlines()] == LINES
    assert run_dir.metrics("validation") == LINES[1:] and run_dir.speed() == 9.0
    assert run_dir.perplexities() == {6: 3.5} and clock() >= 2.5


def test_lines_after_a_checkpoint_are_nothing_to_speak_of(trial):
    """A killed run may have logged more steps, and a part of a line."""
    run_dir, said = trial
    logged = run_dir.logged()
    run_dir.append_metrics(dict(LINES[0], step=8))
    with open(run_dir.path / "metrics.jsonl", "a") as file:
        file.write('{"step": 10, "spl')
    run_dir.resume(logged)
    assert run_dir.metrics() == LINES and said == []


@pytest.mark.parametrize("harm", ["missing", "damaged"])
def test_a_vocabulary_that_was_lost_is_written_again(trial, harm):
    run_dir, said = trial
    path = run_dir.path / "vocabulary.model"
    expected = path.read_bytes()
    path.write_bytes(expected[:-1] + b"x")
    if harm == "missing":
        path.unlink()
    run_dir.describe("trial", {}, tiny.resolve(), tiny.corpus(), 48, None)
    assert path.read_bytes() == expected
    assert len(said) == 1 and f"{path} is {harm}" in said[0]


def describe(run_dir, goes_on):
    settings = tiny.resolve()
    run_dir.describe("trial", {}, settings, tiny.corpus(), 48, None, goes_on)
    return json.loads((run_dir.path / "record.json").read_text())["code"]


def test_a_trial_that_other_code_goes_on_with_is_of_both(trial, monkeypatch):
    run_dir, said = trial
    first = describe(run_dir, goes_on=True)
    assert first == code.now() and said == []
    monkeypatch.setattr(code, "now", lambda: "another")
    for _ in range(2):
        assert describe(run_dir, goes_on=True) == f"{first} another"
    assert len(said) == 1 and "was begun by other code" in said[0]
    # Back with the first: it is neither's alone.
    monkeypatch.setattr(code, "now", lambda: first)
    assert describe(run_dir, goes_on=True) == f"{first} another {first}"


def test_a_trial_that_begins_anew_is_of_the_code_that_begins_it(trial, monkeypatch):
    run_dir, said = trial
    monkeypatch.setattr(code, "now", lambda: "another")
    assert describe(run_dir, goes_on=False) == "another" and said == []


def test_a_record_that_was_changed_is_named(trial):
    run_dir, _ = trial
    run_dir.check_data(tiny.corpus())
    path = run_dir.path / "record.json"
    path.write_text(path.read_text().replace('"length": 48', '"length": 49'))
    with pytest.raises(DamagedError, match=r"record\.json is damaged"):
        run_dir.check_data(tiny.corpus())


@pytest.fixture
def ended(trial):
    run_dir, said = trial
    run_dir.write_text("translations.txt", "eins\n")
    run_dir.finish(dict(status="finished", perplexity=1.5))
    return run_dir, said


def test_files_of_an_ended_trial_that_were_changed_are_named(ended):
    run_dir, said = ended
    settings = tiny.resolve()
    assert run_dir.open(settings)["perplexity"] == 1.5 and said == []
    for name in ("vocabulary.model", "metrics.jsonl", "translations.txt"):
        write_bytes(run_dir.path / name, b"other")
    assert run_dir.open(settings)["perplexity"] == 1.5
    (line,) = said
    assert "metrics.jsonl, translations.txt, vocabulary.model changed" in line


def test_a_result_that_was_changed_is_refused(ended, tmp_path):
    run_dir, _ = ended
    path = run_dir.path / "result.json"
    path.write_text(path.read_text().replace("1.5", "1.4"))
    with pytest.raises(DamagedError, match=r"result\.json is damaged .* remove it"):
        run_dir.open(tiny.resolve())
    path.unlink()
    assert read_result(run_dir.path) is None


def test_a_config_that_is_a_directory_is_one_line(trial, tmp_path):
    run_dir, _ = trial
    shutil.move(run_dir.path / "config.json", tmp_path / "config")
    (run_dir.path / "config.json").mkdir()
    with pytest.raises(DamagedError, match="it is a directory"):
        run_dir.open(tiny.resolve())
    (run_dir.path / "config.json").rmdir()
    shutil.copy(tmp_path / "config", run_dir.path / "config.json")
    with pytest.raises(WorkdirError, match="belongs to another config"):
        run_dir.open(tiny.resolve(seed=1))


def test_what_a_killed_writer_left_is_removed(trial):
    run_dir, _ = trial
    names = (
        ".examples.json.16790",
        ".result.json.7",
        ".own.json.7",
        ".metrics.jsonl.x",
    )
    for name in names:
        (run_dir.path / name).write_text("")
    run_dir.open(tiny.resolve())
    actual = {path.name for path in run_dir.path.glob(".*")}
    assert actual == {".own.json.7", ".metrics.jsonl.x"}


def test_another_config_names_what_differs_and_what_to_do(tmp_path):
    RunDir(tmp_path).open(tiny.resolve())
    with pytest.raises(WorkdirError) as refused:
        RunDir(tmp_path).open(tiny.resolve(training__batch_size=40))
    assert "training.batch_size is 4, asked for 40" in str(refused.value)
    assert f"another --workdir, where --resume={tmp_path} goes on" in str(refused.value)
