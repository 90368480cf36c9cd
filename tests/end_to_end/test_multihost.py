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

import jax
import numpy as np
import pytest

from experiments.system.signals import LINE, STATUS
from experiments.training import multihost
from experiments.training.checkpoints import Checkpoints
from experiments.trial.lanes import Lanes
from tests.end_to_end import faults

ROOT = Path(__file__).parents[2]
CONFIG = f"--config={ROOT}/tests/experiments/tiny_config.py"
WHOLE = ["-m", "launch.train"]
# A corpus that does not stay on the devices.
STREAMED = [
    "-c",
    "import runpy; from experiments.training import device_data; device_data.RESIDENT = 0; "
    "runpy.run_module('launch.train', run_name='__main__', alter_sys=True)",
]
# One that waits for a stopped process for seconds.
IMPATIENT = [
    "-c",
    "import runpy; from experiments.training import rendezvous; rendezvous.SAID = 4; "
    "rendezvous.SILENCE = 8; "
    "runpy.run_module('launch.train', run_name='__main__', alter_sys=True)",
]
PATIENCE = 300
SOON = 30
"""Seconds after an accident."""


def test_a_process_alone_meets_nobody():
    multihost.join(None)
    multihost.check_same("config", "x")
    tree = dict(a=np.float32(-0.0))
    assert (
        not multihost.several()
        and multihost.first()
        and multihost.meet(7) == 7
        and multihost.broadcast(tree) is tree
    )
    with multihost.together(), multihost.leading():
        pass


def test_the_bits_of_numbers_are_broadcast():
    x = np.array([-0.0, np.nan, 1.5], np.float32)
    assert (
        multihost._bits(x).dtype == np.uint32
        and multihost._bits(x).view(np.float32).tobytes() == x.tobytes()
    )


def test_rows_go_to_the_devices_of_their_process(monkeypatch):
    slots = np.arange(2 * 8 * 3).reshape(2, 8, 3)
    assert Lanes(devices=tuple(jax.devices())).own_rows(slots) is slots
    # As if every other device were another process's, which is the order that a TPU pod may have.
    monkeypatch.setattr(
        Lanes,
        "own",
        property(lambda lanes: jax.sharding.Mesh(lanes.mesh.devices[1::2], "devices")),
    )
    np.testing.assert_array_equal(
        Lanes(devices=tuple(jax.devices())).own_rows(slots), slots[:, [2, 3, 6, 7]]
    )


class Party:
    """Processes of one trial, of one device each.

    `own` are flags of some of them, and `places` their working directories.
    """

    def __init__(
        self,
        workdir,
        *arguments,
        count=2,
        program=WHOLE,
        own=None,
        places=None,
    ):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        directories = [workdir] + [workdir.with_name("elsewhere")] * (
            count - 1
        )  # which only the first may look at
        self.processes = []
        for i in range(count):
            process = subprocess.Popen(
                [
                    sys.executable,
                    *program,
                    CONFIG,
                    *arguments,
                    f"--hosts=localhost:{port},{i}/{count}",
                    f"--workdir={directories[i]}",
                    *(own or {}).get(i, ()),
                ],
                text=True,
                env=dict(environment(1), PYTHONPATH=str(ROOT)),
                cwd=places[i] if places else ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            self.processes.append(process)

    def end(self):
        """(status, stderr) of each."""
        said = [process.communicate(timeout=PATIENCE)[1] for process in self.processes]
        return [
            (process.returncode, text)
            for process, text in zip(self.processes, said, strict=True)
        ]

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def environment(devices):
    return dict(os.environ, NPROC="32", JAX_NUM_CPU_DEVICES=str(devices))


def alone(workdir, *arguments, devices=2):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "launch.train",
            CONFIG,
            *arguments,
            f"--workdir={workdir}",
        ],
        text=True,
        capture_output=True,
        env=environment(devices),
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr


def wait_for_saves(workdir):
    """Until there is one more checkpoint, and the run goes on."""

    def newest():
        return max(
            (
                int(path.name)
                for path in workdir.glob("checkpoints/*")
                if path.name.isdigit()
            ),
            default=0,
        )

    before = newest()
    end = time.monotonic() + PATIENCE
    while newest() <= before:
        assert time.monotonic() < end
        time.sleep(0.05)


