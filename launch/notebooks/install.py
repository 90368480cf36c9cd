"""Installs what attn needs beside JAX, which it leaves as the runtime has it.

python -m launch.notebooks.install        after attn itself was installed without its dependencies

The notebooks do so by themselves.
Where the runtime's JAX is older than attn can use, it installs that of attn's lock file
for the runtime's device, and asks for a restart.
"""

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

JAX = ("jax", "jaxlib")
EXTRA = "experiments"


def main() -> None:
    """Installs attn's dependencies.

    Exits with one line where pip fails, and where the runtime must be restarted.
    """
    needed = requirements()
    others = [line for line in needed if not is_jax(line)]
    least = next(re.search(r">=([\d.]+)", line)[1] for line in needed if is_jax(line))
    there = version("jax")
    if there is not None and numbers(there) >= numbers(least):
        pinned = [f"{name}=={version(name)}" for name in JAX if version(name)]
        return pip_install(others, pinned)
    wanted = jax_of_device()
    pip_install([wanted, *others], locked_jax())
    sys.exit(
        f"attn needs jax {least} or newer, and here was {there or 'none'}: {wanted} of attn's "
        "lock file is installed now. Restart the runtime, then go on"
    )


def requirements() -> list[str]:
    """Returns the requirements of the installed attn and of its experiments."""
    chosen = []
    for line in importlib.metadata.requires("attn") or []:
        requirement, _, marker = line.partition(";")
        extra = re.search(r"extra == ['\"](.+?)['\"]", marker)
        if extra is None or extra[1] == EXTRA:
            chosen.append(requirement.strip())
    return chosen


def missing() -> list[str]:
    """Returns the requirements of attn that are not there, or too old."""
    return [line for line in requirements() if not _is_there(line)]


def _is_there(line):
    name = re.match(r"[\w.-]+", line)[0]
    least = re.search(r">=([\d.]+)", line)
    there = version(name)
    return there is not None and (not least or numbers(there) >= numbers(least[1]))


def jax_of_device() -> str:
    """Returns the JAX that can use the runtime's device."""
    if version("libtpu") is not None:
        return "jax[tpu]"
    return "jax[cuda12]" if shutil.which("nvidia-smi") else "jax"


def locked_jax() -> list[str]:
    """Returns the lines of the lock file that name JAX's versions, one for each Python."""
    # The wheel has a copy beside this file, a checkout has the file itself.
    folders = (Path(__file__).parent, Path(__file__).parents[2])
    paths = [folder / "requirements.lock" for folder in folders]
    path = next(path for path in paths if path.exists())
    lines = path.read_text().splitlines()
    return [line.rstrip(" \\") for line in lines if re.match(r"(jax|jaxlib)==", line)]


def pip_install(wanted: Iterable[str], pinned: Iterable[str]) -> None:
    """Installs `wanted` with the versions of `pinned`, or exits with one line."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.writelines(f"{line}\n" for line in pinned)
        file.flush()
        pip = [sys.executable, "-m", "pip", "install", "--quiet"]
        done = subprocess.run([*pip, "--constraint", file.name, *wanted])
    if done.returncode:
        sys.exit("pip could not install what attn needs; its own message is above")


def version(name: str) -> str | None:
    """Returns the installed version of a package, None where there is none."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def is_jax(requirement: str) -> bool:
    return re.match(r"jax\b", requirement) is not None


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


if __name__ == "__main__":
    main()
