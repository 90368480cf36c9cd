"""What a trial saves to go on after an interruption: its state and its data iterator's, together, by orbax."""

import logging
from pathlib import Path

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp


class Checkpoints:
    """The newest `keep` checkpoints of one trial, in `directory`: written in the background, each whole or not at all.

    keep=None is for reading only, from a directory that a run may be writing to.
    A context manager: leaving it, by whatever way, waits for the save that is under way.
    """

    def __init__(self, directory: Path, keep: int | None):
        logging.getLogger("absl").setLevel(logging.ERROR)  # orbax reports every save at INFO
        # partial_load: reads what is asked for, and leaves the rest of a checkpoint on the disk.
        options = ocp.options.PyTreeOptions(loading=ocp.options.PyTreeOptions.Loading(partial_load=True))
        self._context = ocp.Context(pytree_options=options)
        self._checkpointer = ocp.training.Checkpointer(
            Path(directory).absolute(), preservation_policy=ocp.training.preservation_policies.LatestN(keep),
            cleanup_tmp_directories=keep is not None)
        self._saving = None

    def steps(self) -> list[int]:
        """The steps of all whole checkpoints, the newest last."""
        return sorted(found.step for found in self._checkpointer.checkpoints)

    def latest(self) -> int | None:
        """The step of the newest whole checkpoint, or None."""
        return max(self.steps(), default=None)

    def save(self, step: int, state, data: dict[str, int]) -> None:
        """Starts saving; waits first for the save before it, which orbax would otherwise skip this one for."""
        self.wait()
        if self.latest() != step:
            self._saving = self._checkpointer.save_checkpointables_async(step, dict(state=state, data=data), force=True)

    def restore(self, state):
        """(state, data) of the newest checkpoint, as a tree like the NamedTuple `state`, on its devices.

        Fields that are empty in `state` are not looked for, so that a checkpoint from before they existed can be read.
        """
        # numpy templates for the iterator: its two numbers come back as numbers.
        filled = {name: value for name, value in state._asdict().items() if jax.tree.leaves(value)}
        found = self._load(self.latest(), dict(state=shapes(filled), data=dict(epoch=0, batch=0)))
        return state._replace(**found["state"]), {name: int(np.asarray(value)) for name, value in found["data"].items()}

    def weights(self, name: str, state, count: int):
        """(`state` with the weights `name` for its parameters and position tables, the steps they come from).

        "raw": as they are; "average": of the last `count` checkpoints; "ema": the state's moving averages.
        """
        if name == "average":
            return self.average(state, count)
        return (state._replace(**state.ema) if name == "ema" else state), [int(state.step)]

    def average(self, state, count: int):
        """(`state` with the mean parameters and position tables of the last `count` checkpoints, their steps).

        Of those that there are, where they are fewer. The mean is taken in float64.
        """
        self.wait()
        steps, wanted = self.steps()[-count:], shapes(dict(params=state.params, positions=state.positions))
        sums = jax.tree.map(lambda x: np.zeros(x.shape), wanted)
        for step in steps:
            sums = jax.tree.map(lambda s, x: s + np.asarray(x), sums, self._load(step, dict(state=wanted))["state"])
        mean = jax.tree.map(lambda s, x: jax.device_put((s / len(steps)).astype(x.dtype), x.sharding), sums, wanted)
        return state._replace(**mean), steps

    def _load(self, step, wanted):
        with self._context:
            return self._checkpointer.load_checkpointables(step, wanted)

    def wait(self) -> None:
        if self._saving is not None:
            self._saving.result()
            self._saving = None

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.wait()
        self._checkpointer.close()


def shapes(tree):
    """`tree` without its numbers: what orbax needs to know to restore its like."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)
