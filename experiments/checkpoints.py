"""What a trial saves to go on after an interruption: its state and its data iterator's, together, by orbax."""

import logging
from pathlib import Path

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp

KEEP = 2


class Checkpoints:
    """The checkpoints of one trial, in `directory`: written in the background, each whole or not at all.

    A context manager: leaving it, by whatever way, waits for the save that is under way.
    """

    def __init__(self, directory: Path):
        logging.getLogger("absl").setLevel(logging.ERROR)  # orbax reports every save at INFO
        self._checkpointer = ocp.training.Checkpointer(
            Path(directory).absolute(), preservation_policy=ocp.training.preservation_policies.LatestN(KEEP),
            cleanup_tmp_directories=True)
        self._saving = None

    def latest(self) -> int | None:
        """The step of the newest whole checkpoint, or None."""
        found = self._checkpointer.latest
        return None if found is None else found.step

    def save(self, step: int, state, data: dict[str, int]) -> None:
        """Starts saving; waits first for the save before it, which orbax would otherwise skip this one for."""
        self.wait()
        if self.latest() != step:
            self._saving = self._checkpointer.save_checkpointables_async(step, dict(state=state, data=data), force=True)

    def restore(self, state):
        """(state, data) of the newest checkpoint, as a tree like `state`, on its devices."""
        # numpy templates for the iterator: its two numbers come back as numbers.
        data = dict(epoch=0, batch=0)
        found = self._checkpointer.load_checkpointables(self.latest(), dict(state=state, data=data))
        return found["state"], {name: int(np.asarray(value)) for name, value in found["data"].items()}

    def wait(self) -> None:
        if self._saving is not None:
            self._saving.result()
            self._saving = None

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.wait()
        self._checkpointer.close()


def shapes(state):
    """`state` without its numbers: what `restore` needs to know of it."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
