"""Processes that meet: whatever happens to one, all others end soon, and say why."""

import contextlib
import errno
import signal
import socket
import subprocess
import sys
import time

import pytest

from experiments.system.signals import STATUS
from experiments.training import rendezvous
from tests.cases import the_rest_in_ci

MEMBER = """
import sys
from experiments.training import rendezvous

rendezvous.BEAT = 0.1
rendezvous.SAID = 8
rendezvous.SILENCE = 25
rendezvous.GREETING = 3
rendezvous.PATIENCE = float(sys.argv[5])
address, number, count, config = sys.argv[1:5]
member = rendezvous.Rendezvous(address, int(number), int(count), dict(config=config))
try:
    member.meet()
except rendezvous.HostError as error:
    print("error:", error, file=sys.stderr)
    sys.exit(error.status)
print("begun", flush=True)
sys.stdin.readline()
member.leave()
"""


class Party:
    """Processes without JAX that meet at a port of this machine."""

    def __init__(self):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            self.port = free.getsockname()[1]
        self.processes = []

    def start(self, number, count=2, config="same", patience=60):
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                MEMBER,
                f"localhost:{self.port}",
                str(number),
                str(count),
                config,
                str(patience),
            ],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.processes.append(process)
        return process

    def start_both(self):
        both = [self.start(0), self.start(1)]
        for process in both:
            assert process.stdout.readline() == "begun\n"
        return both

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for process in self.processes:
            process.kill()
            with contextlib.suppress(ValueError):
                process.communicate()


@pytest.fixture
def party():
    with Party() as party:
        yield party


def assert_ends(process, status, *expected):
    """Asserts that a process ends with this status and, last, lines that have these texts."""
    if status:
        # By itself: at the end of its stdin it would leave.
        process.wait(timeout=60)
    said = process.communicate(timeout=60)[1].splitlines()
    assert process.returncode == status, said
    assert len(said) == len(expected), said
    for line, text in zip(said, expected, strict=True):
        assert text in line


def test_all_begin_and_leave_without_a_word(party):
    for process in party.start_both():
        assert_ends(process, 0)


def test_the_second_may_leave_before_the_first(party):
    first, second = party.start_both()
    assert_ends(second, 0)
    time.sleep(0.5)
    assert first.poll() is None
    assert_ends(first, 0)


@pytest.mark.parametrize("killed", [0, 1])
def test_the_loss_of_one_ends_the_other(party, killed):
    both = party.start_both()
    both[killed].kill()
    assert_ends(both[1 - killed], STATUS, f"error: process {killed} (")


@pytest.mark.parametrize("stopped", the_rest_in_ci([0, 1], first=1))
def test_a_stopped_process_is_waited_for_and_given_up(party, stopped):
    both = party.start_both()
    both[stopped].send_signal(signal.SIGSTOP)
    assert_ends(
        both[1 - stopped],
        STATUS,
        "is silent; waiting for it for up to",
        f"error: process {stopped} (",
    )
    both[stopped].send_signal(signal.SIGCONT)
    both[stopped].wait(timeout=60)
    assert both[stopped].returncode == STATUS


def test_one_that_was_stopped_for_a_while_goes_on(party):
    first, second = party.start_both()
    second.send_signal(signal.SIGSTOP)
    assert "process 1 (" in first.stderr.readline()
    second.send_signal(signal.SIGCONT)
    time.sleep(0.5)
    assert_ends(first, 0)
    assert_ends(second, 0)


@pytest.mark.parametrize(
    ("late", "line"), [(0, "waiting for the first of 2"), (1, "waiting for 1 of 2")]
)
def test_one_that_comes_late_is_waited_for(party, late, line):
    early = party.start(1 - late)
    assert f"{line} processes at localhost:{party.port}" in early.stderr.readline()
    other = party.start(late)
    assert early.stdout.readline() == other.stdout.readline() == "begun\n"
    assert_ends(early, 0)
    assert_ends(other, 0)


@pytest.mark.parametrize("number", the_rest_in_ci([0, 1], first=1))
def test_one_that_never_comes_is_given_up(party, number):
    line = "given up after 1.0 s; start all"
    assert_ends(party.start(number, patience=1), STATUS, "waiting for", line)


