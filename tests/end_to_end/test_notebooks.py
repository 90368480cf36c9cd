"""The notebooks: each is made of its source, its first cell says what is missing, it runs."""

import base64
import functools
import importlib.metadata
import importlib.util
import io
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import jupytext
import matplotlib.image
import nbformat
import pytest

from launch.notebooks import browser, install, store
from launch.notebooks.environment import command, report_frame, start
from launch.notebooks.store import WIDGET
from tests.end_to_end.colab import MOST_LINES

FOLDER = Path("launch/notebooks")
SPEC = importlib.util.spec_from_file_location("address", ".ci/address.py")
address = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(address)
NAMES = ("attention_by_hand", "ablation", "own_residual", "own_score", "own_text")
LONGEST_FIRST = 5
"""Lines of the cell that finds attn, and of the one with what a person may set."""
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
    kept = made.metadata["attn"]
    assert kept == store.about(FOLDER / f"{name}.py"), "make notebooks"


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
    firsts = {tuple(code[:3]) for code in codes}
    assert len(firsts) == 1
    parameters, setup, begin = firsts.pop()
    assert max(len(parameters.splitlines()), len(setup.splitlines())) <= LONGEST_FIRST
    assert "start(DEVICE)" in begin


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
    # In their place stand pictures, which every viewer shows.
    assert "<iframe" not in path.read_text()
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
        assert "start(DEVICE)" in text and "find_spec" in text


@pytest.mark.ci
@pytest.mark.skipif(
    not browser.find_browser(), reason="no Chromium; CHROMIUM may name one"
)
def test_a_frame_is_stored_as_a_picture(tmp_path):
    (tmp_path / "report.html").write_text("<body style='background: #ff0000'>")
    frame = report_frame(tmp_path)
    html = nbformat.v4.new_output("display_data", {"text/html": frame._repr_html_()})
    shown = base64.b64decode(store.pictured(html)["data"]["image/png"])
    picture = matplotlib.image.imread(io.BytesIO(shown))
    assert picture.shape[:2] == browser.SIZE[::-1]
    assert (picture[..., :3] == (1, 0, 0)).all()
    text = nbformat.v4.new_output("stream", text="no frame")
    assert store.pictured(text) is text


@pytest.fixture
def checkout(tmp_path):
    """The files that have the repository's address."""
    for name in ("pyproject.toml", "README.md", "CITATION.cff"):
        shutil.copy(name, tmp_path)
    shutil.copytree(FOLDER, tmp_path / FOLDER, ignore=shutil.ignore_patterns("_*"))
    return tmp_path


def contents(folder):
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in paths}


def test_an_address_is_set_everywhere_and_taken_out_again(checkout):
    before = contents(checkout)
    url = "https://github.com/someone/attn"
    for _ in range(2):
        address.set_address(checkout, url)
        project = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]
        assert project["urls"] == {"Repository": url}
        assert f'repository-code: "{url}"' in (checkout / "CITATION.cff").read_text()
        readme = (checkout / "README.md").read_text()
        assert readme.count("colab-badge.svg") == 1 and f"git clone {url}" in readme
        for name in NAMES:
            source, made = (
                jupytext.read(checkout / FOLDER / f"{name}.{ending}")
                for ending in ("py", "ipynb")
            )
            assert cells(source) == cells(made)
            assert f'ATTN = "git+{url}.git"' in source.cells[2].source
            kept = store.about(checkout / FOLDER / f"{name}.py")
            assert made.metadata["attn"] == kept
    # Colab opens what GitHub has.
    address.set_address(checkout, "https://codeberg.org/someone/attn.git")
    readme = (checkout / "README.md").read_text()
    assert (
        "colab" not in readme
        and "git clone https://codeberg.org/someone/attn`" in readme
    )
    address.set_address(checkout, "")
    assert contents(checkout) == before


@pytest.mark.parametrize("wrong", ["github.com/someone/attn", "https://x", "a b"])
def test_what_is_no_address_is_refused(checkout, wrong):
    before = contents(checkout)
    with pytest.raises(ValueError, match=f"URL={wrong} is no address"):
        address.set_address(checkout, wrong)
    assert contents(checkout) == before
