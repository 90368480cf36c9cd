"""Damaged files: what follows is bit-identical, or named in one line."""

import pytest

from tests.hostile import damages


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return damages.World(tmp_path_factory.mktemp("world"))


def bad_outcomes(world, cases):
    outcomes = {case.name: world.outcome(case) for case in cases}
    return {k: v for k, v in outcomes.items() if v not in ("same", "named")}


def test_some_damages_are_mended_or_named(world):
    cases = world.cases()
    half = [case for case in cases if case.state == "half"]
    rest = [case for case in cases if case.state != "half"]
    assert bad_outcomes(world, [*half[5::40], *rest[::16]]) == {}


@pytest.mark.ci
def test_damages_of_all_files_are_mended_or_named(world):
    """Every second: of three or five harms of a file, others in each file."""
    cases = world.cases()[::2]
    assert {case.harm for case in cases} == {*damages.HARMS}
    assert len(cases) >= 60
    assert bad_outcomes(world, cases) == {}
