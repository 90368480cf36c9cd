"""Programs that JAX keeps on disk are never taken for those of other code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFIG = "tests/experiments/tiny_config.py"
TRAIN = """
import sys
from launch import train

sys.argv[0] = "train"
train.cli()
"""
PATCH = """
import jax.numpy as jnp
from attn.scores import Dot, ScaledDot

ScaledDot.prepare = lambda self, q, k: (Dot(), jnp.zeros_like(q), k)
"""
"""Uniform attention, by a method that is replaced as in a notebook."""


def losses(program, workdir, cache):
    flags = [f"--config={CONFIG}", f"--workdir={workdir}"]
    environment = {"JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", program, *flags],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [entry["loss"] for entry in map(json.loads, lines) if "loss" in entry]


@pytest.mark.ci
def test_a_method_that_is_replaced_has_effect_and_leaves_none(tmp_path):
    cache = tmp_path / "cache"
    patched = losses(PATCH + TRAIN, tmp_path / "patched", cache)
    plain = losses(TRAIN, tmp_path / "plain", cache)
    assert patched and plain != patched
    assert losses(PATCH + TRAIN, tmp_path / "again", cache) == patched
