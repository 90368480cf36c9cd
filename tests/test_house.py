"""The house keeps its rules: which room may import which, how deep, and how a file looks."""

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

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
    "settings": {"errors"},
    "system": {"errors"},
    "data": {"settings", "system"},
    "trial": {"data"},
    "evaluation": {"trial", "stats"},
    "training": {"evaluation"},
    "sweep": {"training"},
    "inference": {"training"},
    "report": {"evaluation"},
    "configs": {"data"},
}
"""The rooms of experiments/: each may import those it names and all that these may."""

MOST_LEVELS = 8
"""Levels of the graph of rooms."""
MOST_LINES = 500


def files(storey):
    paths = sorted((ROOT / storey).rglob("*.py"))
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
    assert packages - set(sys.stdlib_module_names) <= ATTN_NEEDS


@pytest.mark.parametrize("path", files("experiments"), ids=str)
def test_rooms_of_experiments_import_downwards(path):
    room = module_of(path).split(".")[1:2]
    if not room:
        return
    parts = [name.split(".") for name in imported(path)]
    others = {name[1] for name in parts if name[0] == "experiments" and len(name) > 1}
    assert others <= reachable(room[0]) | {room[0]}


@pytest.mark.parametrize("storey", STOREYS)
def test_imports_have_no_circle_and_few_levels(storey):
    """Levels are those of rooms: the folders and files right below a storey."""
    edges = {}
    for path in files(storey):
        parts = module_of(path).split(".")
        if len(parts) == 1:
            continue
        names = [name.split(".") for name in imported(path)]
        others = {n[1] for n in names if n[0] == storey and len(n) > 1}
        rooms = {p.stem for p in (ROOT / storey).iterdir()}
        edges.setdefault(parts[1], set()).update(others & rooms - {parts[1]})

    def level(room, above=()):
        assert room not in above, f"a circle: {' -> '.join([*above, room])}"
        below = [level(other, (*above, room)) for other in edges.get(room, ())]
        return 1 + max(below, default=0)

    assert max(level(room) for room in edges) <= MOST_LEVELS


@pytest.mark.parametrize("path", ALL_FILES, ids=str)
def test_a_file_is_one_room(path):
    assert len(path.read_text().splitlines()) <= MOST_LINES


def test_no_utils():
    everywhere = [*STOREYS, "tests"]
    assert not [p for room in everywhere for p in (ROOT / room).rglob("util*.py")]
