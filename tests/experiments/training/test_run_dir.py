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
BAD = {
    "a number": b"12",
    "null": b"null",
    "a list": b"[]",
    "another object": b'{"a": 1}',
    "no text": b"\xff",
    "a flipped name": b'{"stfp": 4, "split": "train", "seconds": 1.0}',
    "a cut line": b'{"step": 4, "spl',
    "no seconds": b'{"step": 6, "split": "validation"}',
    "a text for a number": b'{"step": 3, "split": "validation", "seconds": "x"}',
    "nesting": b"[" * 100_000,
}


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


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_bad_line_of_metrics_is_left_out_and_named(trial, bad, place):
    run_dir, said = trial
    path = run_dir.path / "metrics.jsonl"
    logged = run_dir.logged(6)
    rows = path.read_bytes().splitlines()
    rows.insert(place, bad)
    path.write_bytes(b"\n".join(rows) + b"\n")
    clock = run_dir.resume(6, logged)
    assert run_dir.metrics() == LINES and clock() >= 2.5
    assert [json.loads(row) for row in path.read_bytes().splitlines()] == LINES
    assert run_dir.last("validation")["seconds"] == 2.5 and run_dir.speed() == 9.0
    (line,) = said
    assert f"{path} is damaged" in line and "\n" not in line


@pytest.mark.parametrize("harm", ["deleted", "digit", "line", "directory", "zeroed"])
def test_lines_of_metrics_that_are_lost_are_named(trial, harm):
    run_dir, said = trial
    path = run_dir.path / "metrics.jsonl"
    logged = run_dir.logged(6)
    text = path.read_text()
    if harm == "digit":
        path.write_text(text.replace("2.5", "2.4", 1))
    elif harm == "line":
        path.write_text(text.splitlines(keepends=True)[1])
    elif harm == "zeroed":
        path.write_bytes(bytes(len(text)))
    else:
        path.unlink()
        if harm == "directory":
            path.mkdir()
    run_dir.resume(6, logged)
    (line,) = said
    assert f"{path} is damaged" in line and "\n" not in line
    run_dir.append_metrics(LINES[0])
    run_dir.resume(6, run_dir.logged(6))
    assert len(said) == 1


def test_a_line_that_a_kill_cut_off_is_nothing_to_speak_of(trial):
    run_dir, said = trial
    logged = run_dir.logged(6)
    with open(run_dir.path / "metrics.jsonl", "a") as file:
        file.write('{"step": 8, "spl')
    run_dir.resume(6, logged)
    assert run_dir.metrics() == LINES and said == []


@pytest.mark.parametrize("harm", ["missing", "damaged", "directory"])
def test_a_vocabulary_that_was_lost_is_written_again(trial, harm):
    run_dir, said = trial
    path = run_dir.path / "vocabulary.model"
    expected = path.read_bytes()
    if harm == "damaged":
        path.write_bytes(expected[:-1] + b"x")
    else:
        path.unlink()
        if harm == "directory":
            path.mkdir()
    run_dir.describe("trial", {}, tiny.resolve(), tiny.corpus(), 48, None)
    assert path.read_bytes() == expected
    assert len(said) == 1 and f"{path} is" in said[0]


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


def test_the_vocabulary_of_an_earlier_versions_trial_is_named(ended):
    run_dir, said = ended
    (run_dir.path / "checksums.json").unlink()
    assert run_dir.open(tiny.resolve()) and said == []
    (run_dir.path / "vocabulary.model").unlink()
    assert run_dir.open(tiny.resolve()) and "vocabulary.model changed" in said[0]


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


@pytest.mark.parametrize(
    ("changes", "can_resume"),
    [
        (dict(training__steps=40), True),
        (dict(training__learning_rate=0.5, evaluation__beam=2), True),
        (dict(training__steps=4), False),
        (dict(training__batch_size=8), False),
        (dict(seed=1), False),
        (dict(model__h=1), False),
    ],
)
def test_another_config_names_resume_where_that_goes_on(tmp_path, changes, can_resume):
    RunDir(tmp_path).open(tiny.resolve(training__clip=2))
    with pytest.raises(WorkdirError, match="belongs to another config") as refused:
        RunDir(tmp_path).open(tiny.resolve(**dict(training__clip=2) | changes))
    assert (f"--resume={tmp_path}" in str(refused.value)) == can_resume
