"""The benchmark's commands and what they say of mistakes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("arguments", "message"), [
    (["attention", "--peers=attn,flux"], "unknown peer 'flux'; known: attn,"),
    (["conformance", "--rounds=3"], "Unknown command line flag 'rounds'"),
    pytest.param(["decode", "--cases=batch-2"], "known: batch-32-beam-4, batch-32-greedy, batch-1-beam-4, "
                 "batch-1-greedy", marks=pytest.mark.ci),
    (["speed"], "COMMAND is attention or train or decode or conformance or fidelity or sweep or overhead"),
    pytest.param(["overhead"], "--config=FILE is needed", marks=pytest.mark.ci),
    pytest.param(["sweep", "--config=tests/experiments/tiny_config.py", "--sweep=heads", "--ways=fast"],
                 "unknown way 'fast'", marks=pytest.mark.ci),
])
def test_a_mistake_is_one_line(arguments, message, tmp_path):
    done = subprocess.run([sys.executable, "-m", "launch.bench", *arguments], cwd=ROOT, encoding="utf-8",
                          capture_output=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and message in done.stderr
