"""The benchmarks as a person types them: mistakes, and each at its smallest size."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

from launch.bench.__main__ import BENCHMARKS, load
from tests.calls import call


def bench(*arguments):
    return call("bench.__main__", *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["attention", "--peers=attn,flux"], "unknown peer 'flux'; known: attn,"),
        (["conformance", "--rounds=3"], "Unknown command line flag 'rounds'"),
        (
            ["decoding", "--cases=batch-2"],
            "known: batch-32-beam-4, batch-32-greedy, batch-1-beam-4, batch-1-greedy",
        ),
        (
            ["speed"],
            "COMMAND is attention or training or cold_start or decoding or "
            "conformance or fidelity or verdicts or bar or compile or device",
        ),
        (["compile", "--for=v5e,v1"], "unknown device 'v1'; known: v5e, v5e-4, v6e,"),
    ],
)
def test_a_mistake_is_one_line(arguments, message, monkeypatch):
    # Whether a compiler is installed or not.
    monkeypatch.setattr("experiments.system.compiler.NEEDS", {"tpu": "os", "gpu": "os"})
    done = bench(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


ROOMS = ("attn", "experiments", "launch")
SMALLEST = {
    "attention": ["--rounds=1", "--peers=attn,jax.nn,torch"],
    "training": ["--rounds=1", "--peers=attn,torch"],
    "cold_start": ["--rounds=1", "--peers=attn,torch"],
    "decoding": ["--rounds=1"],
    "conformance": ["--peers=attn:reference,jax.nn,torch"],
    "fidelity": [],
    "verdicts": [],
    "bar": [],
    "compile": ["--for=v5e"],
    "device": ["--minutes=9", "--cases=step,tiny-dot"],
}
OTHERS = {
    "attention": "torch",
    "training": "torch",
    "cold_start": "torch",
    "decoding": "ctranslate2",
    "conformance": "torch",
    "device": "torch",
}
"""A library beside attn that a benchmark may have to do without."""


def installed(package):
    """Returns whether the package can be imported."""
    return importlib.util.find_spec(package) is not None


def test_every_benchmark_has_a_smallest_size():
    assert SMALLEST.keys() == BENCHMARKS.keys()
    assert [load(name).name for name in BENCHMARKS] == list(BENCHMARKS)


@pytest.mark.ci
@pytest.mark.parametrize("name", SMALLEST)
def test_each_runs_at_its_smallest_size(name, tmp_path, monkeypatch):
    """Its own part runs, and the libraries that are missing are named."""
    if name == "compile" and not installed("libtpu"):
        pytest.skip("no compiler for TPUs: pip install '.[compile-tpu]'")
    if name == "fidelity" and not installed("torch"):
        pytest.skip("nothing to compare with: pip install '.[bench]'")
    # Programs this small run a few times: most of the test would be to optimise them.
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    monkeypatch.setenv("NPROC", "1")
    done = bench(name, "--tiny", *SMALLEST[name], f"--directory={tmp_path}")
    assert done.returncode == 0, done.stderr
    other = OTHERS.get(name)
    if other and not installed(other):
        assert f"{other} is not installed" in done.stdout or "absent" in done.stdout
    record = json.loads((tmp_path / "results.json").read_text())
    assert record["versions"]["jax"]
    if name == "device":
        # Two of them share a process.
        names = ["step", "tiny-dot-forward", "tiny-dot-gradient"]
        assert [case["name"] for case in record["cases"]] == names
        for case in record["cases"]:
            assert len(case["peers"]["attn"]["seconds"]) == 3
        assert "kernels of step, attn" in done.stdout
    for file in filter(Path.is_file, tmp_path.iterdir()):
        assert str(file) in done.stdout.replace("\n", "")


def test_nothing_that_users_run_imports_a_benchmark():
    """They are in the repository alone, not in the wheel."""
    files = [path for room in ROOMS for path in Path(room).rglob("*.py")]
    others = [path for path in files if "bench" not in path.parts]
    assert len(others) > 100
    for path in others:
        lines = path.read_text().splitlines()
        code = [line for line in lines if re.match(r"\s*(from|import) ", line)]
        assert not [line for line in code if "launch.bench" in line], path
