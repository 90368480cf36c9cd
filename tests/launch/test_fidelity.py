"""Fidelity: what counts as agreement, and that the Transformer is PyTorch's."""

import importlib.util
import json
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import rich.console

from launch.bench.fidelity import attn
from launch.bench.fidelity import command as fidelity
from launch.bench.fidelity.case import CASES, SIZES
from launch.bench.harness.benchmark import Request

ROOT = Path(__file__).parents[2]


def numbers(case, weights, batch, dtype):
    """Stands for both sides.

    The gradient of "b" has errors of dtype, which is 1e-7 in float32.
    """
    error = 0.0 if dtype == np.float64 else 1e-7
    b = np.array([1.0, -4 * (1 + error)])
    return {"logits": np.array([1.0, -2.0]), "a": np.array([3.0]), "b": b}


def off(by, only=None):
    """Returns numbers whose "b" is off, in one dtype only or in both."""

    def run(case, weights, batch, dtype):
        results = numbers(case, weights, batch, dtype)
        if only in (None, dtype):
            results["b"] = results["b"] * (1 + by)
        return results

    return run


@pytest.fixture
def measure(monkeypatch, tmp_path):
    """Returns a function that runs the command, with or without PyTorch's numbers."""

    def measure(torch):
        # Its own importlib: JAX imports parts of itself by the common one.
        util = types.SimpleNamespace(find_spec=lambda name: torch)
        stand_in = types.SimpleNamespace(util=util, import_module=lambda name: torch)
        monkeypatch.setattr(fidelity, "importlib", stand_in)
        console = rich.console.Console(width=140, quiet=True)
        request = Request(directory=tmp_path, console=console, cases=CASES[:1])
        return fidelity.measure(request)

    return measure


@pytest.fixture
def compared(measure, monkeypatch):
    """Returns a function that compares a stand-in for attn with `numbers`."""

    def compare(ours):
        monkeypatch.setattr(attn, "run", ours)
        outcome = measure(types.SimpleNamespace(run=numbers))
        text, record = outcome.files
        return outcome, json.loads(record.read_text()), text.read_text()

    return compare


@pytest.mark.parametrize(
    ("ours", "agree"),
    [
        (numbers, True),
        (off(1.1e-12, np.float64), False),
        (off(0.9e-12, np.float64), True),
        (off(0.5e-7, np.float32), True),
        (off(1.5e-7, np.float32), False),
        (off(0.1), False),
        (off(np.nan), False),
    ],
)
def test_rounding_agrees_and_more_does_not(compared, ours, agree):
    outcome, record, text = compared(ours)
    assert outcome.status == (0 if agree else 1)
    assert record["agree"] is agree
    assert ("NO" in text) is not agree
    assert "2 gradients" in text


def test_the_worst_gradient_is_named(compared):
    _, record, _ = compared(numbers)
    gradients = record["cases"][0]["errors"]["gradients"]
    assert gradients["float32"]["array"] == "b"
    assert gradients["torch float32"]["error"] == pytest.approx(1e-7, rel=0.01)


def test_without_pytorch_nothing_passes_for_compared(measure):
    outcome = measure(None)
    assert outcome.status == 2 and outcome.files == []
    assert outcome.problem == "fidelity is to PyTorch: pip install '.[bench]'"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_arrays_have_pytorchs_names_and_shapes(case):
    arrays = attn.to_torch(case, attn.draw(case, seed=0))
    d = SIZES["d_model"]
    layer = "transformer.decoder.layers.1."
    assert arrays[f"{layer}multihead_attn.in_proj_weight"].shape == (3 * d, d)
    assert arrays[f"{layer}linear1.weight"].shape == (SIZES["d_ff"], d)
    assert (f"{layer}norm3.bias" in arrays) == case.biases
    assert ("transformer.encoder.norm.weight" in arrays) == (case.norm != "post")
    tied = np.array_equal(arrays["src_embed.weight"], arrays["generator.weight"])
    assert tied == case.tied


@pytest.mark.ci
@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)
def test_the_transformer_is_pytorchs(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "launch.bench", "fidelity", f"--directory={tmp_path}"],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" yes") == 2 * len(CASES)
    assert json.loads((tmp_path / "results.json").read_text())["agree"]
