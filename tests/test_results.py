"""What the pages of experiments/results say is what their data have."""

import importlib.util
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from experiments.evaluation.metrics import METRICS

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


def test_metrics_by_length_are_shares_of_one(results, monkeypatch):
    """As all scores that are kept, also of a metric that is shown in hundredths."""
    (metric,) = [metric for metric in METRICS if metric.key == "exact_match"]
    sentences = {
        "validation_source": np.array([2, 3, 6]),
        "test_source": np.array([2, 3, 6]),
        metric.arrays[0]: np.array([1, 0, 1]),
    }
    monkeypatch.setattr(results, "longest_in_training", lambda rows: 4)
    monkeypatch.setattr(results, "read_sentences", lambda trial, metrics: sentences)
    row = SimpleNamespace(name="base", finished=[SimpleNamespace(seed=0)])
    lines = list(results._lengths([row], [metric]))
    values = {line["bucket"]: line["value"] for line in lines}
    assert list(values.values()) == [1.0, 0.0, 1.0]
    # None is longer than those of training.
    monkeypatch.setattr(results, "longest_in_training", lambda rows: 6)
    assert not list(results._lengths([row], [metric]))
