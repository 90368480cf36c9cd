"""launch.bar as a person types it: base, an own class from outside, kills, and checks of logs."""

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.bar import logs
from experiments.system import checksums, code
from experiments.system.files import write_json
from tests.calls import call
from tests.end_to_end.test_commands import ENVIRONMENT, ROOT
from tests.experiments import own_parts
from tests.experiments.bar import fakes

pytestmark = pytest.mark.filterwarnings("ignore:.*load_module:DeprecationWarning")


def command(*arguments):
    words = ["--workers=1", *map(str, arguments)]
    return [sys.executable, "-m", "tests.end_to_end.tiny_bar", *words]


def environment(entries):
    return {**ENVIRONMENT, "BAR_ENTRIES": str(entries)}


def bar(entries, *arguments):
    return subprocess.run(
        command(*arguments),
        cwd=ROOT,
        env=environment(entries),
        capture_output=True,
        text=True,
    )


@pytest.mark.ci
def test_base_is_entered_and_a_forgery_of_it_doubted(tmp_path):
    entries, workdir = tmp_path / "entries", tmp_path / "base"
    entries.mkdir()
    (entries / "README.md").write_text("<!-- entries: small -->\n<!-- / -->\n")
    done = bar(entries, f"--workdir={workdir}")
    assert (done.returncode, done.stderr) == (0, "")
    assert "base is the first entry" in done.stdout
    done = bar(entries, f"--enter={workdir / 'log'}")
    assert (done.returncode, done.stderr) == (0, "")
    with (entries / "small" / "base" / "runs.csv").open() as file:
        runs = list(csv.DictReader(file))
    assert len(runs) == 2 * 2 * 2
    assert {run["task"] for run in runs} == {"recall", "copy"}
    assert all(float(run["seconds"]) > 0 for run in runs)
    assert "| **base** | 50 |" in (entries / "README.md").read_text()
    assert (entries / "small.html").exists()

    forged = workdir / "log"
    with (forged / "runs.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, runs[0], lineterminator="\n")
        table.writeheader()
        table.writerows(line | {"value": "0.99"} for line in runs)
    checksums.write_checksums(forged, ["entry.json", "runs.csv"])
    # Where base was trained nothing is left to train.
    done = bar(entries, f"--verify={forged}", f"--workdir={workdir}")
    assert done.returncode == 0
    assert done.stdout.count("99.000 in the log") == 2
    # Of two tasks with two seeds p is 1 / 9 at least, and no run is doubted.
    assert "0 of 2 runs came out the same; the others are like" in done.stdout


@pytest.mark.ci
def test_an_own_class_is_killed_goes_on_and_is_judged(tmp_path):
    entries = tmp_path / "entries"
    base = fakes.log("base", seeds=16)
    logs.write(entries / "small" / "base", base.about, base.runs, {})
    source = tmp_path / "mine.py"
    source.write_text(Path(own_parts.__file__).read_text())
    arguments = (f"{source}:Distance", "--name=mine", f"--workdir={tmp_path / 'run'}")
    # A group of its own, so that the workers are killed too.
    process = subprocess.Popen(
        command(*arguments),
        cwd=ROOT,
        env=environment(entries),
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.time() + 240
    while not list((tmp_path / "run").glob("trials/*/result.json")):
        assert time.time() < deadline
        assert process.poll() is None
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "run" / "log").exists()
    done = bar(entries, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert "against base: wins" in done.stdout
    assert (tmp_path / "run" / "log" / "mine.py").read_bytes() == source.read_bytes()
    # Its source, from wherever it was, is not needed any more.
    source.unlink()
    checked = tmp_path / "run" / "log"
    done = bar(entries, f"--verify={checked}", f"--workdir={tmp_path / 'again'}")
    assert (done.returncode, done.stderr) == (0, "")
    assert "every run came out the same" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["d_ff=3", "--workdir=x"], "d_ff is nothing that an entry may change"),
        (["score=cosine", "--workdir=x"], "must be one of dot"),
        (["h=2"], "--workdir=DIR is needed"),
        (["h=2", "--workdir=x", "--join"], "launch.sweep --join"),
        (["h=2", "--workdir=x", "--verify=nowhere"], "--verify has what its log says"),
        (["--workdir=x", "--verify=nowhere"], "holds no entry.json"),
        (["--enter=nowhere"], "holds no entry.json"),
        (["--enter=nowhere", "--name=x"], "run the entry again with another --name"),
        (["normalizer=relu", "--workdir=x"], "did you mean normaliser"),
        (
            ["training.steps=9", "--workdir=x"],
            "training.steps is nothing that an entry",
        ),
        (["h=2", "--workdir=x", "--size=device"], "--enter=runs/base/log"),
    ],
)
def test_mistakes_are_told_in_a_line(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = call("bar", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "x").exists()


def test_the_workdir_of_another_entry_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "FOLDER", tmp_path)
    base = fakes.log("base")
    logs.write(tmp_path / "small" / "base", base.about, base.runs, {})
    begun = {"size": "small", "changes": {"positions": "alibi"}, "code": code.now()}
    for changes, words in (
        ({"positions": "alibi"}, "another entry's, positions=alibi"),
        ({"h": 2}, "of another version of the code"),
    ):
        begun |= {"changes": changes, "code": "other" if "h" in changes else code.now()}
        write_json(tmp_path / "run" / "bar.json", begun)
        done = call("bar", "h=2", f"--workdir={tmp_path / 'run'}")
        assert done.returncode == 2
        assert f"is {words}" in done.stderr
    done = call("bar", "h=2", "--name=base", f"--workdir={tmp_path / 'new'}")
    assert done.returncode == 2
    assert "--name=base: an entry has it" in done.stderr