def test_one_that_went_before_all_had_come_may_come_again(party):
    first = party.start(0, count=3)
    party.start(1, count=3).kill()
    others = [party.start(1, count=3), party.start(2, count=3)]
    for process in (first, *others):
        assert process.stdout.readline() == "begun\n"


@pytest.mark.parametrize("number", [0, 1])
def test_two_of_the_same_number_are_refused(party, number):
    both = [party.start(number, count=3), party.start(number, count=3)]
    if number:
        both.append(party.start(0, count=3))
    for process in both:
        assert_ends(process, 2, f"two processes have the number {number}, on ")


def test_two_that_refuse_each_other_try_again(monkeypatch):
    """Linux may refuse both of two that begin to listen to a port at the same time."""
    tries = []
    listener = rendezvous._listener

    def refuse_once(port):
        tries.append(port)
        if len(tries) == 1:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        return listener(0)

    monkeypatch.setattr(rendezvous, "_listener", refuse_once)
    member = rendezvous.Rendezvous("localhost:1", 0, 2, {})
    member._listen()
    assert tries == [1, 1]
    assert not member._is_taken


def test_the_process_that_tells_all_is_told_last(monkeypatch):
    """Another first process is told before the one that listens, which ends by it."""
    told = []
    send = rendezvous.Connection.send

    def record(connection, **message):
        if "line" in message:
            told.append(connection.hello["id"])
        send(connection, **message)

    monkeypatch.setattr(rendezvous.Connection, "send", record)
    own, other = (
        dict(id=name, number=0, count=3, host="here", same={})
        for name in ("own", "other")
    )
    # It stays open: a thread listens to it until the tests end.
    listener = socket.create_server(("localhost", 0))
    rendezvous.Reception(listener, "here:1", own)
    with contextlib.ExitStack() as stack:
        # The other may be the first to be let in.
        for hello in (other, own):
            stream = socket.create_connection(listener.getsockname())
            connection = rendezvous.Connection(stack.enter_context(stream))
            assert connection.receive(60) == [dict(greeting="here:1")]
            connection.send(**hello)
            assert connection.receive(60)
        assert told == ["other", "own"]


@pytest.mark.parametrize(
    ("second", "line"),
    [
        (dict(count=3), "counts 3 processes, the first 2: give all the same N"),
        (dict(config="other"), "has another config than the first"),
    ],
)
def test_another_count_or_config_is_refused(party, second, line):
    both = [party.start(0), party.start(1, **second)]
    for process in both:
        assert_ends(process, 2, line)


@pytest.mark.ci
def test_a_port_of_another_program_is_refused(party):
    with socket.create_server(("localhost", party.port)):
        both = [party.start(0), party.start(1)]
        for process in both:
            *_, last = process.communicate(timeout=60)[1].splitlines()
            assert process.returncode == 2
            assert f"localhost:{party.port} is taken by another program" in last


def test_one_that_hangs_up_is_waited_for(party):
    with socket.create_server(("localhost", party.port)) as ending:
        second = party.start(1)
        ending.accept()[0].close()
    first = party.start(0)
    assert first.stdout.readline() == second.stdout.readline() == "begun\n"


def test_a_stranger_and_a_newcomer_disturb_nobody(party):
    first = party.start(0)
    assert "waiting" in first.stderr.readline()
    hello = b'{"number": 1, "count": 2, "host": [], "same": "config"}\n'
    for data in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"1\n",
        hello,
        b'{"bye": true}\n',
        b"x" * 30_000,
    ):
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("localhost", party.port)) as stranger,
        ):
            stranger.sendall(data)
            stranger.recv(100)
    second = party.start(1)
    assert first.stdout.readline() == second.stdout.readline() == "begun\n"
    assert_ends(
        party.start(1), 2, "is in use by a trial whose 2 processes are all there"
    )
    assert_ends(first, 0)
    assert_ends(second, 0)


def test_a_relay_stays_open_where_the_far_end_is_lost():
    with socket.create_server(("127.0.0.1", 0)) as far:
        near = rendezvous.relay("127.0.0.1", far.getsockname()[1])
        with socket.create_connection(("127.0.0.1", near)) as client:
            service = far.accept()[0]
            client.sendall(b"to")
            assert service.recv(2) == b"to"
            service.sendall(b"fro")
            assert client.recv(3) == b"fro"
            service.close()
            client.settimeout(0.3)
            with pytest.raises(TimeoutError):
                client.recv(1)
