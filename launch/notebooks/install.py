"""Installs what attn needs beside JAX, which it leaves as it is: a TPU or GPU runtime has its own.

python -m launch.notebooks.install        after attn itself was installed without its dependencies
"""

import importlib.metadata
import re
import subprocess
import sys
import tempfile

JAX = ("jax", "jaxlib")


def main() -> None:
    """Installs attn's dependencies, with the versions of JAX pinned to those that are here.

    Exits with one line where JAX is missing or too old, and where pip fails.
    """
    needed = requirements()
    installed = {name: version(name) for name in JAX}
    jax = installed["jax"]
    least = next(re.search(r">=([\d.]+)", line)[1] for line in needed if is_jax(line))
    if jax is None or numbers(jax) < numbers(least):
        sys.exit(
            f"attn needs jax {least} or newer, and here is {jax or 'none'}. This installs no "
            "JAX: choose a newer runtime, or install the JAX for your device yourself"
        )
    others = [line for line in needed if not is_jax(line)]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as pinned:
        for name, number in installed.items():
            if number:
                pinned.write(f"{name}=={number}\n")
        pinned.flush()
        pip = [sys.executable, "-m", "pip", "install", "--quiet"]
        done = subprocess.run([*pip, "--constraint", pinned.name, *others])
    if done.returncode:
        sys.exit(
            f"pip could not install what attn needs beside jax {jax}; its own message is above"
        )


def requirements() -> list[str]:
    """Returns the requirements of the installed attn, those of extras left out."""
    lines = importlib.metadata.requires("attn") or []
    return [line for line in lines if "extra ==" not in line]


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
