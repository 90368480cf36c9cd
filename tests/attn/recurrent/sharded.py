"""A recurrence of one head over devices, each with a sequence."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P


def assert_shards(function, arrays):
    """Compares gradients in shard_map over two devices with those on one."""
    arrays = [jnp.asarray(np.stack([x, x[::-1]]), jnp.float32) for x in arrays]
    devices = jax.devices()[:2]
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,), devices=devices)
    specs = (P("x"),) * len(arrays)
    mapped = jax.vmap(function)
    sharded = jax.shard_map(mapped, mesh=mesh, in_specs=specs, out_specs=P("x"))

    def gradients(function):
        def total(*arrays):
            return (function(*arrays) ** 2).sum()

        return jax.jit(jax.grad(total, range(len(arrays))))(*arrays)

    for a, b in zip(gradients(sharded), gradients(mapped), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
