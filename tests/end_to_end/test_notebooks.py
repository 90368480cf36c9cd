"""The notebooks: each is made of its source, its first cell says what is missing, it runs."""

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import jupytext
import nbclient
import pytest

from launch.notebooks import install
from launch.notebooks.environment import start

FOLDER = Path("launch/notebooks")
NAMES = ("attention_by_hand", "ablation", "own_text")


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
    assert not any(cell.get("outputs") for cell in made.cells)
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


@pytest.mark.ci
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_on_eight_devices(name, tmp_path, monkeypatch):
    """Small, from an empty folder of runs."""
    notebook = jupytext.read(FOLDER / f"{name}.py")
    (place,) = [
        cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])
    ]
    place.source = place.source.replace("SMALL = False", "SMALL = True")
    for cell in notebook.cells:
        cell.source = cell.source.replace("runs/notebook", f"{tmp_path}/notebook")
    monkeypatch.setenv("NPROC", "32")
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "8")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    said = "".join(
        output.get("text", "")
        for cell in notebook.cells
        for output in cell.get("outputs", [])
    )
    assert "8 × cpu (cpu)" in said and f"python {sys.version.split()[0]}" in said
    assert "SMALL = True" in place.source


def test_the_first_cell_says_what_there_is(capsys):
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


def test_what_is_installed_leaves_jax_alone(monkeypatch, tmp_path):
    called = {}

    def run(words, **options):
        called["words"] = words
        called["pinned"] = Path(words[words.index("--constraint") + 1]).read_text()
        return subprocess.CompletedProcess(words, called.get("status", 0))

    monkeypatch.setattr(install.subprocess, "run", run)
    needed = ["jax>=0.10", "flax>=0.12", "jaxtyping>=0.3", 'torch>=2; extra == "bench"']
    monkeypatch.setattr(importlib.metadata, "requires", {"attn": needed}.get)
    install.main()
    others = called["words"][called["words"].index("--constraint") + 2 :]
    assert not [one for one in others if one.startswith(("jax>", "jax[", "jaxlib"))]
    assert others == ["flax>=0.12", "jaxtyping>=0.3"]
    assert called["pinned"] == "".join(
        f"{name}=={install.version(name)}\n" for name in install.JAX
    )
    called["status"] = 1
    with pytest.raises(
        SystemExit, match="pip could not install what attn needs beside jax"
    ):
        install.main()
    monkeypatch.setattr(install, "version", lambda name: "0.7.2")
    with pytest.raises(
        SystemExit, match=r"attn needs jax 0\.10 or newer, and here is 0\.7\.2"
    ):
        install.main()
    monkeypatch.setattr(install, "version", lambda name: None)
    with pytest.raises(SystemExit, match="here is none"):
        install.main()


def test_the_sources_ask_for_what_the_first_cell_needs():
    for name in NAMES:
        made = json.loads((FOLDER / f"{name}.ipynb").read_text())
        assert made["metadata"]["kernelspec"]["name"] == "python3"
        text = "".join("".join(cell["source"]) for cell in made["cells"])
        assert "start(DEVICE)" in text and "attn-*.whl" in text
