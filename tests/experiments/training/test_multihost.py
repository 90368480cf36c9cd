"""A process joins others by what it is told; its parent makes a line of what JAX aborts."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from experiments.system.signals import LINE, STATUS
from experiments.training import multihost, supervisor
from experiments.trial.lanes import Lanes

pytestmark = pytest.mark.quick


def test_a_process_alone_meets_nobody():
    multihost.join(None)
    multihost.check_same("config", "x")
    tree = dict(a=np.float32(-0.0))
    assert not multihost.several()
    assert multihost.first()
    assert multihost.meet(7) == 7
    assert multihost.broadcast(tree) is tree
    with multihost.together(), multihost.leading():
        pass


def test_the_bits_of_numbers_are_broadcast():
    x = np.array([-0.0, np.nan, 1.5], np.float32)
    assert multihost._bits(x).dtype == np.uint32
    assert multihost._bits(x).view(np.float32).tobytes() == x.tobytes()


def test_rows_go_to_the_devices_of_their_process(monkeypatch):
    slots = np.arange(2 * 8 * 3).reshape(2, 8, 3)
    lanes = Lanes(devices=tuple(jax.devices()))
    assert lanes.own_rows(slots) is slots
    # As if every other device were another process's, as on a TPU pod.
    own = lambda lanes: jax.sharding.Mesh(lanes.mesh.devices[1::2], "devices")
    monkeypatch.setattr(Lanes, "own", property(own))
    np.testing.assert_array_equal(lanes.own_rows(slots), slots[:, [2, 3, 6, 7]])


@pytest.mark.parametrize(
    "how", ["node0", "node0:4567", "node0:4567,2/2", "node0:4567,0", "automatic"]
)
def test_what_names_no_process_is_refused(how):
    with pytest.raises(multihost.HostError, match="give auto, or HOST:PORT,I/N"):
        multihost.join(how)


@pytest.mark.parametrize(
    ("how", "place"),
    [
        ("[::1]:4567,1/2", ("[::1]:4567", 2, 1)),
        # JAX finds out by itself.
        ("auto", (None, None, None)),
    ],
)
def test_jax_is_told_which_process_this_is(monkeypatch, how, place):
    given = {}
    monkeypatch.setattr(jax.distributed, "initialize", lambda **x: given.update(x))
    monkeypatch.setattr(jax.config, "update", lambda name, value: None)
    multihost.join(how)
    names = ("coordinator_address", "num_processes", "process_id")
    assert tuple(map(given.get, names)) == place
    assert given["heartbeat_timeout_seconds"] == 60


def test_where_jax_cannot_begin_it_is_one_line(monkeypatch):
    def fail(**place):
        raise RuntimeError("UNKNOWN: Failed to start RPC server")

    monkeypatch.setattr(jax.distributed, "initialize", fail)
    monkeypatch.setattr(jax.config, "update", lambda name, value: None)
    with pytest.raises(
        multihost.HostError, match="a port that is free there"
    ) as caught:
        multihost.join("node0:4567,0/2")
    assert "\n" not in str(caught.value)


AGAIN = "; start all again: they go on from the newest checkpoint\n"
ABORT = (
    "E1127 22:31:38.6 1 coordination_service.cc:1549] Use error polling:\n"
    f"F1127 22:31:38.6 7 client.h:80] {supervisor.NOISE} This most likely indicates\n"
)
SILENT = (
    "UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):\n{}\n"
    "*** Check failure stack trace: ***\n    @ 0x7fd323c40634 absl::log_internal()\n"
)


@pytest.fixture
def supervised(tmp_path):
    """A function that starts a command whose child does what a text of Python says."""
    with contextlib.ExitStack() as processes:

        def start(text, how=""):
            begin = "import os, signal, sys, time\nfrom experiments.training import supervisor"
            lines = f"{begin}\nsupervisor.supervise({how})\n{text}"
            process = subprocess.Popen(
                [sys.executable, "-c", lines],
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            processes.enter_context(process)
            processes.callback(process.kill)
            return process

        yield start


def printing(said, end):
    return f"sys.stderr.write({said!r})\nsys.stderr.flush()\n{end}"


@pytest.mark.parametrize(
    ("child", "status", "said"),
    [
        # A process without news of others ends as its child does.
        ("print('a result')", 0, ""),
        (printing("error: a mistake\n", "sys.exit(2)"), 2, "error: a mistake\n"),
        (printing("", "os.kill(os.getpid(), signal.SIGSEGV)"), 139, ""),
        (
            printing("W1127 1 coordination_service\n", ""),
            0,
            "W1127 1 coordination_service\n",
        ),
        # JAX aborts: by a signal, or by status 1 in versions up to 0.7.
        (
            printing(ABORT + SILENT.format(1), "os.abort()"),
            STATUS,
            f"error: process 1 of this trial was silent for 60 s{AGAIN}",
        ),
        (
            printing(ABORT + SILENT.format("/job:jax_worker/task:12"), "sys.exit(1)"),
            STATUS,
            f"error: process 12 of this trial was silent for 60 s{AGAIN}",
        ),
        (
            printing(
                f"{ABORT}RPC: /xla.CoordinationService/RegisterTask", "os.abort()"
            ),
            STATUS,
            f"error: not all processes of this trial have come{AGAIN}",
        ),
        # The loss is found in a sum.
        (
            printing(
                f"{supervisor.NOISE} UNKNOWN: Gloo\n", f"os._exit({supervisor.LOST})"
            ),
            STATUS,
            f"error: a process of this trial was lost (UNKNOWN: Gloo){AGAIN}",
        ),
    ],
)
def test_what_becomes_of_a_child_is_said_in_a_line(supervised, child, status, said):
    process = supervised(child)
    assert process.communicate(timeout=60)[1] == said
    assert process.returncode == status


TRAINS = """
signal.signal(signal.SIGTERM, lambda *_: {told})
print('begun', flush=True)
time.sleep(60)
"""


def test_a_stop_signal_is_passed_on(supervised):
    process = supervised(TRAINS.format(told=f"sys.exit({STATUS})"))
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[1] == f"{LINE}\n"
    assert process.returncode == STATUS


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_child_ends_with_its_parent(supervised, number):
    """A second signal ends the parent at once."""
    process = supervised(TRAINS.format(told="print('told', flush=True)"))
    process.stdout.readline()
    if number == signal.SIGTERM:
        process.send_signal(number)
        assert process.stdout.readline() == "told\n"
    process.send_signal(number)
    # The child would write to the same pipes for a minute.
    process.communicate(timeout=20)


def test_a_scheduler_and_its_parent_may_both_tell_it_to_stop(supervised):
    told = f"(time.sleep(1), sys.exit({STATUS}))"
    process = supervised(TRAINS.format(told=told), "alone=False")
    process.stdout.readline()
    for number in (signal.SIGTERM, signal.SIGUSR2):
        os.killpg(process.pid, number)
        time.sleep(0.3)
    assert process.communicate(timeout=60)[1] == f"{LINE}\n"
    assert process.returncode == STATUS
