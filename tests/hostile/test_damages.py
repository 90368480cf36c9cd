"""Damaged files: what follows is bit-identical, or named in one line."""

import pytest

from tests.hostile import damages


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return damages.World(tmp_path_factory.mktemp("world"))


def bad_outcomes(world, of_half, of_rest):
    """Returns what goes wrong; those of a half-trained trial take longest."""
    cases = world.cases()
    half = [case for case in cases if case.state == "half"]
    rest = [case for case in cases if case.state != "half"]
    chosen = [*half[of_half], *rest[of_rest]]
    outcomes = {case.name: world.outcome(case) for case in chosen}
    assert len(outcomes) == len(chosen) > 0
    return {k: v for k, v in outcomes.items() if v not in ("same", "named")}


def test_some_damages_are_mended_or_named(world):
    assert bad_outcomes(world, slice(5, None, 60), slice(0, None, 16)) == {}


@pytest.mark.ci
def test_most_damages_are_mended_or_named(world):
    # Each third, as three of each file of a checkpoint follow each other.
    assert bad_outcomes(world, slice(0, None, 3), slice(None)) == {}
