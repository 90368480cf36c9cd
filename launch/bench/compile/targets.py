"""Names the devices to compile for.

libtpu compiles for a TPU and JAX's CUDA plugin for a GPU without having one, from a
description of the device (`jax.experimental.topologies`).
"""

import dataclasses
import math
import os

import jax
from jax.experimental import topologies

GIBIBYTE = 2**30

# What XLA knows of an H100 from the device itself, as the text of its GpuTargetConfigProto.
_H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 core_count: 132 fpus_per_core: 128
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472 threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 84929347584 cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA" device_description_str: "NVIDIA H100 80GB HBM3"
dnn_version_info { major: 9 minor: 10 } runtime_version { major: 12 minor: 9 }
"""


@dataclasses.dataclass(frozen=True)
class Target:
    """Holds one kind of device, and how many of them share a program."""

    platform: str
    """"tpu" or "gpu"."""
    memory: int
    """Bytes of a device."""
    topology: str
    """The name that the compiler has for the devices."""
    bounds: tuple[int, int, int] = (1, 1, 1)
    """The chips of a TPU host, along each axis."""

    @property
    def count(self) -> int:
        """Returns how many devices share a program."""
        return math.prod(self.bounds)

    @property
    def lowering(self) -> str:
        """Returns the name that JAX has for the platform when it lowers."""
        return "cuda" if self.platform == "gpu" else self.platform

    def devices(self) -> list[jax.Device]:
        """Returns the devices, which can be compiled for and do not run."""
        # Neither compiler is to look for devices of this machine; but JAX must have looked
        # for its plugins, of which CUDA's has the compiler.
        jax.config.update("jax_platforms", "cpu")
        jax.devices()
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
        os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
        os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
        if self.platform == "gpu":
            options = dict(target_config=_H100, topology=self.topology)
            description = topologies.get_topology_desc(platform="cuda", **options)
        else:
            description = topologies.get_topology_desc(
                platform="tpu",
                topology_name=self.topology,
                chips_per_host_bounds=self.bounds,
            )
        return list(description.devices)


TARGETS = {
    "v5e": Target("tpu", 16 * GIBIBYTE, "v5e:1x1"),
    "v5e-4": Target("tpu", 16 * GIBIBYTE, "v5e:2x2", (2, 2, 1)),
    "v6e": Target("tpu", 32 * GIBIBYTE, "v6e:1x1"),
    "v6e-4": Target("tpu", 32 * GIBIBYTE, "v6e:2x2", (2, 2, 1)),
    "h100": Target("gpu", 79 * GIBIBYTE, "1x1x1"),
}
