"""Runs all notebooks as Colab does: small, in an empty folder with a wheel of attn.

python -m tests.end_to_end.colab dist/attn-0.1.0-py3-none-any.whl

The interpreter is that of a stand-in for Colab's runtime, as .ci/run makes it: a virtual
environment with the versions of .ci/colab/cpu.txt, in which attn is not installed yet.
"""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from jupyter_client.manager import start_new_kernel

FOLDER = Path("launch/notebooks")
KEPT = ("jax", "jaxlib", "flax", "numpy", "orbax-checkpoint")
ENVIRONMENT = dict(
    JAX_PLATFORMS="cpu",
    JAX_NUM_CPU_DEVICES="8",
    # XLA's collectives deadlock on machines of few cores when they think there are few.
    NPROC="32",
    # Most of a notebook would be LLVM's optimisation of programs that run 50 steps.
    JAX_DISABLE_MOST_OPTIMIZATIONS="1",
    XLA_FLAGS="--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
    JAX_TRACEBACK_IN_LOCATIONS_LIMIT="0",
    OPENBLAS_NUM_THREADS="1",
)
"""What kernels, and the commands that they call, have in common."""
LANES = "LANES = 0", "LANES = 8"
"""One notebook has lanes over all devices, as a TPU of eight cores would."""
LONGEST = 600
"""Seconds that a cell may take."""
MOST_LINES = 120
"""What all commands of a notebook may print. A live view in a pipe prints thousands."""


def main(wheel: str) -> None:
    os.environ.update(ENVIRONMENT)
    # The kernel finds attn by the wheel alone.
    os.environ.pop("PYTHONPATH", None)
    before = versions()
    conflicts_before = conflicts()
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(wheel, folder)
        for path in sorted(FOLDER.glob("*.ipynb")):
            start = time.monotonic()
            check(printed(path, folder))
            if path.stem == "ablation":
                check_lanes(Path(folder, "runs/notebook/small"))
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
    """Runs a notebook, small, in `folder`, and returns what it printed.

    Raises AssertionError with the traceback of a cell that fails.
    """
    cells = [
        cell
        for cell in nbformat.read(path, as_version=4).cells
        if cell.cell_type == "code"
    ]
    (parameters,) = [
        cell for cell in cells if "parameters" in cell.metadata.get("tags", [])
    ]
    assert "SMALL = False" in parameters.source
    parameters.source = parameters.source.replace("SMALL = False", "SMALL = True")
    said = []
    # nbclient waits in an event loop, which with these versions may miss a message: a cell of
    # a second then takes all of its time limit.
    manager, kernel = start_new_kernel(kernel_name="python3", cwd=folder)
    try:
        for cell in cells:
            reply = kernel.execute_interactive(
                cell.source.replace(*LANES),
                timeout=LONGEST,
                allow_stdin=False,
                output_hook=lambda message: said.append(
                    message["content"].get("text", "")
                ),
            )["content"]
            assert reply["status"] == "ok", "\n".join(reply["traceback"])
    finally:
        kernel.stop_channels()
        manager.shutdown_kernel(now=True)
    return "".join(said)


def check(text: str) -> None:
    """Checks that a notebook ran in the stand-in, and was not flooded by its commands."""
    python = sys.version.split()[0]
    jax = importlib.metadata.version("jax")
    assert f"python {python}, jax {jax}," in text, text[:500]
    assert "8 × cpu (cpu)" in text
    assert "\x1b" not in text
    assert len(text.splitlines()) <= MOST_LINES, len(text.splitlines())


def check_lanes(workdir: Path) -> None:
    """Checks that trials were trained as eight lanes, one on each device."""
    groups = json.loads((workdir / "schedule.json").read_text())
    assert {group["layout"]["lanes"] for group in groups} == {8}, groups
    for record in workdir.glob("trials/*/record.json"):
        assert json.loads(record.read_text())["devices"] == 8


if __name__ == "__main__":
    main(*sys.argv[1:])
