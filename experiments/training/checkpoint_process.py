"""The checkpoints of a trial that several processes train, kept by a process that is none of them.

Orbax lets all processes of `jax.distributed` save together, into one file system. Here the first has the whole state
and the directory, which the others need not see; so a child of it, to which JAX has one process, does the saving.
"""

import functools
import os
import signal
from concurrent.futures import Future
from pathlib import Path

import jax

from experiments.system.process import Process
from experiments.training import multihost
from experiments.training.checkpoints import Checkpoints
from experiments.trial.program import State


def checkpoints(workdir: Path, keep: int | None):
    """`Checkpoints`, or a `Clerk` who has them."""
    return Clerk(workdir, keep) if multihost.several() else Checkpoints(workdir, keep)


class Clerk:
    """Has the methods of `Checkpoints`; arrays it returns are the host's. Saves go on while this process does."""

    def __init__(self, workdir: Path, keep: int | None):
        self._process, self._saving = Process(_begin, workdir, keep), None

    def __getattr__(self, name):
        return functools.partial(self._ask, name)

    def _ask(self, name, *arguments):
        # After the one before, whose error is raised here.
        if self._saving is not None:
            saving, self._saving = self._saving, None
            saving.result()
        asked: Future = self._process.submit(
            _do,
            name,
            *(jax.device_get(x) if isinstance(x, State) else x for x in arguments),
        )
        if name in ("save", "save_best"):
            self._saving = asked
            return None
        return asked.result()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        try:
            self._ask("__exit__", None, None, None)
        finally:
            self._process.stop()


_kept: list[Checkpoints] = []


def _begin(workdir, keep):
    signal.signal(
        signal.SIGTERM, signal.SIG_IGN
    )  # which whoever asks hears too, and may ask to save for
    os.environ["JAX_PLATFORMS"] = "cpu"
    jax.config.update("jax_platforms", "cpu")
    _kept.append(Checkpoints(workdir, keep))


def _do(name, *arguments):
    (one,) = _kept
    found = getattr(one, name)(
        *(jax.device_put(x) if isinstance(x, State) else x for x in arguments)
    )
    return jax.device_get(found)
