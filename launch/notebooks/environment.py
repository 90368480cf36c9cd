"""What notebooks call: the versions and devices at hand, attn's commands, a run's report."""

import base64
import datetime
import json
import subprocess
import sys
from pathlib import Path

from launch.notebooks import install

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
    """Prints the day, versions and devices, and returns what it found.

    `device` is the one that must be there.

    Another process looks, and this one does not take the devices: a TPU belongs to one
    process at a time, and the commands that a notebook calls want it.

    What attn needs beside JAX is installed where it is missing.

    Raises ValueError for another name, and RuntimeError where the device is not there
    or JAX cannot start.
    """
    if device not in DEVICES:
        raise ValueError(f"device={device!r}: give one of {', '.join(DEVICES)}")
    if missing := install.missing():
        print(f"installing {', '.join(missing)}")
        install.main()
    looked = subprocess.run(
        [sys.executable, "-c", _LOOK], capture_output=True, text=True
    )
    if looked.returncode:
        raise RuntimeError(
            "JAX does not start here: "
            + (looked.stderr.strip().splitlines() or ["no message"])[-1]
        )
    found = json.loads(looked.stdout.splitlines()[-1])
    versions = ", ".join(
        f"{name} {version}" for name, version in found["versions"].items()
    )
    print(f"run on {datetime.date.today()} with {versions}")
    print(f"attn {install.version('attn')} in {Path(__file__).parents[2]}")
    print(f"{found['count']} × {found['kind']} ({found['backend']})")
    if device not in ("any", found["backend"]):
        extra = dict(gpu="cuda12").get(device, device)
        raise RuntimeError(
            f"a {device.upper()} was asked for, and JAX sees {found['count']} × "
            f"{found['kind']}. In Colab: Runtime → Change runtime type → "
            f"{device.upper()}, and run the notebook again; in a checkout, make install "
            f'EXTRAS={extra}; or set DEVICE = "any"'
        )
    return found


def command(*words: str, text: str = "") -> None:
    """Runs a command of attn, such as "launch.train", and prints what it says as it comes.

    `text` is its standard input. Raises RuntimeError where the command fails.
    """
    with subprocess.Popen(
        [sys.executable, "-m", *words],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        process.stdin.write(text)
        process.stdin.close()
        for line in process.stdout:
            print(line, end="")
    if process.returncode:
        raise RuntimeError(
            f"{words[0]} ended with status {process.returncode}; what it said is above"
        )


def report_frame(workdir: str | Path, height: int = 800):
    """Returns the report of a run or sweep as a frame that a notebook shows."""
    # Commands and tests import this module where there is no IPython.
    from IPython.display import IFrame

    page = Path(workdir, "report.html").read_bytes()
    # Colab does not serve files to a page, so the frame brings its own.
    address = f"data:text/html;base64,{base64.b64encode(page).decode()}"
    return IFrame(address, width="100%", height=height)
