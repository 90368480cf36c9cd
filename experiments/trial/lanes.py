"""The seam for devices: how the steps of several trials run on all of them.

Steps are written for one trial and sum over the axis `AXIS`, which this file supplies. Of a population of one trial,
each device has its share of a batch's rows, and AXIS is that of the devices; of more trials, each device has its share
of the lanes, `vmap` runs them side by side, and AXIS has length 1. `pmap` and `shard_map` are two implementations of
the same seam and give the same numbers.

L lanes on D devices are in G groups of L / G: G = D, or 1 for a single lane. What belongs to a trial has these two
axes first.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from experiments.errors import UserError

AXIS = "devices"


GROUPS = "groups"


STRATEGIES = ("pmap", "shard_map")


class DeviceError(UserError):
    """The devices at hand cannot run what was asked; the message says what would."""


class Lanes(NamedTuple):
    """Where the trials of a population are; `devices` are this process's own where None. A single one may be on those
    of several processes, each of which has all arrays for its own devices."""

    count: int = 1
    strategy: str = "pmap"
    devices: tuple | None = None

    @property
    def mesh(self) -> Mesh:
        return Mesh(
            np.array(self.devices or jax.local_devices()),
            (AXIS if self.count == 1 else GROUPS,),
        )

    @property
    def own(self) -> Mesh:
        """Those of the mesh that are this process's."""
        devices = [
            device
            for device in self.mesh.devices
            if device.process_index == jax.process_index()
        ]
        return Mesh(np.array(devices), self.mesh.axis_names)

    @property
    def groups(self) -> int:
        return 1 if self.count == 1 else self.mesh.size

    def place(self, lane: int) -> tuple[int, int]:
        """The group of a lane, and its number there."""
        return divmod(lane, self.count // self.groups)

    def own_rows(self, slots: np.ndarray) -> np.ndarray:
        """The rows of batches (..., rows, S) that this process's devices have."""
        own = self.own.devices.tolist()
        if len(own) == self.mesh.size:
            return slots
        shares = zip(
            np.split(slots, self.mesh.size, axis=-2), self.mesh.devices, strict=True
        )
        return np.concatenate(
            [rows for rows, device in shares if device in own], axis=-2
        )

    def share(self, tree):
        """`tree` with a copy on each device: what all lanes read."""
        return jax.device_put(tree, NamedSharding(self.own, P()))

    def stack(self, trees: Sequence):
        """What belongs to one trial, for each of the population."""
        stacked = jax.tree.map(
            lambda *x: np.stack(x).reshape(
                self.groups, self.count // self.groups, *np.shape(x[0])
            ),
            *trees,
        )
        return jax.device_put(stacked, NamedSharding(self.own, self.spread))

    @property
    def spread(self) -> P:
        """How what belongs to trials is spread over the mesh."""
        return P() if self.count == 1 else P(GROUPS)


def distribute(
    steps: Callable, lanes: Lanes = Lanes(), *, donate: bool = True
) -> Callable:
    """run(states, hypers, corpus, slots, count) -> (states, metrics) of a population.

    `steps(state, hyper, corpus, slots, count)` is of one trial, over one device's rows of its slots (K, rows, S), and
    returns the same on every device of AXIS. Here slots are (L, K, rows, S), of several processes each one's own rows,
    and numbers of pairs in its own corpus. The states are donated unless `donate` is False.

    Raises DeviceError for an unknown strategy and for lanes that do not split over the devices.
    """
    single, mesh, spread = lanes.count == 1, lanes.mesh, lanes.spread
    here, several = lanes.own.size, lanes.own.size < mesh.size
    check_lanes(lanes.count, mesh.size)
    side_by_side = _side_by_side(
        steps if single else _alone(steps), lanes, (0, 0, None, 0, None)
    )

    def whole(states, hypers, corpus, slots, count):
        return _with_axis(
            side_by_side(*map(_without_axis, (states, hypers)), corpus, slots, count)
        )

    options = dict(donate_argnums=(0,) if donate else ())
    if lanes.strategy == "pmap":
        options |= dict(devices=mesh.devices.tolist())
        if single:
            # The state is never stacked: in_axes=None puts one copy on each device, out_axes=None hands one back.
            run = jax.pmap(
                whole,
                AXIS,
                in_axes=(None, None, None, 0, None),
                out_axes=None,
                **options,
            )
        else:
            run = jax.pmap(
                side_by_side, GROUPS, in_axes=(0, 0, None, 0, None), **options
            )
    elif lanes.strategy == "shard_map":
        specs = (
            spread,
            spread,
            P(mesh.axis_names) if several else P(),
            P(mesh.axis_names),
            P(),
        )
        # check_vma would make the gradient's transpose sum over devices a second time: n_devices too large.
        run = jax.jit(
            jax.shard_map(
                lambda states, hypers, corpus, slots, count: whole(
                    states, hypers, corpus, _without_axis(slots), count
                ),
                mesh=mesh,
                in_specs=specs,
                out_specs=spread,
                check_vma=False,
            ),
            **options,
        )
        run = _among_processes(run, lanes, specs) if several else run
    else:
        raise DeviceError(
            f"unknown strategy {lanes.strategy!r}; known: {', '.join(STRATEGIES)}"
        )

    def distributed(states, hypers, corpus, slots, count):
        split = (_split_rows if single else _split_lanes)(slots, here)
        return run(states, hypers, corpus, split, np.int32(count))

    return distributed


def over_lanes(function: Callable, lanes: Lanes = Lanes()) -> Callable:
    """run(states, *shared) -> results, lanes first, of function(state, *shared) of one trial."""

    def run(states, *shared):
        axes = 0, *(None for _ in shared)
        side_by_side = _side_by_side(function, lanes, axes)
        if lanes.groups == 1:
            return side_by_side(_without_axis(states), *shared)
        results = jax.vmap(side_by_side, axes)(states, *shared)
        return jax.tree.map(lambda x: x.reshape(lanes.count, *x.shape[2:]), results)

    return jax.jit(run)


@jax.jit
def take_lane(states, place: tuple[int, int]):
    """One trial's own of a population."""
    return jax.tree.map(lambda x: x[place], states)


@jax.jit
def put_lane(states, place: tuple[int, int], state):
    """The population with one trial's own replaced."""
    return jax.tree.map(lambda x, own: x.at[place].set(own), states, state)


def check_lanes(lanes: int, devices: int) -> None:
    """Raises DeviceError unless `lanes` lanes split evenly over `devices` devices."""
    if lanes > 1 and (spare := -lanes % devices):
        raise DeviceError(
            f"{lanes} lanes must be divisible by the number of devices, {devices}: take {lanes + spare}"
        )


def check_batch_size(rows: int, devices: int, accumulate: int = 1) -> None:
    """Raises DeviceError unless `rows` rows split evenly over `devices` devices, and there into `accumulate` parts."""
    if spare := -rows % (devices * accumulate):
        parts = f" times training.accumulate={accumulate}" if accumulate > 1 else ""
        raise DeviceError(
            f"training.batch_size={rows} must be divisible by the number of devices, {devices}{parts}: "
            f"set training.batch_size to {rows + spare}"
        )


def _side_by_side(function, lanes, axes):
    """`function` for the lanes of one device; axes of 0 are theirs."""
    if lanes.count > lanes.groups:
        return jax.vmap(function, axes)
    # One lane, without vmap, for which XLA would find slower kernels.
    return lambda *args: _with_axis(
        function(
            *(
                _without_axis(x) if axis == 0 else x
                for x, axis in zip(args, axes, strict=True)
            )
        )
    )


def _among_processes(run, lanes, specs):
    """`run`, whose arrays are the whole mesh's, of arrays that are this process's own."""

    def local(states, hypers, corpus, slots, count):
        slots = jax.device_put(slots, NamedSharding(lanes.own, specs[3]))
        mine = states, hypers, corpus, slots
        found = run(
            *(
                _over(lanes.mesh, spec, tree)
                for spec, tree in zip(specs, mine, strict=False)
            ),
            count,
        )
        return _over(lanes.own, P(), found)

    return local


def _over(mesh, spec, tree):
    """Arrays of `mesh` made of what each of this process's devices has; those that `spec` splits, one after another."""

    def joined(x):
        parts = [shard.data for shard in x.addressable_shards]
        shape = parts[0].shape
        if spec != P():
            shape = (mesh.size * shape[0], *shape[1:])
        return jax.make_array_from_single_device_arrays(
            shape, NamedSharding(mesh, spec), parts
        )

    return jax.tree.map(joined, tree)


def _alone(steps):
    """`steps` with an AXIS of its own, of length 1."""

    def run(state, hyper, corpus, slots, count):
        one = jax.vmap(
            steps, (None, None, None, 0, None), out_axes=None, axis_name=AXIS
        )
        return one(state, hyper, corpus, slots[None], count)

    return run


def _with_axis(tree):
    return jax.tree.map(lambda x: x[None], tree)


def _without_axis(tree):
    return jax.tree.map(lambda x: x[0], tree)


def _split_rows(slots, devices):
    """(1, K, rows, S) as (D, 1, K, rows / D, S)."""
    _, count, rows, most = slots.shape
    return np.moveaxis(slots.reshape(1, count, devices, rows // devices, most), 2, 0)


def _split_lanes(slots, devices):
    return slots.reshape(devices, -1, *slots.shape[1:])
