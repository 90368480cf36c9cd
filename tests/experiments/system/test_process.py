"""A process of its own: what it keeps, and how it ends."""

import concurrent.futures as futures
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.system.process import Process

SECONDS = 30
"""The most that anything here may take."""

calls = []


def add(name):
    calls.append(name)
    return os.getpid(), calls


@pytest.fixture
def process():
    process = Process(add, "first")
    yield process
    process.stop()


def ask(process, function, *arguments):
    return process.submit(function, *arguments).result(SECONDS)


def test_calls_come_one_by_one_and_keep_their_state_until_a_restart(process):
    pid, _ = ask(process, add, "a")
    process.submit(
        time.sleep, 0.5
    )  # a second process, if there were one, would start now and take what follows
    assert ask(process, add, "b") == (pid, ["first", "a", "b"]) and pid != os.getpid()
    busy = process.submit(time.sleep, SECONDS)
    start = time.monotonic()
    while not busy.running():
        time.sleep(0.01)
    process.restart()
    assert time.monotonic() - start < SECONDS
    fresh, seen = ask(process, add, "c")
    assert fresh != pid and seen == ["first", "c"] and calls == []


def test_ctrl_c_is_the_parents(process):
    assert process.submit(signal.raise_signal, signal.SIGINT).exception(SECONDS) is None


def test_a_death_is_an_error_that_a_restart_mends(process):
    with pytest.raises(futures.BrokenExecutor):
        ask(process, os._exit, 1)
    process.restart()
    assert ask(process, add, "a")[1] == ["first", "a"]
    process.stop()
    process.stop()


PARENT = """
import functools, time
from experiments.system.process import Process
Process(functools.partial(print, flush=True), "busy").submit(time.sleep, 60).result()
"""


def test_a_process_ends_with_a_parent_that_is_killed():
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        cwd=Path(__file__).parents[3],
        stdout=subprocess.PIPE,
    )
    assert parent.stdout.readline() == b"busy\n"
    parent.kill()
    # The pipe ends when the last that could write to it has ended.
    assert parent.communicate(timeout=SECONDS) == (b"", None)
