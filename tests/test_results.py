"""What the pages of experiments/results say is what their data have."""

import importlib.util
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.quick


@pytest.fixture
def results(tmp_path, monkeypatch):
    """.ci/results.py, over a copy of the pages."""
    spec = importlib.util.spec_from_file_location("results", ROOT / ".ci/results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    shutil.copytree(module.PAGES, tmp_path / "results")
    monkeypatch.setattr(module, "PAGES", tmp_path / "results")
    return module


def test_every_page_is_what_its_data_make_of_it(results):
    assert results.faults() == []


@pytest.mark.parametrize(
    ("file", "old", "new", "fault"),
    [
        (
            "hard/cldr.md",
            "| 1.123 ± 0.005 |",
            "| 1.122 ± 0.005 |",
            "1.122 ± 0.005 is none",
        ),
        ("hard/cldr.md", "#", "# On 1.5 ± 0.2:", "1.5 ± 0.2 is none of its data"),
        ("hard/cldr.md", "#", "# +0.5 [0.2, 0.7]", "+0.5 [0.2, 0.7] is none"),
        (
            "hard/cldr.csv",
            "worse",
            "better",
            "hard/cldr.md: its data make another page",
        ),
        ("claims.toml", 'shows = "worse"', 'shows = "better"', "worse, not better"),
        (
            "claims.toml",
            '"supported"',
            '"refuted"',
            "README.md: claims.toml and the data make",
        ),
        (
            "layers/cldr.md",
            "<!-- about: cldr -->",
            "Some words.",
            "it does not begin with",
        ),
    ],
)
def test_what_is_changed_by_hand_is_found(results, file, old, new, fault):
    path = results.PAGES / file
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")
    assert any(fault in found for found in results.faults())
