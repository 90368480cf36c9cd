"""Processes of one trial meet here, and notice where one of them is lost. Imports no JAX.

Each connects to the address of the first, the first itself too, and says which it is. A
thread of the first answers them all: wait, begin, or end, with a status and a line. The
connections stay, and both ends of each send a beat every second. A process whose connection
breaks is lost, one that is silent for SILENCE seconds counts as lost, and the others end.
Messages are lines of JSON.
"""

import contextlib
import errno
import json
import multiprocessing.connection
import os
import random
import socket
import threading
import time
import uuid

from experiments.errors import UserError, one_line
from experiments.system.signals import STATUS

BEAT = 1.0
"""Seconds between two beats of a connection."""
SAID = 8
"""Beats that one waits for another before it says so."""
PATIENCE = 300
"""Seconds that one waits for all to come."""
SILENCE = 60
"""Beats that may be missed: a machine may be slow, or stopped for a while."""
GREETING = 10
"""Seconds within which the first process greets one that connects."""
LONGEST = 10_000
"""Bytes of a message."""

AGAIN = "start all again: they go on from the newest checkpoint"


class HostError(UserError):
    """Raised where processes cannot work together; the message says why, and the remedy."""


class LostError(HostError):
    """Raised where another process is lost or does not come; the same command may go on."""

    status = STATUS


class Connection:
    """Sends and receives messages over a socket."""

    def __init__(self, stream: socket.socket):
        stream.settimeout(GREETING)
        self.missed = 0
        self.hello = {}
        self._stream = stream
        self._unread = b""

    def fileno(self) -> int:
        return self._stream.fileno()

    def close(self) -> None:
        self._stream.close()

    def send(self, **message) -> None:
        # Where the other end is lost, reading says so.
        with contextlib.suppress(OSError):
            self._stream.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, seconds: float = 0) -> list[dict]:
        """Returns the messages of the next `seconds`, as soon as there are any.

        Raises OSError where the connection broke, ValueError for what is no message.
        """
        if not multiprocessing.connection.wait([self], seconds):
            return []
        data = self._stream.recv(LONGEST)
        if not data:
            raise ConnectionResetError
        self.missed = 0
        *lines, self._unread = (self._unread + data).split(b"\n")
        messages = [json.loads(line) for line in lines]
        if len(self._unread) > LONGEST or not all(type(m) is dict for m in messages):
            raise ValueError("no message")
        return messages


