"""Runs work in a process that has its own environment, threads and memory, and may die alone.

Nothing here imports JAX or another library with threads, so that a process can set its
environment before they start.
"""

import concurrent.futures as futures
import multiprocessing.connection
import os
import signal
import threading
import time
from collections.abc import Callable


class Process:
    """Runs functions one at a time in a spawned process, which keeps its state between them.

    Functions, arguments and results are pickled. The process starts with the first call,
    ends with its parent, however that ends, and leaves Ctrl-C to it.
    """

    def __init__(self, begin: Callable, *arguments):
        """Prepares a process that calls `begin(*arguments)` first, and so after `restart`."""
        self._first = begin, *arguments
        self._start()

    def submit(self, function: Callable, *arguments) -> futures.Future:
        """Calls `function(*arguments)` in the process.

        The future raises BrokenExecutor where the process died.
        """
        future = self._pool.submit(function, *arguments)
        self._started = list((self._pool._processes or {}).values())
        return future

    def exit_status(self) -> int | None:
        """Returns the status with which the process ended; None where it has not.

        It is negative for a signal. A process that is just ending is waited for.
        """
        for _ in range(100):
            for process in self._started:
                if process.exitcode is not None:
                    return process.exitcode
            time.sleep(0.05)
        return None

    def restart(self) -> None:
        """Replaces the process, dead or busy, by a fresh one."""
        self.stop()
        self._start()

    def terminate(self) -> None:
        """Sends the process SIGTERM."""
        for process in list((self._pool._processes or {}).values()):
            process.terminate()

    def stop(self) -> None:
        """Kills the process, whatever it does."""
        for process in list((self._pool._processes or {}).values()):
            # Not SIGTERM, which checkpoint processes ignore and workers save at.
            process.kill()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _start(self):
        # spawn, because a forked child of a process with JAX's threads may hang.
        context = multiprocessing.get_context("spawn")
        self._started = []
        self._pool = futures.ProcessPoolExecutor(1, context, _begin, self._first)


def _begin(begin, *arguments):
    # A terminal sends Ctrl-C to all processes, and the parent decides what follows.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A parent that is killed cannot end its children; the closed pipe shows it.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    begin(*arguments)


def _end_with_parent():
    multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
    # sys.exit would end this thread alone.
    os._exit(1)