def assert_lost(number, status, said):
    """Asserts that a process ended because of the loss of the one of this number."""
    # One that was stopped itself may see, when it goes on, that the other was silent.
    *before, line = said.splitlines()
    assert all("is silent; waiting for it" in words for words in before)
    assert status == STATUS
    assert line.startswith(f"error: process {number} (")
    assert line.endswith("start all again: they go on from the newest checkpoint")


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
        (status, said), second = party.end()
        assert status == 0 and second == (0, "")
        # Where the other came late.
        assert len(said.splitlines()) <= 1
    alone(tmp_path / "one", *arguments)
    assert faults.differences_of_trials(tmp_path / "one", tmp_path / "two") == []
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.ci
def test_whatever_ends_one_of_them_the_trial_ends_the_same(tmp_path):
    """SIGTERM to one and then to all of the other; one killed, one stopped; ended by one process.

    Each of two may be lost: that is asked of processes without JAX, in test_rendezvous.py.
    """
    workdir = tmp_path / "two"
    trial = [*faults.TRIAL, "--config.training.steps=800"]
    for which, tell in ((1, os.kill), (0, os.killpg)):
        with Party(workdir, *trial) as party:
            wait_for_saves(workdir)
            tell(party.processes[which].pid, signal.SIGTERM)
            for status, said in party.end():
                assert status == STATUS and said.strip().endswith(LINE)
        with Checkpoints(workdir, None) as checkpoints:
            noted = [checkpoints.noted(step) for step in checkpoints.steps()]
        assert not all(notes["scheduled"] for notes in noted)
    with Party(workdir, *trial) as party:
        wait_for_saves(workdir)
        first, second = party.processes
        first.kill()
        begin = time.monotonic()
        assert_lost(0, *party.end()[1])
        assert time.monotonic() - begin < SOON
    with Party(workdir, *trial, program=IMPATIENT) as party:
        wait_for_saves(workdir)
        first, second = party.processes
        second.send_signal(signal.SIGSTOP)
        first.wait(timeout=SOON)
        second.send_signal(signal.SIGCONT)
        (status, said), end_of_stopped = party.end()
        waiting, line = said.splitlines()
        assert "process 1 (" in waiting
        assert "is silent; waiting for it for up to 8 s" in waiting
        assert_lost(1, status, line)
        assert_lost(0, *end_of_stopped)
    alone(workdir, *trial)
    alone(tmp_path / "one", *trial)
    assert faults.differences_of_trials(tmp_path / "one", workdir) == []


@pytest.mark.ci
@pytest.mark.parametrize(
    ("own", "first", "second"),
    [
        (
            {1: ["--config.seed=3"]},
            "has another config than the first",
            "has another config than the first",
        ),
        (
            {
                0: ["--config.training.batch_size=9"],
                1: ["--config.training.batch_size=9"],
            },
            "training.batch_size=9 must be divisible",
            "training.batch_size=9 must be divisible",
        ),
        (
            {0: ["--resume=nowhere"]},
            "nowhere holds no trained model",
            "process 0 of this trial failed",
        ),
    ],
)
def test_a_mistake_ends_all_of_them_in_a_line(tmp_path, own, first, second):
    with Party(tmp_path / "two", own=own) as party:
        assert_ends_of_mistake(party, first, second)


def assert_ends_of_mistake(party, *expected):
    for (status, said), text in zip(party.end(), expected, strict=True):
        # One that came before the other may have said that it waits.
        *waiting, line = said.splitlines()
        assert status == 2 and text in line
        assert all(line.startswith("waiting for ") for line in waiting)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("pairs", "first", "second"),
    [
        (200, "process 1 has another corpus", "process 1 has another corpus"),
        (0, "process 1 of this trial failed", "train.tsv"),
    ],
)
def test_another_corpus_or_none_ends_both_in_a_line(tmp_path, pairs, first, second):
    places = [tmp_path / "here", tmp_path / "there"]
    for place, count in zip(places, (300, pairs), strict=True):
        (place / "data").mkdir(parents=True)
        chance = random.Random(count)
        for name in ("train", "val", "test") if count else ():
            lines = (f"{words(chance)}\t{words(chance)}\n" for _ in range(count))
            (place / "data" / f"{name}.tsv").write_text("".join(lines))
    arguments = [
        "--config.data.corpus=tsv",
        "--config.data.directory=data",
        "--config.data.vocabulary_size=400",
    ]
    with Party(tmp_path / "two", *arguments, places=places) as party:
        assert_ends_of_mistake(party, first, second)


def words(chance):
    """Returns three words of random letters."""
    return " ".join("".join(chance.choices("abcdefghij", k=4)) for _ in range(3))
