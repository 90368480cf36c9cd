"""Being told to stop, by SIGTERM or Ctrl-C: what is under way is saved, and the process ends with status STATUS.

A signal only leaves word; whoever has something to save asks for it at moments of his own, with `check`. A process
that has nothing to save ends at once, even in the middle of a compilation, and so does any at the second signal.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Sequence

STATUS = os.EX_TEMPFAIL
"""75: schedulers can be told to start a command again that ends with it."""


LINE = "interrupted; the same command goes on from here"


class Interrupted(BaseException):
    """The process was told to stop, and what was to be saved is. No Exception, lest it be taken for a trial's failure."""


class Interruption:
    """Word that a process is to stop.

    Attributes:
        asked: whether there is such word.
        unsaved: whether something would be lost if the process ended now; set by who has it.
    """

    def __init__(self):
        self.asked = self.unsaved = False

    def check(self) -> None:
        """Raises Interrupted once the process is told to stop."""
        if self.asked:
            raise Interrupted

    @contextlib.contextmanager
    def listening(
        self,
        signals: Sequence[int] = (signal.SIGTERM, signal.SIGINT),
        alone: bool = True,
    ) -> Iterator[None]:
        """In this `with` block, in the main thread, the signals are word to stop, and a second one ends the process.

        One that is not `alone` has a parent that tells it, waits for it and speaks for it: a scheduler may have told
        it too, so that a second signal means nothing.
        """
        # A handler of Python's waits while the main thread compiles or computes; a thread that Python wakes does not.
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        before = {number: signal.signal(number, lambda *_: None) for number in signals}
        woken = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

        def watch():
            while heard := os.read(reading, 1):
                if heard[0] in signals:
                    again, self.asked = self.asked, True
                    if not self.unsaved or (alone and again):
                        if alone:
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
            os.close(writing)  # which ends the thread
