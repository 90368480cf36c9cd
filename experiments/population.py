"""The seam for devices: how one trial's step runs on all of them.

A step names its axis, `AXIS`, and sums over it; this file supplies the axis. `pmap` and `shard_map` are two
implementations of the same seam and give the same numbers; a batch is split by rows, everything else is on every
device.
"""

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "devices"


class DeviceError(ValueError):
    """The devices at hand cannot run what was asked; the message says what would."""


def distribute(step, *, strategy: str = "pmap", devices=None, donate: bool = True):
    """step(state, hyper, batch) -> (state, result), written for one device's rows of the batch, over `devices`.

    `step` must return the same state and result on every device, which it does by summing over `AXIS`. The state is
    donated unless `donate` is False. The default devices are this process's own.
    """
    devices = list(devices or jax.local_devices())
    donated = (0,) if donate else ()
    if strategy == "pmap":
        # The state is never stacked: in_axes=None puts one copy on each device, out_axes=None hands one back.
        run = jax.pmap(step, AXIS, in_axes=(None, None, 0), out_axes=(None, None), devices=devices,
                       donate_argnums=donated)
        split = _split
    elif strategy == "shard_map":
        mesh = Mesh(np.array(devices), (AXIS,))
        # check_vma would make the gradient's transpose sum over devices a second time: n_devices too large.
        run = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=(P(), P(), P(AXIS)), out_specs=(P(), P()),
                                    check_vma=False), donate_argnums=donated)
        split = _whole
    else:
        raise DeviceError(f"unknown strategy {strategy!r}; known: pmap, shard_map")

    def distributed(state, hyper, batch):
        return run(state, hyper, jax.tree.map(lambda x: split(x, len(devices)), batch))

    return distributed


def on_all_devices(tree, devices=None):
    """`tree` with a copy on each device: what a step takes, so that its first call compiles as every other."""
    mesh = Mesh(np.array(devices or jax.local_devices()), (AXIS,))
    return jax.device_put(tree, NamedSharding(mesh, P()))


def check_rows(rows: int, devices: int, accumulate: int = 1) -> None:
    """Raises DeviceError unless `rows` rows split evenly over `devices` devices, and there into `accumulate` parts."""
    if spare := -rows % (devices * accumulate):
        parts = f" times training.accumulate={accumulate}" if accumulate > 1 else ""
        raise DeviceError(f"training.rows={rows} must be divisible by the number of devices, {devices}{parts}: "
                          f"set training.rows to {rows + spare}")


def _split(x, n):
    return x.reshape(n, x.shape[0] // n, *x.shape[1:])


def _whole(x, n):
    return x
