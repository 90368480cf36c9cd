"""Runs a process of several in a child, as JAX may abort it where another one is lost.

What JAX then prints, with its stack, becomes one line, and the status that has a scheduler
start the command again. Imports no JAX.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time

from experiments.errors import one_line
from experiments.system.signals import LINE, STATUS, Interruption

HEARTBEAT = 60
"""Seconds after which a process without heartbeats is lost."""

LOST = 71
"""The status of a child that has found another process to be lost."""

NOISE = "Terminating process because the JAX distributed service detected fatal errors."
"""What JAX prints where a process is lost, and how much of it comes from elsewhere."""

CHILD = "ATTN_SUPERVISED"
"""The environment variable with the child's end of a pipe from its parent."""

TICK = 0.1
"""Seconds between two looks at the child."""


def supervise(alone: bool = True) -> None:
    """Starts this command again in a child, in which it returns; the parent ends as that does.

    The parent passes stop signals on, SIGUSR2 too, and a second one ends both at once where it
    is `alone`: a scheduler and its parent may send one each. It ends with a line and STATUS
    where another process was lost or did not come.
    """
    if pipe := os.environ.pop(CHILD, None):
        threading.Thread(target=_end_with_parent, args=[int(pipe)], daemon=True).start()
        # They come to both, and the parent passes them on as SIGTERM.
        for number in (signal.SIGINT, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        return
    interruption = Interruption()
    # Until the child has ended.
    interruption.unsaved = True
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
    with interruption.listening(signals, alone):
        status, said = _run(interruption)
    if status == LOST or NOISE in said:
        _say(
            f"error: {_loss(said)}; start all again: they go on from the newest checkpoint"
        )
        sys.exit(STATUS)
    if said:
        _say(said)
    if status == STATUS:
        _say(LINE)
    # As shells name the end by a signal.
    sys.exit(status if status >= 0 else 128 - status)


def _run(interruption):
    """Runs this command in a child. Returns its status, and what it said of other processes."""
    reading, writing = os.pipe()
    # Of a process that ends at once, Python would list what its children shared with it.
    warnings = [os.environ.get("PYTHONWARNINGS"), "ignore:resource_tracker"]
    own = {CHILD: str(reading), "PYTHONWARNINGS": ",".join(filter(None, warnings))}
    child = subprocess.Popen(
        [sys.executable, *sys.orig_argv[1:]],
        env=os.environ | own,
        pass_fds=[reading],
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    os.close(reading)
    held = []
    copying = threading.Thread(target=_copy, args=(child.stderr, held))
    copying.start()
    was_told = False
    while child.poll() is None:
        if interruption.asked and not was_told:
            was_told = True
            child.terminate()
        time.sleep(TICK)
    # A process that the child has left behind may keep its stderr open.
    copying.join(1.0)
    os.close(writing)
    return child.returncode, "".join(held)


def _copy(stream, held):
    """Copies lines to stderr; from the first of JAX's on other processes they are held."""
    for line in stream:
        if (
            held
            or NOISE in line
            or re.match(r"[WEF]\d{4} .*(coordination|preemption_sync)", line)
        ):
            held.append(line)
        else:
            sys.stderr.write(line)
            sys.stderr.flush()


def _loss(said):
    """Returns what JAX's words say has happened."""
    if "RegisterTask" in said:
        return "not all processes of this trial have come"
    if named := re.search(r"heartbeats\):\s*(?:\S*task:)?(\d+)", said):
        return f"process {named[1]} of this trial was silent for {HEARTBEAT} s"
    reason = re.search(rf"^{re.escape(NOISE)} (\S*: .*)", said, re.MULTILINE)
    detail = f" ({one_line(reason[1])})" if reason else ""
    return f"a process of this trial was lost{detail}"


def _say(text):
    os.write(2, f"{text.rstrip()}\n".encode())


def _end_with_parent(pipe):
    os.read(pipe, 1)
    # sys.exit would end this thread alone.
    os._exit(1)
