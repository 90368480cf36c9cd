"""The notebooks: each is made of its source, its first cell says what is missing, it runs."""

import functools
import importlib.metadata
import json
import re
import subprocess
from pathlib import Path

import jupytext
import pytest

from launch.notebooks import install
from launch.notebooks.environment import command, report_frame, start
from launch.notebooks.store import WIDGET
from tests.end_to_end.colab import MOST_LINES

FOLDER = Path("launch/notebooks")
NAMES = ("attention_by_hand", "ablation", "own_score", "own_text")
LARGEST = 1_000_000
"""Bytes of a notebook that GitHub still shows."""


def cells(notebook):
    return [
        (cell.cell_type, cell.source, cell.metadata.get("tags", []))
        for cell in notebook.cells
    ]


@pytest.mark.parametrize("name", NAMES)
def test_the_notebook_is_made_of_its_source(name):
    source, made = (
        jupytext.read(FOLDER / f"{name}.{ending}") for ending in ("py", "ipynb")
    )
    assert cells(source) == cells(made), (
        f"{name}.ipynb is older than {name}.py; make notebooks"
    )
    assert "://" not in made.cells[0].source, "there is no public address yet"


def test_all_begin_with_the_same_cell():
    """Each stands by itself on Colab, so it is in all of them."""
    codes = [
        [
            cell.source
            for cell in jupytext.read(FOLDER / f"{name}.py").cells
            if cell.cell_type == "code"
        ]
        for name in NAMES
    ]
    firsts = [(code[0], code[1].partition("\n\nimport jax\n")[0]) for code in codes]
    assert len(set(firsts)) == 1 and "start(DEVICE)" in firsts[0][1]


def test_every_source_is_tried():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == {*NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_a_stored_notebook_shows_what_it_gave(name):
    """Run from top to bottom, with pictures, and not flooded by its commands."""
    path = FOLDER / f"{name}.ipynb"
    codes = [cell for cell in jupytext.read(path).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in codes] == [*range(1, len(codes) + 1)]
    outputs = [output for cell in codes for output in cell.outputs]
    assert not [one for one in outputs if one.output_type == "error"]
    kinds = [kind for one in outputs for kind in one.get("data", {})]
    assert "image/png" in kinds and WIDGET not in kinds
    text = "".join(one.get("text", "") for one in outputs)
    assert re.match(r"run on 20\d\d-\d\d-\d\d with python 3", text)
    assert len(text.splitlines()) <= MOST_LINES and "\x1b" not in text
    assert path.stat().st_size < LARGEST


def test_a_command_says_its_output_and_its_failure(capfd):
    command("platform", text="unread")
    with pytest.raises(RuntimeError, match="no_such_module ended with status 1"):
        command("no_such_module")
    assert "No module named no_such_module" in capfd.readouterr().out


def test_the_frame_brings_the_report_with_it(tmp_path):
    (tmp_path / "report.html").write_text("<p>±")
    frame = report_frame(tmp_path)
    assert frame.src == "data:text/html;base64,PHA+wrE="


def test_the_first_cell_says_what_there_is(capsys, monkeypatch):
    # Each look starts a process with JAX, and they all see the same.
    run = subprocess.run
    look = functools.cache(lambda *words: run(words, capture_output=True, text=True))
    monkeypatch.setattr(subprocess, "run", lambda words, **_: look(*words))
    facts = start("cpu")
    said = capsys.readouterr().out
    assert (
        facts["backend"] == "cpu"
        and f"jax {facts['versions']['jax']}" in said
        and "(cpu)" in said
    )
    with pytest.raises(
        RuntimeError,
        match=r"a TPU was asked for, and JAX sees .* Runtime → Change runtime type → TPU",
    ):
        start("tpu")
    with pytest.raises(
        ValueError, match=r"device='npu': give one of any, cpu, gpu, tpu"
    ):
        start("npu")


def test_jax_that_cannot_start_is_told(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "nonsense")
    with pytest.raises(RuntimeError, match=r"JAX does not start here: .*nonsense"):
        start()


@pytest.fixture
def pip(monkeypatch):
    """Stands in for pip and for the installed attn; holds what was asked of both."""
    called = {"status": 0}

    def run(words, **options):
        at = words.index("--constraint")
        called["wanted"] = words[at + 2 :]
        called["pinned"] = Path(words[at + 1]).read_text().splitlines()
        return subprocess.CompletedProcess(words, called["status"])

    needed = [
        "jax>=0.7.2",
        "flax>=0.11.2",
        "babel>=2.16; extra == 'experiments'",
        'torch>=2; extra == "bench"',
    ]
    monkeypatch.setattr(install.subprocess, "run", run)
    monkeypatch.setattr(importlib.metadata, "requires", {"attn": needed}.get)
    return called


def test_what_is_installed_leaves_jax_alone(pip):
    install.main()
    assert pip["wanted"] == ["flax>=0.11.2", "babel>=2.16"]
    assert pip["pinned"] == [f"{name}=={install.version(name)}" for name in install.JAX]
    pip["status"] = 1
    with pytest.raises(SystemExit, match="pip could not install what attn needs"):
        install.main()


@pytest.mark.parametrize(
    ("there", "device", "wanted"),
    [
        ({"jax": "0.7.1", "libtpu": "0.0.20"}, None, "jax[tpu]"),
        ({"jax": "0.7.1"}, "/usr/bin/nvidia-smi", "jax[cuda12]"),
        ({}, None, "jax"),
    ],
)
def test_a_jax_that_is_too_old_is_replaced(pip, monkeypatch, there, device, wanted):
    """With that of the lock file for the device; a restart then brings it into use."""
    monkeypatch.setattr(install, "version", there.get)
    monkeypatch.setattr(install.shutil, "which", lambda _: device)
    said = rf"here was {there.get('jax', 'none')}: .* Restart the runtime, then go on"
    with pytest.raises(SystemExit, match=said):
        install.main()
    assert pip["wanted"] == [wanted, "flax>=0.11.2", "babel>=2.16"]
    assert {line.partition("==")[0] for line in pip["pinned"]} == {*install.JAX}
    assert not [line for line in pip["pinned"] if "\\" in line or "hash" in line]


def test_the_sources_ask_for_what_the_first_cell_needs():
    for name in NAMES:
        made = json.loads((FOLDER / f"{name}.ipynb").read_text())
        assert made["metadata"]["kernelspec"]["name"] == "python3"
        text = "".join("".join(cell["source"]) for cell in made["cells"])
        assert "start(DEVICE)" in text and "attn-*.whl" in text
