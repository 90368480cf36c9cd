"""What a notebook begins with: which versions, which devices, and whether they are
those that were asked for."""

import json
import subprocess
import sys

DEVICES = ("any", "cpu", "gpu", "tpu")
_LOOK = """
import json, sys, flax, jax, jaxlib
devices = jax.devices()
versions = {module.__name__: module.__version__ for module in (jax, jaxlib, flax)}
versions = {"python": sys.version.split()[0], **versions}
backend = jax.default_backend()
kind = devices[0].device_kind
print(json.dumps(dict(backend=backend, kind=kind, count=len(devices), versions=versions)))
"""


def start(device: str = "any") -> dict:
    """Prints versions and devices, and returns them; `device` is the one that must be there.

    Another process looks, and this one does not take the devices: a TPU belongs to one
    process at a time, and the commands that a notebook calls want it.

    Raises ValueError for another name, and RuntimeError where the device is not there
    or JAX cannot start.
    """
    if device not in DEVICES:
        raise ValueError(f"device={device!r}: give one of {', '.join(DEVICES)}")
    looked = subprocess.run(
        [sys.executable, "-c", _LOOK], capture_output=True, text=True
    )
    if looked.returncode:
        raise RuntimeError(
            "JAX does not start here: "
            + (looked.stderr.strip().splitlines() or ["no message"])[-1]
        )
    found = json.loads(looked.stdout.splitlines()[-1])
    print(", ".join(f"{name} {version}" for name, version in found["versions"].items()))
    print(f"{found['count']} × {found['kind']} ({found['backend']})")
    if device not in ("any", found["backend"]):
        extra = dict(gpu="cuda").get(device, device)
        raise RuntimeError(
            f"a {device.upper()} was asked for, and JAX sees {found['count']} × "
            f"{found['kind']}. In Colab: Runtime → Change runtime type → "
            f"{device.upper()}, and run the notebook again; elsewhere install the JAX for "
            f"it, pip install '.[{extra}]'; or set DEVICE = \"any\""
        )
    return found
