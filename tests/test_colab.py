"""attn's bounds hold on Colab's runtimes, whose packages a notebook leaves as they are."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

EXTRAS = ("experiments", "notebooks", "tensorboard")
OWN = ("jax", "flax", "jaxtyping", "numpy")


def bounds():
    """Returns the requirements of attn and of EXTRAS, without those of attn itself."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    lines = list(project["dependencies"])
    for extra in EXTRAS:
        lines += project["optional-dependencies"][extra]
    requirements = [Requirement(line) for line in lines]
    return [one for one in requirements if one.name != "attn"]


@pytest.mark.parametrize("runtime", ["cpu", "gpu", "tpu"])
def test_the_runtime_has_what_attn_asks_for(runtime):
    text = Path(f".ci/colab/{runtime}.txt").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    versions = dict(line.split("==") for line in lines)
    there = text.partition("# Not there")[0]
    for one in bounds():
        assert versions[one.name.lower()] in one.specifier, f"{one} on {runtime}"
    assert versions["jax"] == "0.7.2" and "jax==0.7.2" in there and "flax==" in there


def test_attn_alone_is_light():
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    names = {Requirement(line).name for line in project["dependencies"]}
    assert names == {*OWN}
