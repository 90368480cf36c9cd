"""The comparison that tests/faults.py rests on, and its quick form."""

import json
import random
import sys

import pytest

from tests import faults


def workdir(path, **changed):
    """A sweep's directory of one trial; `changed` is {file: text}."""
    files = {"result.json": json.dumps(dict(bleu=3.5, seconds=1.5)), "config.json": "{}", "sentences.npz": "x",
             "metrics.jsonl": '{"step": 4, "seconds": 9.5}\n', "translations.txt": "ein Hund\n",
             "vocabulary.model": "v"}
    (path / "trials/a").mkdir(parents=True)
    (path / "sweep.json").write_text(json.dumps(dict(trials=[dict(directory="trials/a", point={})])))
    for name, text in (files | changed).items():
        (path / "trials/a" / name).write_text(text)
    return path


@pytest.mark.parametrize(("name", "text"), [
    ("result.json", '{"bleu": 3.5000001, "seconds": 1.5}'), ("translations.txt", "ein Hund \n"),
    ("metrics.jsonl", '{"step": 5, "seconds": 9.5}\n'), ("metrics.jsonl", 2 * '{"step": 4, "seconds": 9.5}\n'),
    ("vocabulary.model", "w")])
def test_every_difference_is_seen(tmp_path, name, text):
    one, other = workdir(tmp_path / "one"), workdir(tmp_path / "other", **{name: text})
    (found,) = faults.differences(one, other)
    assert found.startswith(f"trials/a/{name}")


def test_times_are_no_difference(tmp_path):
    one = workdir(tmp_path / "one")
    assert faults.differences(one, workdir(tmp_path / "b", **{"result.json": '{"bleu": 3.5, "seconds": 7}'})) == []
    (one / "sweep.json").write_text(json.dumps(dict(trials=[])))
    assert faults.differences(one, tmp_path / "b") == ["sweep.json: {'trials/a'}"]


@pytest.mark.ci
def test_a_sweep_killed_at_random_ends_the_same(tmp_path):
    command = [sys.executable, "-m", "launch.sweep", "--config=tests/experiments/tiny_config.py", "--sweep=seed"]
    assert faults.compare(command, tmp_path, 3, random.Random(1)) == []
