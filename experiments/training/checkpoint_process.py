"""Checkpoints of a trial on several processes, saved by a process that is none of them.

Orbax lets all processes of `jax.distributed` save together, into one file system. Here the
first process has the whole state and the directory, which the others need not see; so a
child of it, to which JAX has one process, saves.
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


def open_checkpoints(workdir: Path, keep: int | None, trial: str = ""):
    """Returns a trial's `Checkpoints`, in a `CheckpointProcess` where there are several."""
    kind = CheckpointProcess if multihost.several() else Checkpoints
    return kind(workdir, keep, trial)


class CheckpointProcess:
    """Has the methods of `Checkpoints`, which run in a child process.

    Arrays that they return are the host's. A save goes on while this process does; the next
    call waits for it, and raises its error.
    """

    def __init__(self, workdir: Path, keep: int | None, trial: str = ""):
        self._process = Process(_begin, workdir, keep, trial)
        self._saving = None

    def __getattr__(self, name):
        return functools.partial(self._call, name)

    def _call(self, name, *arguments):
        if self._saving is not None:
            saving = self._saving
            self._saving = None
            saving.result()
        # The child has none of the trial's devices.
        on_host = [jax.device_get(x) if isinstance(x, State) else x for x in arguments]
        result: Future = self._process.submit(_do, name, *on_host)
        if name in ("save", "save_best"):
            self._saving = result
            return None
        return result.result()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        try:
            self._call("__exit__", None, None, None)
        finally:
            self._process.stop()


_opened: list[Checkpoints] = []
"""The child process's checkpoints."""


def _begin(workdir, keep, trial):
    # The parent gets SIGTERM too, and may then ask for a save.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # The trial's devices are the parent's.
    os.environ["JAX_PLATFORMS"] = "cpu"
    # JAX is imported by now, and has read the variable already.
    jax.config.update("jax_platforms", "cpu")
    _opened.append(Checkpoints(workdir, keep, trial))


def _do(name, *arguments):
    (checkpoints,) = _opened
    on_device = [jax.device_put(x) if isinstance(x, State) else x for x in arguments]
    return jax.device_get(getattr(checkpoints, name)(*on_device))
