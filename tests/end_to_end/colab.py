"""Runs all notebooks as Colab does: small, in an empty folder with a wheel of attn.

python -m tests.end_to_end.colab dist/attn-0.1.0-py3-none-any.whl

The interpreter is that of a stand-in for Colab's runtime, as .ci/run makes it: a virtual
environment with the versions of .ci/colab/cpu.txt, in which attn is not installed yet.
"""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbclient
import nbformat

FOLDER = Path("launch/notebooks")
KEPT = ("jax", "jaxlib", "flax", "numpy", "orbax-checkpoint")
MOST_LINES = 120
"""What all commands of a notebook may print. A live view in a pipe prints thousands."""


def main(wheel: str) -> None:
    os.environ.update(NPROC="32", JAX_NUM_CPU_DEVICES="8", JAX_PLATFORMS="cpu")
    # The kernel finds attn by the wheel alone.
    os.environ.pop("PYTHONPATH", None)
    before = versions()
    conflicts_before = conflicts()
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(wheel, folder)
        for path in sorted(FOLDER.glob("*.ipynb")):
            start = time.monotonic()
            check(printed(path, folder))
            print(f"{path.stem}: {time.monotonic() - start:.0f} s", flush=True)
    assert versions() == before, f"changed: {before} to {versions()}"
    # Colab has some of its own: IPython without jedi.
    added = conflicts() - conflicts_before
    assert not added, added


def versions() -> dict[str, str]:
    """Returns the versions that the runtime has and that must stay."""
    # In a process of its own, since this one keeps what it has once read.
    code = f"import importlib.metadata as m; print(*map(m.version, {KEPT}))"
    shown = subprocess.check_output([sys.executable, "-c", code], text=True)
    return dict(zip(KEPT, shown.split(), strict=True))


def conflicts() -> set[str]:
    """Returns what pip finds missing or too old among the installed packages."""
    check = [sys.executable, "-m", "pip", "check"]
    done = subprocess.run(check, stdout=subprocess.PIPE, text=True)
    return {line for line in done.stdout.splitlines() if " requires " in line}


def printed(path: Path, folder: str) -> str:
    """Runs a notebook, small, in `folder`, and returns what it printed."""
    notebook = nbformat.read(path, as_version=4)
    tags = [cell.metadata.get("tags", []) for cell in notebook.cells]
    (place,) = [i for i, of_cell in enumerate(tags) if "parameters" in of_cell]
    source = notebook.cells[place].source
    assert "SMALL = False" in source
    notebook.cells[place].source = source.replace("SMALL = False", "SMALL = True")
    resources = {"metadata": {"path": folder}}
    client = nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources=resources
    )
    client.execute()
    outputs = [one for cell in notebook.cells for one in cell.get("outputs", [])]
    return "".join(one.get("text", "") for one in outputs)


def check(text: str) -> None:
    """Checks that a notebook ran in the stand-in, and was not flooded by its commands."""
    python = sys.version.split()[0]
    jax = importlib.metadata.version("jax")
    assert f"python {python}, jax {jax}," in text, text[:500]
    assert "8 × cpu (cpu)" in text
    assert "\x1b" not in text
    assert len(text.splitlines()) <= MOST_LINES, len(text.splitlines())


if __name__ == "__main__":
    main(*sys.argv[1:])
