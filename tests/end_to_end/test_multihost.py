"""One trial on several processes: the numbers of one process, whatever becomes of any of them."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.system.signals import LINE, STATUS
from experiments.training.checkpoints import Checkpoints
from tests.end_to_end import faults

ROOT = Path(__file__).parents[2]
CONFIG = f"--config={ROOT}/tests/experiments/tiny_config.py"
WHOLE = ["-m", "launch.train"]
CHANGED = (
    "import runpy; from experiments.training import {name}; {name}.{constant}; "
    "runpy.run_module('launch.train', run_name='__main__', alter_sys=True)"
)
# A corpus that does not stay on the devices.
STREAMED = ["-c", CHANGED.format(name="device_data", constant="RESIDENT = 0")]
# Heartbeats that may stay out for seconds.
IMPATIENT = ["-c", CHANGED.format(name="supervisor", constant="HEARTBEAT = 8")]
PATIENCE = 300
SOON = 40
"""Seconds after an accident."""


class Party:
    """Processes of one trial, of one device each.

    `own` are flags of some of them, and `places` their working directories.
    """

    def __init__(
        self, workdir, *arguments, program=WHOLE, own=None, places=(ROOT,) * 2
    ):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        # The first alone may look at the directory of the trial.
        directories = [workdir, workdir.with_name("elsewhere")]
        self.processes = []
        for i, (directory, place) in enumerate(zip(directories, places, strict=True)):
            flags = [f"--hosts=localhost:{port},{i}/2", f"--workdir={directory}"]
            flags += (own or {}).get(i, ())
            process = subprocess.Popen(
                [sys.executable, *program, CONFIG, *arguments, *flags],
                text=True,
                env=environment(1) | {"PYTHONPATH": str(ROOT)},
                cwd=place,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            self.processes.append(process)

    def end(self):
        """(status, stderr) of each."""
        said = [process.communicate(timeout=PATIENCE)[1] for process in self.processes]
        statuses = [process.returncode for process in self.processes]
        return list(zip(statuses, said, strict=True))

    def tell(self, i, number):
        """Signals one, and the child that it has, as a scheduler does."""
        os.killpg(self.processes[i].pid, number)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for i, process in enumerate(self.processes):
            with contextlib.suppress(ProcessLookupError):
                self.tell(i, signal.SIGKILL)
            process.communicate()


def environment(devices):
    return dict(os.environ, NPROC="32", JAX_NUM_CPU_DEVICES=str(devices))


def alone(workdir, *arguments, devices=2):
    command = [sys.executable, "-m", "launch.train", CONFIG, *arguments]
    done = subprocess.run(
        [*command, f"--workdir={workdir}"],
        text=True,
        capture_output=True,
        env=environment(devices),
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr


def wait_for_saves(workdir):
    """Until there is one more checkpoint, and the run goes on."""

    def newest():
        names = [path.name for path in workdir.glob("checkpoints/*")]
        return max(map(int, filter(str.isdigit, names)), default=0)

    before = newest()
    end = time.monotonic() + PATIENCE
    while newest() <= before:
        assert time.monotonic() < end
        time.sleep(0.05)


SHORT = (
    "--config.training.ema=0.9",
    "--config.training.average=2",
    "--config.training.keep_best=True",
)


@pytest.mark.ci
def test_two_processes_are_one_of_two_devices(tmp_path):
    """By shard_map, and of a corpus that is streamed; the next test has neither."""
    arguments = [*SHORT, "--config.training.strategy=shard_map"]
    with Party(tmp_path / "two", *arguments, program=STREAMED) as party:
        assert party.end() == [(0, ""), (0, "")]
    alone(tmp_path / "one", *arguments)
    assert faults.differences_of_trials(tmp_path / "one", tmp_path / "two") == []
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.ci
def test_whatever_ends_one_of_them_the_trial_ends_the_same(tmp_path):
    """Told to stop; lost, by its end and by its silence. The rest is trained by one process."""
    workdir = tmp_path / "two"
    trial = [*faults.TRIAL, "--config.training.steps=600"]
    with Party(workdir, *trial) as party:
        wait_for_saves(workdir)
        party.tell(1, signal.SIGTERM)
        assert party.end() == [(STATUS, f"{LINE}\n")] * 2
    with Checkpoints(workdir, None) as checkpoints:
        noted = [checkpoints.noted(step) for step in checkpoints.steps()]
    # The step at which they were stopped is none that a checkpoint is scheduled for.
    assert not all(notes["scheduled"] for notes in noted)
    with Party(workdir, *trial) as party:
        wait_for_saves(workdir)
        party.tell(0, signal.SIGKILL)
        status, said = party.end()[1]
        assert status == STATUS
        assert_is_loss(said, "a process of this trial was lost")
    with Party(workdir, *trial, program=IMPATIENT) as party:
        wait_for_saves(workdir)
        party.tell(1, signal.SIGSTOP)
        first, _ = party.processes
        first.wait(timeout=SOON)
        party.tell(1, signal.SIGCONT)
        (status, said), (status_of_stopped, _) = party.end()
        assert status == status_of_stopped == STATUS
        assert_is_loss(said, "process 1 of this trial was silent for 8 s")
    alone(workdir, *trial)
    alone(tmp_path / "one", *trial)
    assert faults.differences_of_trials(tmp_path / "one", workdir) == []


def assert_is_loss(said, begin):
    *before, last = said.splitlines()
    # Who was lost in an earlier round may have left a checkpoint half written.
    assert all("was not written to its end" in line for line in before)
    assert last.startswith(f"error: {begin}")
    assert last.endswith("; start all again: they go on from the newest checkpoint")


@pytest.mark.ci
@pytest.mark.parametrize(
    ("own", "first", "second"),
    [
        (
            {1: ["--config.seed=3"]},
            *["process 1 has another config than the first"] * 2,
        ),
        (
            {0: ["--resume=x"]},
            "x holds no trained model",
            "process 0 of this trial failed",
        ),
    ],
)
def test_a_mistake_ends_all_of_them_in_a_line(tmp_path, own, first, second):
    with Party(tmp_path / "two", own=own) as party:
        assert_ends_of_mistake(party, first, second)


def assert_ends_of_mistake(party, *expected):
    for (status, said), text in zip(party.end(), expected, strict=True):
        assert status == 2 and text in said and said.count("\n") == 1


@pytest.mark.ci
def test_another_corpus_ends_both_in_a_line(tmp_path):
    places = [tmp_path / "here", tmp_path / "there"]
    for place, count in zip(places, (300, 200), strict=True):
        (place / "data").mkdir(parents=True)
        chance = random.Random(count)
        for name in ("train", "val", "test"):
            lines = (f"{words(chance)}\t{words(chance)}\n" for _ in range(count))
            (place / "data" / f"{name}.tsv").write_text("".join(lines))
    arguments = ["corpus=tsv", "directory=data", "vocabulary_size=400"]
    arguments = [f"--config.data.{one}" for one in arguments]
    with Party(tmp_path / "two", *arguments, places=places) as party:
        assert_ends_of_mistake(party, *2 * ["process 1 has another corpus"])


def words(chance):
    """Returns three words of random letters."""
    return " ".join("".join(chance.choices("abcdefghij", k=4)) for _ in range(3))