class Reception:
    """Answers all processes, in a thread of the first, and watches them from then on."""

    def __init__(self, listener: socket.socket, address: str, hello: dict):
        self.listener = listener
        self.address = address
        self.first = hello
        self.strangers: list[Connection] = []
        self.members: dict[int, Connection] = {}
        self.begun = False
        self.refused = ""
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        beat_at = time.monotonic()
        while True:
            open_ones = [self.listener, *self.strangers, *self.members.values()]
            for ready in multiprocessing.connection.wait(open_ones, BEAT):
                if ready is self.listener:
                    self.greet()
                else:
                    self.hear(ready)
            # Beats are counted, not seconds: this process may have been stopped itself.
            if time.monotonic() >= beat_at:
                beat_at = time.monotonic() + BEAT
                self.beat()

    def greet(self) -> None:
        with contextlib.suppress(OSError):
            stranger = Connection(self.listener.accept()[0])
            stranger.send(greeting=self.address)
            self.strangers.append(stranger)

    def hear(self, connection: Connection) -> None:
        try:
            for message in connection.receive():
                if "number" in message and not connection.hello:
                    self.enter(connection, message)
                elif message.get("bye"):
                    self.leave(connection)
        except (OSError, ValueError, KeyError, TypeError):
            self.lose(connection, "was lost")

    def enter(self, connection: Connection, hello: dict) -> None:
        """Lets a process in that says which it is, or ends all that cannot work with it."""
        connection.hello = dict(
            id=str(hello["id"]),
            number=int(hello["number"]),
            count=int(hello["count"]),
            host=str(hello["host"]),
            same=dict(hello["same"]),
        )
        number = connection.hello["number"]
        if self.begun:
            line = (
                f"{self.address} is in use by a trial whose {self.first['count']} processes "
                "are all there: give another port in --hosts"
            )
            connection.send(status=2, line=line)
        elif why := self.refused or self.refusal(connection.hello):
            # Those that have yet to come are refused too, of which the first may be one.
            self.refused = why
            self.tell(connection, status=2, line=why)
        else:
            self.strangers.remove(connection)
            self.members[number] = connection
            if len(self.members) == self.first["count"]:
                self.begin()

    def refusal(self, hello: dict) -> str:
        """Returns why a process cannot take part, "" where it can."""
        number = hello["number"]
        count = self.first["count"]
        if hello["count"] != count:
            return (
                f"{_name(hello)} counts {hello['count']} processes, the first {count}: "
                "give all the same N in --hosts=HOST:PORT,I/N"
            )
        if other := self.members.get(number):
            return (
                f"two processes have the number {number}, on {other.hello['host']} and "
                f"{hello['host']}: give each its own I in --hosts=HOST:PORT,I/N, from 0 to "
                f"{count - 1}"
            )
        for name, text in self.first["same"].items():
            if hello["same"].get(name) != text:
                return (
                    f"{_name(hello)} has another {name} than the first: give all the same "
                    "command, data and versions"
                )
        return ""

    def begin(self) -> None:
        self.begun = True
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        self.tell(port=port)

    def beat(self) -> None:
        missing = self.first["count"] - len(self.members)
        for member in list(self.members.values()):
            member.send(missing=missing)
            member.missed += 1
            if member.missed == SAID:
                _say(_silent(_name(member.hello)))
            if member.missed >= SILENCE:
                self.lose(member, f"was silent for {SILENCE} s")

    def lose(self, connection: Connection, how: str) -> None:
        """Forgets a process that did not begin; ends all others where it did."""
        connection.close()
        if connection in self.strangers:
            self.strangers.remove(connection)
            return
        del self.members[connection.hello["number"]]
        if self.begun:
            self.tell(status=STATUS, line=f"{_name(connection.hello)} {how}; {AGAIN}")

    def leave(self, connection: Connection) -> None:
        """Lets a process go that has ended its part, and all with the first."""
        number = connection.hello["number"]
        if number == 0:
            self.tell(bye=True)
        else:
            connection.send(bye=True)
        del self.members[number]

    def tell(self, *others: Connection, **message) -> None:
        """Sends others and all members a message, this very process last.

        It may end by it, and this thread with it. Another may have its number.
        """
        for connection in sorted((*others, *self.members.values()), key=self.is_own):
            connection.send(**message)

    def is_own(self, connection: Connection) -> bool:
        return connection.hello["id"] == self.first["id"]


