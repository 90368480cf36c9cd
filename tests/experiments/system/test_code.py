"""The name of the code that makes a result."""

import os
import time

import pytest

from experiments.system import code

VERSIONS = {"jax": "0.10.2", "flax": "0.12.8"}


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / "a.py", tmp_path / "b.py"]
    for path in paths:
        path.write_text(f"# {path.stem}\n")
        os.utime(path, (1e9, 1e9))
    return paths


def test_equal_code_has_one_name_and_other_code_another(files):
    began = time.time()
    name = code.name_of(files, VERSIONS, began)
    assert name == code.name_of(files, VERSIONS, began + 60)
    others = {
        code.name_of(files[:1], VERSIONS, began),
        code.name_of(files, VERSIONS | {"jax": "0.10.3"}, began),
    }
    files[1].write_text("# c\n")
    os.utime(files[1], (1e9, 1e9))
    others.add(code.name_of(files, VERSIONS, began))
    assert len(others | {name}) == 4


def test_code_has_one_name_wherever_it_is(tmp_path, monkeypatch):
    names = set()
    for place in ("here", "there"):
        path = tmp_path / place / "attn" / "a.py"
        path.parent.mkdir(parents=True)
        path.write_text("# a\n")
        os.utime(path, (1e9, 1e9))
        monkeypatch.setattr(code, "ROOT", tmp_path / place)
        names.add(code.name_of([path], VERSIONS, time.time()))
    assert len(names) == 1


def test_a_file_that_was_saved_since_the_process_began_makes_a_name_of_its_own(files):
    """What was imported may be what stood there before."""
    began = time.time()
    os.utime(files[0], (began + 1e-3, began + 1e-3))
    time.sleep(0.01)
    names = {code.name_of(files, VERSIONS, began) for _ in range(3)}
    assert len(names) == 3


def test_a_file_of_the_future_is_known(files):
    """The clock of whoever saved it is wrong."""
    began = time.time()
    os.utime(files[0], (began + 1e6, began + 1e6))
    names = {code.name_of(files, VERSIONS, began) for _ in range(2)}
    assert len(names) == 1


def test_the_sources_are_what_decides_a_result():
    found = {path.relative_to(code.ROOT).as_posix() for path in code.sources()}
    assert {"attn/scores.py", "experiments/trial/step.py"} <= found
    assert "experiments/evaluation/metrics.py" in found
    assert not any(name.startswith("experiments/report/") for name in found)
    assert not any(name.startswith(("launch/", "tests/")) for name in found)


def test_a_record_without_a_name_has_its_commit():
    assert code.of({"code": "12", "git": "ab"}) == "12"
    assert code.of({"git": "ab"}) == "ab"
    assert code.of({}) is code.of({"code": 7}) is None


def test_a_process_begins_before_now():
    assert 0 < time.time() - code._began() < 24 * 3600
