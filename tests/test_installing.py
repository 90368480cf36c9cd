"""Installing: attn alone is light, bounds hold on Colab, and mistakes are one line."""

import subprocess
import sys
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


WITHOUT = """
import importlib.util, sys
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "ml_collections" else find_spec(name)
sys.orig_argv += {argv}
import launch
print("imported")
"""


def test_commands_say_what_they_lack_and_the_installer_runs():
    code = [sys.executable, "-c", WITHOUT.format(argv=[])]
    without = subprocess.run(code, capture_output=True, text=True)
    assert without.returncode == 1 and "imported" not in without.stdout
    assert without.stderr.endswith("'attn[experiments]' adds what the commands need\n")
    notebook = "import sys; sys.modules['ipykernel'] = None\n"
    code[-1] = notebook + WITHOUT.format(argv=[])
    assert subprocess.check_output(code, text=True) == "imported\n"
    code[-1] = WITHOUT.format(argv=["-m", "launch.notebooks.install"])
    assert subprocess.check_output(code, text=True) == "imported\n"


@pytest.mark.parametrize(
    ("extras", "said"),
    [
        ("", ""),
        ("cuda12,trackers", ""),
        ("wandb,cuda", "cuda is none of bench, "),
    ],
)
def test_an_unknown_extra_is_named(tmp_path, extras, said):
    check = [sys.executable, ".ci/check_install.py", str(tmp_path), extras]
    done = subprocess.run(check, capture_output=True, text=True)
    assert said in done.stderr and done.returncode == bool(said)


def test_another_python_is_not_installed_over(tmp_path):
    """The environment may hold packages of the user's own."""
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\necho 3.10.1\n")
    python.chmod(0o755)
    check = [sys.executable, ".ci/check_install.py", str(tmp_path), ""]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"{tmp_path} has Python 3.10.1, asked for is" in done.stderr
