"""The benchmarks as a person types them: mistakes, and each at its smallest size."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launch.bench.__main__ import BENCHMARKS, load

ROOT = Path(__file__).parents[2]
CONFIG = "--config=tests/experiments/tiny_config.py"


def bench(*arguments, **environment):
    """Runs python -m launch.bench."""
    return subprocess.run(
        [sys.executable, "-m", "launch.bench", *arguments],
        cwd=ROOT,
        encoding="utf-8",
        capture_output=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["attention", "--peers=attn,flux"], "unknown peer 'flux'; known: attn,"),
        (["conformance", "--rounds=3"], "Unknown command line flag 'rounds'"),
        pytest.param(
            ["decode", "--cases=batch-2"],
            "known: batch-32-beam-4, batch-32-greedy, batch-1-beam-4, batch-1-greedy",
            marks=pytest.mark.ci,
        ),
        (
            ["speed"],
            "COMMAND is attention or train or decode or conformance or fidelity or "
            "sweep or overhead or data or layers or growth or verdicts or compile",
        ),
        pytest.param(["overhead"], "--config=FILE is needed", marks=pytest.mark.ci),
        (["compile", "--for=v5e,v1"], "unknown device 'v1'; known: v5e, v5e-4, v6e,"),
        pytest.param(
            ["compile", "--for=v5e", "--sweep=heads"],
            "--sweep needs --config=FILE",
            marks=pytest.mark.ci,
        ),
        (["compile", "--for=v5e", CONFIG, "--sweep=places"], "places"),
        pytest.param(
            ["sweep", CONFIG, "--sweep=heads", "--ways=fast"],
            "unknown way 'fast'",
            marks=pytest.mark.ci,
        ),
    ],
)
def test_a_mistake_is_one_line(arguments, message):
    done = bench(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


SMALLEST = {
    "attention": ["--tiny", "--rounds=1"],
    "train": ["--tiny", "--rounds=1", "--peers=attn,torch,flax"],
    "decode": ["--tiny", "--rounds=1"],
    "conformance": ["--tiny", "--peers=attn:reference,jax.nn,torch"],
    "fidelity": ["--tiny"],
    "sweep": [CONFIG, "--sweep=d_k", "--ways=one-by-one"],
    "overhead": [CONFIG, "--rounds=1"],
    "data": [CONFIG, "--pairs=300"],
    "layers": ["--tiny", "--rounds=1"],
    "growth": ["--tiny", "--rounds=1"],
    "verdicts": ["--tiny"],
    "compile": ["--tiny", "--for=v5e"],
}
OTHERS = {
    "attention": ("torch",),
    "train": ("torch",),
    "decode": ("transformers", "ctranslate2"),
    "conformance": ("torch",),
    "fidelity": ("torch",),
}
"""Libraries beside attn that a benchmark may have to do without."""


def test_every_benchmark_has_a_smallest_size():
    assert SMALLEST.keys() == BENCHMARKS.keys()
    assert [load(name).name for name in BENCHMARKS] == list(BENCHMARKS)


@pytest.mark.ci
@pytest.mark.parametrize("name", SMALLEST)
def test_each_runs_at_its_smallest_size(name, tmp_path):
    """Its own part runs, and the libraries that are missing are named."""
    if name == "compile" and not installed("libtpu"):
        pytest.skip("no compiler for TPUs: pip install '.[compile-tpu]'")
    flags = [*SMALLEST[name], f"--directory={tmp_path}"]
    # Programs this small run a few times: most of the test would be to optimise them.
    done = bench(name, *flags, JAX_DISABLE_MOST_OPTIMIZATIONS="1", NPROC="1")
    missing = [other for other in OTHERS.get(name, ()) if not installed(other)]
    not_compared = name == "fidelity" and missing
    assert done.returncode == (2 if not_compared else 0), done.stderr
    for other in missing:
        assert other in done.stdout
        assert "not installed" in done.stdout
    (record,) = tmp_path.glob("*.json")
    assert json.loads(record.read_text())["versions"]["jax"]
    for file in tmp_path.iterdir():
        assert str(file) in done.stdout.replace("\n", "")


def installed(package):
    """Returns whether the package can be imported."""
    return importlib.util.find_spec(package) is not None
