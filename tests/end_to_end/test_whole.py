"""Slower checks of the whole, run by .ci/run: lint, the wheel, a newcomer's sweep."""

import csv
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.ci


def run(*command, cwd=ROOT, env=None):
    command = [str(word) for word in command]
    done = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def as_users_have_it():
    """Returns the environment without what makes the programs of tests compile in less time."""
    quick_to_compile = ("JAX_DISABLE_MOST_OPTIMIZATIONS", "XLA_FLAGS", "NPROC")
    return {k: v for k, v in os.environ.items() if k not in quick_to_compile}


HELP = """
import importlib, jax, os
for name, target in {scripts!r}.items():
    print("==", name, flush=True)
    # Each in a process of its own, which need not import JAX again.
    if not os.fork():
        sys.argv = [name, "--help"]
        module, _, function = target.partition(":")
        getattr(importlib.import_module(module), function)()
        sys.exit()
    assert not os.wait()[1]
"""
"""Prints the help of all commands."""


def test_lint():
    run(sys.executable, "-m", "ruff", "check", ".")
    run(sys.executable, "-m", "ruff", "format", "--check", ".")


def test_the_lock_names_no_registry():
    assert "://" not in (ROOT / "requirements.lock").read_text()


def test_the_wheel_works_outside_the_checkout(tmp_path):
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        tmp_path,
        ROOT,
    )
    (wheel,) = tmp_path.glob("attn-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {
        "attn/py.typed",
        "experiments/report/page.html.j2",
        "experiments/report/page.js",
        "experiments/report/attention_page.html.j2",
        "launch/fit.py",
    } <= set(names)
    assert not [name for name in names if name.startswith("launch/bench")]
    run(
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        tmp_path / "site",
        wheel,
    )
    site = str(tmp_path / "site")

    def installed(program):
        program = f"import sys; sys.path.insert(0, {site!r})\n{program}"
        # Without it a command would start the whole program again.
        env = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
        return run(sys.executable, "-I", "-c", program, cwd=tmp_path, env=env)

    assert installed("import attn; print(attn.__file__)").startswith(site)
    with open(ROOT / "pyproject.toml", "rb") as file:
        scripts = tomllib.load(file)["project"]["scripts"]
    assert len(scripts) >= 7
    helps = installed(HELP.format(scripts=scripts)).split("== ")[1:]
    assert [text.partition("\n")[0] for text in helps] == list(scripts)
    assert all(text.partition("\n")[2].strip() for text in helps)
    # What compiles for a device that is not here.
    installed("import launch.fit, launch.dry_run")
    commands = installed(
        "import runpy; runpy.run_module('launch', run_name='__main__')"
    )
    assert "launch.check" in commands and "bench" not in commands


def test_a_small_sweep_learns(tmp_path):
    """Heads and positions on CLDR for a minute: both encodings help, and none is clearly worse."""
    config = tmp_path / "small.py"
    config.write_text(
        "from experiments.configs import quick\n"
        "def get_config():\n"
        "    config = quick.get_config()\n"
        "    config.training.update(steps=300, evaluate_every=150)\n"
        "    return config\n"
        "sweep_positions = quick.sweep_positions\n"
    )
    workdir = tmp_path / "runs"
    run(
        sys.executable,
        "-m",
        "launch.sweep",
        f"--config={config}",
        "--sweep=positions",
        f"--workdir={workdir}",
        env=as_users_have_it(),
    )
    rows = {
        row["model.positions"]: row
        for row in csv.DictReader((workdir / "report.csv").read_text().splitlines())
    }
    exact = {name: float(row["exact_match"]) for name, row in rows.items()}
    assert exact["sinusoidal"] > 0.3
    assert exact["learned"] > 0.3
    assert exact["none"] < min(exact["sinusoidal"], exact["learned"]) - 0.1
