"""The house keeps its rules: which package may import which, and who names a variant."""

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

import attn
from attn.nn import layers, norms

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[1]
STOREYS = ("attn", "experiments", "launch")

MAY_IMPORT = {
    "attn": set(),
    "experiments": {"attn"},
    "launch": {"attn", "experiments"},
}
"""The storeys that each storey may import, beside itself."""

ATTN_NEEDS = {"attn", "jax", "flax", "numpy", "jaxtyping"}

EXPERIMENTS = {
    "errors": set(),
    "stats": {"errors"},
    "optim": set(),
    "objectives": set(),
    "optim_contract": {"optim"},
    "settings": {"errors", "optim", "objectives"},
    "system": {"errors"},
    "data": {"settings", "system"},
    "trial": {"data"},
    "evaluation": {"trial", "stats"},
    "training": {"evaluation"},
    "sweep": {"training"},
    "inference": {"training"},
    "scoring": {"inference"},
    "export": {"inference"},
    "report": {"evaluation"},
    "configs": {"data"},
    "bar": {"configs", "report", "sweep"},
}
"""The rooms of experiments/: each may import those it names and all that these may."""


def files(storey):
    paths = sorted((ROOT / storey).rglob("*.py"))
    # Entries at the bar are as their authors wrote them.
    paths = [path for path in paths if "entries" not in path.parts]
    assert paths
    return paths


ALL_FILES = [path for storey in STOREYS for path in files(storey)]


def module_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imported(path):
    """The dotted names that a file imports; of `from a import b` both a and a.b."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module)
            names.update(f"{node.module}.{name.name}" for name in node.names)
    return frozenset(names)


def reachable(room):
    rooms = set(EXPERIMENTS[room])
    for other in EXPERIMENTS[room]:
        rooms |= reachable(other)
    return rooms


@pytest.mark.parametrize("path", ALL_FILES, ids=str)
def test_storeys_import_downwards(path):
    storey = path.relative_to(ROOT).parts[0]
    others = {name.split(".")[0] for name in imported(path)} & {*STOREYS, "tests"}
    assert others <= MAY_IMPORT[storey] | {storey}


@pytest.mark.parametrize("path", files("attn"), ids=str)
def test_attn_needs_jax_flax_and_numpy_only(path):
    packages = {name.split(".")[0] for name in imported(path)}
    # Imported when a file is read or written, with an error that names the extra.
    optional = {"safetensors"} if path == ROOT / "attn/io/files.py" else set()
    assert packages - set(sys.stdlib_module_names) <= ATTN_NEEDS | optional


@pytest.mark.parametrize("path", files("experiments"), ids=str)
def test_rooms_of_experiments_import_downwards(path):
    room = module_of(path).split(".")[1:2]
    if not room:
        return
    parts = [name.split(".") for name in imported(path)]
    others = {name[1] for name in parts if name[0] == "experiments" and len(name) > 1}
    assert others <= reachable(room[0]) | {room[0]}


REGISTRIES = {
    "positions": attn.POSITIONS,
    "heads": attn.HEADS,
    "residuals": attn.RESIDUALS,
    "mixers": attn.MIXERS,
    "normalisers": attn.NORMALISERS,
    "scores": attn.SCORES,
    "nn/norms.py": norms.NORMS,
    "nn/layers.py": layers.FEED_FORWARDS,
}
"""The variants of the library, by the file or folder of attn that holds them."""

BY_NAME = {
    # What stands where nobody chooses, and the modules of the RNN, which is one variant.
    "Post",
    "ReLU",
    "SelfAttention",
    "Separate",
    "Sinusoidal",
    "NoPositions",
    "NoResidual",
    "Softmax",
    "ScaledDot",
    # All scores that are products are this one with prepared queries.
    "Dot",
}
"""Variants that generic code may name."""

NAMING = ("__init__.py", "io")
"""What lists the names of the library, or reads weights of other libraries."""


def variants():
    for place, registry in REGISTRIES.items():
        for cls in registry.values():
            if cls.__name__ not in BY_NAME:
                yield place, cls.__name__


@pytest.mark.parametrize(("place", "name"), list(variants()))
def test_generic_code_names_no_variant(place, name):
    """A variant is removed by its class and a line of a list, with its tests and page."""
    for storey in ("attn", "experiments/settings", "experiments/trial"):
        for path in files(storey):
            inside = str(path.relative_to(ROOT / "attn")) if storey == "attn" else ""
            if inside.startswith((place, "contract", *NAMING)):
                continue
            names = {
                getattr(node, "id", getattr(node, "attr", ""))
                for node in ast.walk(ast.parse(path.read_text()))
            }
            assert name not in names, f"{path} names {name}"


def test_no_utils():
    everywhere = [*STOREYS, "tests"]
    assert not [p for room in everywhere for p in (ROOT / room).rglob("util*.py")]
