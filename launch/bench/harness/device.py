"""The device that libraries are compared on: the CPU, or what JAX_PLATFORMS names."""

import os

CPU = "cpu"


def platform() -> str:
    """Returns "cpu", "cuda" or "tpu"."""
    first = os.environ.get("JAX_PLATFORMS", "").partition(",")[0]
    return {"": CPU, "gpu": "cuda"}.get(first, first)


def environment() -> dict[str, str]:
    """Returns the variables of a process that computes there beside others."""
    # JAX would take three quarters of a GPU's memory, whatever it needs.
    return {"JAX_PLATFORMS": platform(), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
