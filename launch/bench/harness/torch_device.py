"""What adapters of PyTorch share: its device, its threads and its memory there."""

import os
from collections.abc import Callable

import torch

from launch.bench.harness.libraries import platform
from launch.bench.harness.worker import peak_growth

# A TPU is of another package, and PyTorch stays on the CPU.
DEVICE = torch.device("cuda" if platform() == "cuda" else "cpu")

# PyTorch would take all cores otherwise, whatever the others have.
torch.set_num_threads(int(os.environ["NPROC"]))
if DEVICE.type == "cuda":
    # JAX rounds the factors of float32 products to TF32; PyTorch does so when asked.
    torch.set_float32_matmul_precision("high")


def wait(result) -> None:
    """Returns when the device has done all that it was given, `result` too."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def growth(run: Callable) -> int | None:
    """Returns by how many bytes memory peaks in a call of `run`, a GPU's or the process's."""
    if DEVICE.type != "cuda":
        return peak_growth(run)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    wait(run())
    return torch.cuda.max_memory_allocated() - before
