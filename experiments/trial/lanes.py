"""The seam for devices: how the steps of several trials run on all of them.

Steps are written for one trial and sum over the axis `AXIS`, which this file supplies. With
one trial, each device has its share of a batch's rows, and AXIS is that of the devices; with
more trials, each device has its share of the lanes, `vmap` runs them side by side, and AXIS
has length 1. `pmap` and `shard_map` implement the same seam and give the same numbers.

L lanes on D devices are in G groups of L / G: G = D, or 1 for a single lane. Arrays of
trials have these two axes first. K steps of a dispatch, S slots for pairs in a row.
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
    """Raised when the devices cannot run what was asked; the message says what would."""


class Lanes(NamedTuple):
    """The places of a population's trials on devices.

    A single trial may be on the devices of several processes, each of which has all arrays
    for its own devices.
    """

    count: int = 1
    strategy: str = "pmap"
    devices: tuple | None = None
    """This process's own where None."""

    @property
    def mesh(self) -> Mesh:
        devices = np.array(self.devices or jax.local_devices())
        return Mesh(devices, (AXIS if self.count == 1 else GROUPS,))

    @property
    def own(self) -> Mesh:
        """The devices of the mesh that are this process's."""
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
        """Returns the group of a lane, and its number in the group."""
        return divmod(lane, self.count // self.groups)

    def own_rows(self, slots: np.ndarray) -> np.ndarray:
        """Returns the rows of batches (..., rows, S) that this process's devices have."""
        own = self.own.devices.tolist()
        if len(own) == self.mesh.size:
            return slots
        shares = np.split(slots, self.mesh.size, axis=-2)
        placed = zip(shares, self.mesh.devices, strict=True)
        return np.concatenate(
            [rows for rows, device in placed if device in own], axis=-2
        )

    def share(self, tree):
        """Copies `tree`, which all lanes read, to each device."""
        return jax.device_put(tree, NamedSharding(self.own, P()))

    def stack(self, trees: Sequence):
        """Puts the trees of all lanes onto the devices, each array as (G, L / G, ...)."""

        def stack(*leaves):
            size = self.count // self.groups
            # By numpy, because all states together may not fit on one device.
            return np.stack(leaves).reshape(self.groups, size, *np.shape(leaves[0]))

        stacked = jax.tree.map(stack, *trees)
        return jax.device_put(stacked, NamedSharding(self.own, self.spread))

    @property
    def spread(self) -> P:
        """How arrays of trials are spread over the mesh."""
        return P() if self.count == 1 else P(GROUPS)


def distribute(
    steps: Callable, lanes: Lanes = Lanes(), *, donate: bool = True
) -> Callable:
    """Returns run(states, hypers, corpus, slots, count) -> (states, metrics) of a population.

    `steps(state, hyper, corpus, slots, count)` is of one trial, over one device's rows of
    its slots (K, rows, S), and returns the same on every device of AXIS. Here slots are
    (L, K, rows, S): in each of several processes its own rows, and numbers of pairs in its
    own corpus. The states are donated unless `donate` is False.

    Raises DeviceError for an unknown strategy and for lanes that do not split over the
    devices.
    """
    run = on_devices(steps, lanes, donate=donate)
    own_devices = lanes.own.size
    split = _split_rows if lanes.count == 1 else _split_lanes

    def distributed(states, hypers, corpus, slots, count):
        return run(states, hypers, corpus, split(slots, own_devices), np.int32(count))

    return distributed


def on_devices(
    steps: Callable, lanes: Lanes = Lanes(), *, donate: bool = True
) -> Callable:
    """Returns what `distribute` does for slots that are split over the devices already.

    They are (D, L / G, K, rows, S), each device's own rows of its lanes. Raises DeviceError
    as `distribute` does.
    """
    check_lanes(lanes.count, lanes.mesh.size)
    side_by_side = _side_by_side(
        steps if lanes.count == 1 else _alone(steps), lanes, (0, 0, None, 0, None)
    )
    options = dict(donate_argnums=(0,) if donate else ())
    if lanes.strategy == "pmap":
        return _pmap(side_by_side, lanes, options)
    if lanes.strategy == "shard_map":
        return _shard_map(side_by_side, lanes, options)
    known = ", ".join(STRATEGIES)
    raise DeviceError(f"unknown strategy {lanes.strategy!r}; known: {known}")


def _one_group(side_by_side):
    """Returns `side_by_side` for arrays of trials with the axis of groups, of length 1."""

    def run(states, hypers, corpus, slots, count):
        states = _without_axis(states)
        hypers = _without_axis(hypers)
        return _with_axis(side_by_side(states, hypers, corpus, slots, count))

    return run


def _pmap(side_by_side, lanes, options):
    options = options | dict(devices=lanes.mesh.devices.tolist())
    if lanes.count > 1:
        axes = (0, 0, None, 0, None)
        return jax.pmap(side_by_side, GROUPS, in_axes=axes, **options)
    # The state is never stacked: in_axes=None puts one copy on each device, and
    # out_axes=None hands one back.
    axes = (None, None, None, 0, None)
    run = _one_group(side_by_side)
    return jax.pmap(run, AXIS, in_axes=axes, out_axes=None, **options)


def _shard_map(side_by_side, lanes, options):
    mesh = lanes.mesh
    several = lanes.own.size < mesh.size
    whole = _one_group(side_by_side)

    def of_device(states, hypers, corpus, slots, count):
        return whole(states, hypers, corpus, _without_axis(slots), count)

    # Processes may have different excerpts, so that is no replicated array.
    of_corpus = P(mesh.axis_names) if several else P()
    specs = (lanes.spread, lanes.spread, of_corpus, P(mesh.axis_names), P())
    # check_vma would make the gradient's transpose sum over devices a second time: it would
    # be n_devices times too large.
    sharded = jax.shard_map(
        of_device, mesh=mesh, in_specs=specs, out_specs=lanes.spread, check_vma=False
    )
    run = jax.jit(sharded, **options)
    return _among_processes(run, lanes, specs) if several else run


def over_lanes(function: Callable, lanes: Lanes = Lanes()) -> Callable:
    """Returns run(states, *shared) -> results (L, ...), of function(state, *shared)."""

    def run(states, *shared):
        axes = (0, *[None] * len(shared))
        side_by_side = _side_by_side(function, lanes, axes)
        if lanes.groups == 1:
            return side_by_side(_without_axis(states), *shared)
        results = jax.vmap(side_by_side, axes)(states, *shared)
        return jax.tree.map(lambda x: x.reshape(lanes.count, *x.shape[2:]), results)

    return jax.jit(run)


@jax.jit
def take_lane(states, place: tuple[int, int]):
    """Returns one trial's arrays of a population's."""
    # `place` is traced, so that all lanes share one compiled program.
    return jax.tree.map(lambda x: x[place], states)


@jax.jit
def put_lane(states, place: tuple[int, int], state):
    """Returns a population's arrays with one trial's replaced."""
    return jax.tree.map(lambda x, own: x.at[place].set(own), states, state)


def check_lanes(lanes: int, devices: int) -> None:
    """Raises DeviceError unless `lanes` lanes split evenly over `devices` devices."""
    if lanes > 1 and (spare := -lanes % devices):
        raise DeviceError(
            f"{lanes} lanes must be divisible by the number of devices, {devices}: "
            f"take {lanes + spare}"
        )


def check_batch_size(rows: int, devices: int, accumulate: int = 1) -> None:
    """Raises DeviceError unless rows split over devices, and there into `accumulate` parts."""
    if spare := -rows % (devices * accumulate):
        parts = f" times training.accumulate={accumulate}" if accumulate > 1 else ""
        raise DeviceError(
            f"training.batch_size={rows} must be divisible by the number of devices, "
            f"{devices}{parts}: set training.batch_size to {rows + spare}"
        )


def _side_by_side(function, lanes, axes):
    """Returns `function` for the lanes of one device; arguments with axis 0 are theirs."""
    if lanes.count > lanes.groups:
        return jax.vmap(function, axes)

    # One lane, without vmap, for which XLA would find slower kernels.
    def run(*arguments):
        of_lane = [
            _without_axis(x) if axis == 0 else x
            for x, axis in zip(arguments, axes, strict=True)
        ]
        return _with_axis(function(*of_lane))

    return run


def _among_processes(run, lanes, specs):
    """Returns `run`, which takes arrays of the whole mesh, for this process's own arrays."""

    def local(states, hypers, corpus, slots, count):
        slots = jax.device_put(slots, NamedSharding(lanes.own, specs[3]))
        of_process = (states, hypers, corpus, slots)
        arrays = [
            _over(lanes.mesh, spec, tree)
            for spec, tree in zip(specs[:4], of_process, strict=True)
        ]
        return _over(lanes.own, P(), run(*arrays, count))

    return local


def _over(mesh, spec, tree):
    """Makes arrays of `mesh` from those of this process's devices.

    Where `spec` splits an array, the devices' parts follow one another.
    """

    def joined(x):
        parts = [shard.data for shard in x.addressable_shards]
        shape = parts[0].shape
        if spec != P():
            shape = (mesh.size * shape[0], *shape[1:])
        # Nothing is copied: each process names the parts that its devices have already.
        return jax.make_array_from_single_device_arrays(
            shape, NamedSharding(mesh, spec), parts
        )

    return jax.tree.map(joined, tree)


def _alone(steps):
    """Returns `steps` with an AXIS of its own, of length 1."""
    axes = (None, None, None, 0, None)
    # Steps sum over AXIS, which devices have only where a single trial is on them.
    mapped = jax.vmap(steps, axes, out_axes=None, axis_name=AXIS)

    def run(state, hyper, corpus, slots, count):
        return mapped(state, hyper, corpus, slots[None], count)

    return run


def _with_axis(tree):
    return jax.tree.map(lambda x: x[None], tree)


def _without_axis(tree):
    return jax.tree.map(lambda x: x[0], tree)


def _split_rows(slots, devices):
    """Splits (1, K, rows, S) into (D, 1, K, rows / D, S)."""
    _, count, rows, places = slots.shape
    split = slots.reshape(1, count, devices, rows // devices, places)
    return np.moveaxis(split, 2, 0)


def _split_lanes(slots, devices):
    """Splits (L, K, rows, S) into (D, L / D, K, rows, S)."""
    return slots.reshape(devices, -1, *slots.shape[1:])
