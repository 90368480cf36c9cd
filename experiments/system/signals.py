"""Handles SIGTERM and Ctrl-C: state is saved, and the process ends with status STATUS.

A signal only sets `Interruption.asked`; code that has something to save looks at moments of
its own, with `check`. A process that has nothing to save ends at once, even in the middle of
a compilation, and so does any process at the second signal.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Sequence

STATUS = os.EX_TEMPFAIL
"""75: schedulers can be set to start a command again that ends with it."""


LINE = "interrupted; the same command goes on from here"


class Interrupted(BaseException):
    """Raised after a stop signal, once state is saved.

    It is a BaseException, so that `except Exception` does not count it as a failed trial.
    """


class Interruption:
    """Holds whether a process was asked to stop.

    Attributes:
        asked: a stop signal has come.
        unsaved: something would be lost if the process ended now; set by its owner.
    """

    def __init__(self):
        self.asked = False
        self.unsaved = False

    def check(self) -> None:
        """Raises Interrupted once a stop signal has come."""
        if self.asked:
            raise Interrupted

    @contextlib.contextmanager
    def listening(
        self,
        signals: Sequence[int] = (signal.SIGTERM, signal.SIGINT),
        alone: bool = True,
    ) -> Iterator[None]:
        """Makes the signals ask to stop, in this `with` block in the main thread.

        A second one ends the process. A process that is not `alone` has a parent that signals
        it, waits for it and prints for it: a scheduler may signal it too, so that a second
        signal means nothing.
        """
        # Python's signal handlers run only when the main thread returns to the interpreter,
        # which a compilation may delay; a thread that reads the wakeup pipe reacts at once.
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        before = {number: signal.signal(number, lambda *_: None) for number in signals}
        woken = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

        def watch():
            while number := os.read(reading, 1):
                if number[0] in signals:
                    is_second = self.asked
                    self.asked = True
                    if not self.unsaved or (alone and is_second):
                        if alone:
                            # print could wait for a lock that the main thread holds.
                            os.write(2, f"{LINE}\n".encode())
                        os._exit(STATUS)
            os.close(reading)

        threading.Thread(target=watch, daemon=True).start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(woken)
            for number, handler in before.items():
                signal.signal(number, handler)
            # Ends the thread.
            os.close(writing)
