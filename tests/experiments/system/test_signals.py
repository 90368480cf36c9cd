"""Word to stop: what a process does at a signal, at what moment."""

import contextlib
import signal
import subprocess
import sys
import time

import pytest

from experiments.system.signals import LINE, STATUS, Interrupted, Interruption

SECONDS = 60
"""The most that a process may take."""

PROCESS = """
import os, signal, sys, time
from experiments.system.signals import Interruption
interruption = Interruption()
interruption.unsaved = {unsaved}
with interruption.listening(alone={alone}):
    print("ready", flush=True)
    {work}
"""
# In C, as a compilation is: no handler of Python's runs until it ends.
BUSY = "import hashlib; hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)"
SAVING = """
    while not interruption.asked: time.sleep(0.01)
    print("saved", flush=True); time.sleep({}); sys.exit(3)
"""


@contextlib.contextmanager
def begun(work, unsaved, alone=True):
    program = PROCESS.format(work=work, unsaved=unsaved, alone=alone)
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_with_nothing_to_save_a_process_leaves_at_once_whatever_it_is_at(number):
    with begun(BUSY, unsaved=False) as process:
        process.send_signal(number)
        assert (
            process.communicate(timeout=SECONDS) == ("", LINE + "\n")
            and process.returncode == STATUS == 75
        )


def test_what_is_to_be_saved_is_saved_and_a_second_signal_ends_that():
    with begun(SAVING.format(0), unsaved=True) as process:
        process.send_signal(signal.SIGTERM)
        assert (
            process.communicate(timeout=SECONDS) == ("saved\n", "")
            and process.returncode == 3
        )
    with begun(SAVING.format(SECONDS), unsaved=True) as process:
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "saved\n"
        process.send_signal(signal.SIGTERM)
        assert (
            process.communicate(timeout=SECONDS / 2) == ("", LINE + "\n")
            and process.returncode == STATUS
        )


def test_a_worker_says_nothing_and_may_be_told_twice():
    with begun(SAVING.format(1), unsaved=True, alone=False) as process:
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "saved\n"
        process.send_signal(signal.SIGTERM)
        assert (
            process.communicate(timeout=SECONDS) == ("", "") and process.returncode == 3
        )
    with begun(BUSY, unsaved=False, alone=False) as process:
        process.send_signal(signal.SIGTERM)
        assert (
            process.communicate(timeout=SECONDS) == ("", "")
            and process.returncode == STATUS
        )


def test_afterwards_signals_are_what_they_were():
    interruption = Interruption()
    interruption.unsaved = True
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with interruption.listening():
        interruption.check()
        signal.raise_signal(signal.SIGTERM)
        while not interruption.asked:
            time.sleep(0.01)
        with pytest.raises(Interrupted):
            interruption.check()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    assert not issubclass(
        Interrupted, Exception
    )  # no handler of failures may take it for one
