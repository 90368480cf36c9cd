"""The benchmarks as a person types them: mistakes, and each at its smallest size."""

import dataclasses
import functools
import importlib.util
import json
from pathlib import Path

import pytest

from launch.bench.__main__ import BENCHMARKS, load
from launch.bench.growth import command as growth
from launch.bench.growth import curves
from launch.bench.growth.curve import in_process
from launch.bench.runner import data
from tests.calls import call
from tests.launch import bench_toys

CONFIG = "--config=tests/experiments/tiny_config.py"


# How ml_collections loads a config.
pytestmark = pytest.mark.filterwarnings("ignore:.*load_module:DeprecationWarning")


def bench(*arguments):
    return call("bench.__main__", *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["attention", "--peers=attn,flux"], "unknown peer 'flux'; known: attn,"),
        (["conformance", "--rounds=3"], "Unknown command line flag 'rounds'"),
        (
            ["decode", "--cases=batch-2"],
            "known: batch-32-beam-4, batch-32-greedy, batch-1-beam-4, batch-1-greedy",
        ),
        (
            ["speed"],
            "COMMAND is attention or train or decode or conformance or fidelity or "
            "sweep or overhead or data or layers or growth or verdicts or compile",
        ),
        (["overhead"], "--config=FILE is needed"),
        (["compile", "--for=v5e,v1"], "unknown device 'v1'; known: v5e, v5e-4, v6e,"),
        (
            ["compile", "--for=v5e", "--sweep=heads"],
            "--sweep needs --config=FILE",
        ),
        (["compile", "--for=v5e", CONFIG, "--sweep=places"], "places"),
        (
            ["sweep", CONFIG, "--sweep=heads", "--ways=fast"],
            "unknown way 'fast'",
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
    "attention": ["--tiny", "--rounds=1", "--peers=attn,jax.nn,torch"],
    "train": ["--tiny", "--rounds=1", "--peers=attn,torch"],
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


def holds_overhead(record, _):
    seconds = record["seconds"]
    assert seconds["bare step"][0] > 0 and seconds["runner"][0] > 0


def holds_layers(record, table):
    assert "self-attention" in table and "4, 5, 6 (O(n))" in table
    entries = record["layers"]["recurrence"]
    sizes = [(entry["n"], entry["d"], len(entry["seconds"])) for entry in entries]
    assert sizes == [(16, 8, 1), (32, 8, 1), (16, 16, 1)]


HOLD = {"overhead": holds_overhead, "layers": holds_layers}
"""What a benchmark's record and table hold beside what all have."""


def measured_here(curve, size):
    """Measures a size of a curve in this process, but where devices have to be of a number."""
    if curve.measure in (curves.measure_lanes, curves.measure_devices):
        measure = functools.partial(bench_toys.of_tiny_config, curve.measure)
        return in_process(dataclasses.replace(curve, measure=measure), size)
    return curve.measure(size)


@pytest.mark.ci
@pytest.mark.parametrize("name", SMALLEST)
def test_each_runs_at_its_smallest_size(name, tmp_path, monkeypatch):
    """Its own part runs, and the libraries that are missing are named."""
    if name == "compile" and not installed("libtpu"):
        pytest.skip("no compiler for TPUs: pip install '.[compile-tpu]'")
    flags = [*SMALLEST[name], f"--directory={tmp_path}"]
    # Programs this small run a few times: most of the test would be to optimise them.
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    monkeypatch.setenv("NPROC", "1")
    monkeypatch.setattr(data, "PHRASES", 1000)
    if name == "growth":
        # A process for each of 18 sizes would import JAX for most of the test.
        monkeypatch.setattr(growth, "in_process", measured_here)
        monkeypatch.setattr(curves, "CONFIG", bench_toys.CONFIG)
        monkeypatch.setattr(data, "in_process", lambda _, stage, of: stage(of))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    done = bench(name, *flags)
    missing = [other for other in OTHERS.get(name, ()) if not installed(other)]
    not_compared = name == "fidelity" and missing
    assert done.returncode == (2 if not_compared else 0), done.stderr
    for other in missing:
        assert other in done.stdout
        assert "not installed" in done.stdout
    (path,) = tmp_path.glob("*.json")
    record = json.loads(path.read_text())
    assert record["versions"]["jax"]
    if name in HOLD:
        (table,) = tmp_path.glob("*.md")
        HOLD[name](record, table.read_text())
    for file in filter(Path.is_file, tmp_path.iterdir()):
        assert str(file) in done.stdout.replace("\n", "")


def installed(package):
    """Returns whether the package can be imported."""
    return importlib.util.find_spec(package) is not None
