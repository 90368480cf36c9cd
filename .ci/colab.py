"""Writes what Colab's runtimes have of the packages that attn and its tests need.

python .ci/colab.py LISTS COMMIT

LISTS is a folder with pip-freeze.txt, pip-freeze.gpu.txt and pip-freeze.tpu.txt of the
public repository googlecolab/backend-info, COMMIT their commit and its date. For each
runtime .ci/colab/NAME.txt has exact versions: those that are there, and below them those
that pip adds. Needs uv.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

LISTS = {
    "cpu": "pip-freeze.txt",
    "gpu": "pip-freeze.gpu.txt",
    "tpu": "pip-freeze.tpu.txt",
}
PYTHON = "3.13"
DEVICE = r"libtpu|jax-cuda12-(pjrt|plugin)"
"""What makes JAX use the runtime's device, which attn does not ask for by name."""


def main(folder: str, commit: str) -> None:
    for name, file in LISTS.items():
        lines = Path(folder, file).read_text().splitlines()
        # Other lines have an address, and are of no use elsewhere.
        there = {
            canonical(line) for line in lines if re.fullmatch(r"[\w.-]+==\S+", line)
        }
        # A version such as 2.11.0+cu128 is on no public index.
        there = {line for line in there if "+" not in line}
        resolved = resolve(there)
        device = {line for line in there if re.fullmatch(rf"({DEVICE})==.*", line)}
        text = [
            f"# Colab's {name.upper()} runtime (Python {PYTHON}): what attn and its tests need.",
            f"# Of {file} in googlecolab/backend-info, {commit}; made by `make colab`.",
            *sorted((resolved & there) | device),
            "# Not there; pip adds it.",
            *sorted(resolved - there),
        ]
        Path(__file__).with_name("colab").mkdir(exist_ok=True)
        path = Path(__file__).parent / "colab" / f"{name}.txt"
        path.write_text("\n".join(text) + "\n")


def resolve(there: set[str]) -> set[str]:
    """Returns the versions of attn[test], where those of `there` stay as they are."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as pinned:
        pinned.write("\n".join(there))
        pinned.flush()
        uv = ["uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate"]
        target = ["--python-version", PYTHON, "--python-platform", "linux"]
        asked = ["--extra", "test", "--constraint", pinned.name, "pyproject.toml"]
        done = subprocess.run([*uv, *target, *asked], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit("attn's bounds do not hold on this runtime; uv says above why")
    return {canonical(line) for line in done.stdout.splitlines()}


def canonical(line: str) -> str:
    """Returns `line` with its package's name as registries compare it."""
    name, _, version = line.partition("==")
    return f"{re.sub('[-_.]+', '-', name).lower()}=={version}"


if __name__ == "__main__":
    main(*sys.argv[1:])
