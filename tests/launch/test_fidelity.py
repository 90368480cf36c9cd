"""The fidelity command: what counts as agreement, what it shows, and that the Transformer is PyTorch's."""

import importlib.util
import json
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import rich.console

from launch.bench import fidelity
from launch.bench.peers import BenchError

ROOT = Path(__file__).parents[2]


def numbers(case, weights, batch, dtype):
    """Stands for both sides: the gradient of "b" has errors of dtype, which is a 10⁷th part in float32."""
    error = 0.0 if dtype == np.float64 else 1e-7
    return {"logits": np.array([1.0, -2.0]), "a": np.array([3.0]), "b": np.array([1.0, -4 * (1 + error)])}


def off(by, only=None):
    def ours(case, weights, batch, dtype):
        found = numbers(case, weights, batch, dtype)
        return found if only not in (None, dtype) else {**found, "b": found["b"] * (1 + by)}
    return ours


@pytest.fixture
def command(monkeypatch, tmp_path):
    """Runs it with `ours` against `numbers` for PyTorch's."""
    def run(ours):
        monkeypatch.setattr(fidelity, "CASES", fidelity.CASES[:1])
        monkeypatch.setattr(fidelity, "ours", ours)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
        monkeypatch.setattr(importlib, "import_module", lambda name: types.SimpleNamespace(
            draw=lambda case, seed: {}, run=numbers))
        console = rich.console.Console(width=140, record=True, quiet=True)
        files, agree = fidelity.run(tmp_path, console)
        assert [file.name for file in files] == ["fidelity.md", "fidelity.json"]
        return agree, json.loads(files[1].read_text()), files[0].read_text()
    return run


@pytest.mark.parametrize(("ours", "agree"), [
    (numbers, True), (off(1.1e-12, np.float64), False), (off(0.9e-12, np.float64), True),
    (off(0.5e-7, np.float32), True), (off(1.5e-7, np.float32), False), (off(0.1), False)])
def test_rounding_agrees_and_more_does_not(command, ours, agree):
    found, record, table = command(ours)
    assert found is agree and record["agree"] is agree
    assert ("NO" in table) is not agree and "2 gradients" in table
    gradients = record["cases"][0]["errors"]["gradients"]
    assert gradients["float32"]["array"] == "b" and gradients["torch float32"]["error"] == pytest.approx(1e-7, rel=0.01)


def test_without_pytorch_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BenchError, match=r"fidelity is to PyTorch: pip install '.\[bench\]'"):
        fidelity.run(tmp_path, rich.console.Console(quiet=True))


@pytest.mark.ci
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_the_transformer_is_pytorchs(tmp_path):
    done = subprocess.run([sys.executable, "-m", "launch.bench", "fidelity", f"--directory={tmp_path}"], cwd=ROOT,
                          capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" yes") == 2 * len(fidelity.CASES)
    assert json.loads((tmp_path / "fidelity.json").read_text())["agree"]