class Rendezvous:
    """Is one process's part: it comes, waits for all others, and ends where one is lost."""

    def __init__(self, address: str, number: int, count: int, same: dict[str, str]):
        """Prepares to meet at `address`, HOST:PORT, with `same` texts that all must have."""
        host, port = address.rsplit(":", 1)
        self.host = host.strip("[]")
        self._address = address
        self._port = int(port)
        self._hello = dict(
            id=uuid.uuid4().hex,
            number=number,
            count=count,
            host=socket.gethostname(),
            same=same,
        )
        self._connection = None
        self._watching = None
        self._is_over = threading.Event()
        self._is_taken = False

    def meet(self) -> int:
        """Waits for all, and returns a port of the first's that JAX may use.

        Raises LostError where some do not come, HostError where they do not fit together.
        """
        if self._hello["number"] == 0:
            self._listen()
        begin = time.monotonic()
        was_said = False
        missing = f"the first of {self._hello['count']} processes"
        while True:
            seconds = time.monotonic() - begin
            reason = "" if self._connection else self._connect()
            line = f"waiting for {missing} at {self._address}{reason}"
            if seconds > PATIENCE:
                raise LostError(f"{line}: given up after {PATIENCE} s; {AGAIN}")
            if seconds > SAID * BEAT and not was_said:
                was_said = True
                _say(line)
            for message in self._receive():
                if "line" in message:
                    raise HostError(message["line"])
                if "port" in message:
                    self._watching = threading.Thread(target=self._watch, daemon=True)
                    self._watching.start()
                    return message["port"]
                if count := message.get("missing"):
                    missing = f"{count} of {self._hello['count']} processes"

    def leave(self) -> None:
        """Says that this process has ended its part."""
        self._is_over.set()
        self._connection.send(bye=True)
        # The first answers, when it has let the others go too.
        self._watching.join(GREETING)

    def _listen(self):
        # Of two that begin to listen at once, Linux may refuse both.
        for pause in (random.uniform(0, BEAT), 0):
            try:
                listener = _listener(self._port)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise HostError(
                        f"--hosts={self._address}: {error.strerror}; give another port"
                    ) from None
                time.sleep(pause)
            else:
                Reception(listener, self._address, self._hello)
                return
        # Another first process may have it, and says so.
        self._is_taken = True

    def _connect(self) -> str:
        """Connects to the first process; returns why it cannot yet."""
        try:
            stream = socket.create_connection((self.host, self._port), GREETING)
        except OSError as error:
            self._check_port()
            time.sleep(BEAT / 4)
            return f" ({error.strerror or error})"
        if stream.getsockname() == stream.getpeername():
            # TCP connected the port to itself.
            stream.close()
            return ""
        connection = Connection(stream)
        try:
            greets = any("greeting" in m for m in connection.receive(GREETING))
        except OSError as error:
            # The first process may be ending, and another come.
            self._check_port()
            time.sleep(BEAT / 4)
            return f" ({error.strerror or 'it hung up'})"
        except ValueError:
            greets = False
        self._is_taken = not greets
        self._check_port()
        connection.send(**self._hello)
        self._connection = connection
        return ""

    def _check_port(self):
        if self._is_taken:
            raise HostError(
                f"{self._address} is taken by another program: give all another port in "
                "--hosts=HOST:PORT,I/N"
            )

    def _receive(self):
        """Returns messages while waiting; the first process may go, and another come."""
        if not self._connection:
            return []
        try:
            messages = self._connection.receive(BEAT)
            self._connection.send(beat=True)
            return messages
        except (OSError, ValueError):
            self._connection = None
            return []

    def _watch(self):
        beat_at = time.monotonic()
        first = f"process 0 (at {self._address})"
        while True:
            try:
                messages = self._connection.receive(BEAT)
            except (OSError, ValueError):
                if self._is_over.is_set():
                    return
                messages = [dict(status=STATUS, line=f"{first} was lost; {AGAIN}")]
            for message in messages:
                if "bye" in message:
                    return
                if "line" in message and not self._is_over.is_set():
                    _end(message["status"], message["line"])
            if time.monotonic() >= beat_at:
                beat_at = time.monotonic() + BEAT
                self._connection.send(beat=True)
                self._connection.missed += 1
                if self._connection.missed == SAID:
                    _say(_silent(first))
                if self._connection.missed >= SILENCE:
                    _end(STATUS, f"{first} was silent for {SILENCE} s; {AGAIN}")


def relay(host: str, port: int) -> int:
    """Returns a port of this machine whose connections go on to `host`:`port`.

    They stay open where the other end is lost: JAX's client would else abort the process,
    before `Rendezvous` can end it, and print its stack.
    """
    listener = socket.create_server(("127.0.0.1", 0))

    def accept():
        while True:
            near = listener.accept()[0]
            try:
                far = socket.create_connection((host, port))
            except OSError:
                # The first process has not started JAX yet; this one's client tries again.
                near.close()
                continue
            for ends in ((near, far), (far, near)):
                threading.Thread(target=copy, args=ends, daemon=True).start()
            opened.extend((near, far))

    def copy(source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)

    # Keeps the sockets from being closed.
    opened = []
    threading.Thread(target=accept, daemon=True).start()
    return listener.getsockname()[1]


def _listener(port):
    if socket.has_dualstack_ipv6():
        return socket.create_server(
            ("", port), family=socket.AF_INET6, dualstack_ipv6=True
        )
    return socket.create_server(("", port))


def _name(hello):
    return f"process {hello['number']} ({hello['host']})"


def _silent(name):
    return f"{name} is silent; waiting for it for up to {SILENCE} s"


def _say(line):
    os.write(2, f"{one_line(line)}\n".encode())


def _end(status, line):
    _say(f"error: {line}")
    os._exit(status)
