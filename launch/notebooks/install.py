"""Installs what attn needs beside JAX, which it leaves as it is: a TPU or GPU runtime has its own.

python launch/notebooks/install.py        in the folder that holds pyproject.toml
"""

import importlib.metadata
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

JAX = ("jax", "jaxlib")


def main() -> None:
    needed = tomllib.loads(Path("pyproject.toml").read_text())["project"]["dependencies"]
    there = {name: version(name) for name in JAX}
    least = next(re.search(r">=([\d.]+)", one)[1] for one in needed if re.match(r"jax\b", one))
    if there["jax"] is None or numbers(there["jax"]) < numbers(least):
        sys.exit(f"attn needs jax {least} or newer, and here is {there['jax'] or 'none'}. This installs no JAX: choose "
                 "a newer runtime, or install the JAX for your device yourself")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as pinned:
        pinned.write("".join(f"{name}=={found}\n" for name, found in there.items() if found))
        pinned.flush()
        others = [one for one in needed if not re.match(r"jax\b", one)]
        done = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--constraint", pinned.name, *others])
    if done.returncode:
        sys.exit(f"pip could not install what attn needs beside jax {there['jax']}; its own message is above")


def version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


if __name__ == "__main__":
    main()
