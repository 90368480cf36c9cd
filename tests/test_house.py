"""The house keeps its rules: imports go launch -> experiments -> attn, and attn needs little."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {"attn": {"attn", "jax", "flax", "numpy", "jaxtyping"}, "experiments": {"attn", "experiments"}}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name.split(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module.split(".")[0]


def files(room):
    found = sorted((ROOT / room).rglob("*.py"))
    assert found
    return found


@pytest.mark.parametrize("path", files("attn"), ids=str)
def test_attn_needs_jax_flax_and_numpy_only(path):
    assert set(imports(path)) - set(sys.stdlib_module_names) <= MAY_IMPORT["attn"]


@pytest.mark.parametrize("path", files("experiments"), ids=str)
def test_experiments_do_not_know_launch_or_tests(path):
    assert not set(imports(path)) & {"launch", "tests"}


@pytest.mark.parametrize("path", [p for room in ("attn", "experiments", "launch") for p in files(room)], ids=str)
def test_a_file_is_one_room(path):
    assert len(path.read_text().splitlines()) <= 400


def test_no_utils():
    assert not [p for room in ("attn", "experiments", "launch", "tests") for p in (ROOT / room).rglob("util*.py")]
