"""Checkpoints of a trial on several processes, saved by a process that is none of them.

Orbax saves from all processes of `jax.distributed` together, into one file system: its
Checkpointer raises NotImplementedError for one of several, and `save` waits for all. Here
the first process has the whole state and the directory, which the others need not see; so
a child of it, to which JAX has one process, saves.
"""

import functools
import os
import signal
from pathlib import Path

import jax

from experiments.system.process import Process
from experiments.training import multihost
from experiments.training.checkpoints import Checkpoints


def open_checkpoints(workdir: Path, keep: int | None, trial: str = ""):
    """Returns a trial's `Checkpoints`, in a `CheckpointProcess` where there are several."""
    kind = CheckpointProcess if multihost.several() else Checkpoints
    return kind(workdir, keep, trial)


class CheckpointProcess:
    """Has the methods of `Checkpoints`, which run in a child process.

    What `save` starts goes on while this process does. The next call raises its error.
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
        result = self._process.submit(_do, name, *jax.device_get(arguments))
        if name == "save":
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
    return getattr(checkpoints, name)(*arguments)
