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
from launch.bench.fidelity.case import CASES
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
def measured(monkeypatch, tmp_path):
    """Returns a function that runs the command, with or without PyTorch's numbers."""

    def measure(torch):
        # Its own importlib: JAX imports parts of itself by the common one.
        util = types.SimpleNamespace(find_spec=lambda name: torch)
        stand_in = types.SimpleNamespace(util=util, import_module=lambda name: torch)
        monkeypatch.setattr(fidelity, "importlib", stand_in)
        console = rich.console.Console(width=140, record=True, quiet=True)
        request = Request(directory=tmp_path, console=console, cases=CASES[:1])
        outcome = fidelity.measure(request)
        text, record = outcome.files
        assert [text.name, record.name] == ["fidelity.md", "fidelity.json"]
        return outcome, json.loads(record.read_text()), text.read_text()

    return measure


@pytest.fixture
def compared(measured, monkeypatch):
    """Returns a function that compares a stand-in for attn with `numbers`."""

    def compare(ours):
        monkeypatch.setattr(attn, "run", ours)
        torch = types.SimpleNamespace(draw=lambda case, seed: {}, run=numbers)
        return measured(torch)

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


def test_without_pytorch_nothing_passes_for_compared(measured, monkeypatch):
    monkeypatch.setattr(attn, "run", numbers)
    outcome, record, text = measured(None)
    assert outcome.status == 2
    assert outcome.problem == "fidelity is to PyTorch: pip install '.[bench]'"
    assert record["agree"] is None
    assert "torch is not installed" in text
    assert "yes" not in text


@pytest.mark.ci
def test_without_pytorch_float32_is_near_float64(measured):
    _, record, _ = measured(None)
    errors = record["cases"][0]["errors"]
    assert 0 < errors["logits"]["float32"]["error"] < 1e-5
    assert 0 < errors["gradients"]["float32"]["error"] < 1e-5


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
    assert json.loads((tmp_path / "fidelity.json").read_text())["agree"]
