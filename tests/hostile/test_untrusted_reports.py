"""Reports of strangers' files: what no run writes counts as not there, or is refused in one
line."""

import itertools
import json

import numpy as np
import pytest

from experiments.report import page_figures
from experiments.report.figures import curves, differences, heat_maps, lengths
from experiments.report.figures.style import Picture
from experiments.report.results import ResultsError, read_results
from experiments.report.sql import run_query
from experiments.report.write import write_report
from tests.experiments import fakes
from tests.hostile.garbage import EVIL, FORMULA, GARBAGE, pickled
from tests.hostile.sweep_files import replaced, trials


@pytest.fixture
def bomb(tmp_path):
    """Where a file will be if anything unpickles it."""
    path = tmp_path / "executed"
    yield path
    assert not path.exists()


@pytest.fixture
def undrawn(monkeypatch):
    """Figures take a second each; what they draw is checked before."""
    for module, name in (
        (differences, "forest"),
        (curves, "training_curves"),
        (page_figures, "scatter"),
        (lengths, "by_length"),
        (heat_maps, "head_entropies"),
    ):
        monkeypatch.setattr(module, name, lambda *_: None)
    monkeypatch.setattr(page_figures, "product_pictures", lambda *_: [])
    blank = Picture("positions", "<svg></svg>", (), None)
    monkeypatch.setattr(heat_maps, "position_table", lambda *_: blank)


FILES = (
    "config.json",
    "record.json",
    "result.json",
    "metrics.jsonl",
    "examples.json",
    "examples.npz",
    "sentences.npz",
)


@pytest.mark.parametrize("name", FILES)
def test_a_report_of_garbage(name, tmp_path, bomb, undrawn):
    """A file that is cut short, or of nothing at all, counts as not there."""
    workdir = trials(tmp_path / "sweep")
    garbage = [*GARBAGE, pickled(tmp_path / "x.npz", bomb)]
    for content in garbage:
        if (name, content) != ("examples.json", b"[1, 2]"):
            (workdir / "trials/00" / name).write_bytes(content)
            report = write_report(workdir)
            assert report.table.results.rows[0][1] == (
                "1 of 2" if name == "result.json" else "2"
            )
    run_query([workdir], "select * from trials, metrics")


VALUES = (
    None,
    True,
    -1,
    0.5,
    2**63,
    10**400,
    float("nan"),
    float("-inf"),
    "",
    "x",
    EVIL,
    FORMULA,
    "\ud800",
    "a\0b",
    [],
    [1],
    {},
    {"a": {"b": 1}},
    {"": {"": None}},
)
PLACES = {
    "sweep.json": (
        "config",
        "base",
        "base.model",
        "base.model.h",
        "base.seed",
        "sweeps",
        "sweeps.0",
        "trials.0.name",
        "trials.0.point",
        "trials.0.point.seed",
        "trials.0.point.model.h",
        "trials.0.label",
        "trials.0",
        "x",
    ),
    "config.json": (
        "model",
        "model.positions",
        "training.steps",
        "seed",
        "data.directory",
        "x",
        "MODEL",
        "model.H",
    ),
    "record.json": (
        "name",
        "point",
        "started",
        "versions",
        "versions.jax",
        "git",
        "device",
        "devices",
        "corpus",
        "corpus_counts",
        "corpus_counts.train",
        "vocabulary",
        "python",
        "x",
    ),
    "result.json": (
        "status",
        "error",
        "parameters",
        "perplexity",
        "bleu",
        "chrf",
        "exact_match",
        "test_sentences",
        "seconds",
        "beside",
        "beside.raw",
        "beside.raw.test",
        "beside.raw.test.bleu",
        "NAME",
        "x",
    ),
    "examples.json": (
        "0",
        "0.source",
        "0.translation",
        "0.source_tokens",
        "0.source_tokens.0",
        "0.target_tokens",
        "x",
    ),
}


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.ci) for part in range(1, 8))]
)
@pytest.mark.parametrize("name", PLACES)
def test_a_report_of_wrong_types(name, part, tmp_path, undrawn):
    """It is written, or a line names the file; the same of SQL over it."""
    path = trials(tmp_path) / ("" if name == "sweep.json" else "trials/00") / name
    whole = json.loads(path.read_text())
    said = []
    for place, value in list(itertools.product(PLACES[name], VALUES))[part::8]:
        path.write_text(json.dumps(replaced(whole, place, value)))
        try:
            write_report(tmp_path)
            run_query([tmp_path], "select * from trials, metrics")
        except ResultsError as error:
            said.append(str(error))
            assert str(path) in said[-1] or str(path.parent) in said[-1]
    assert (
        0 < len(said) < len(PLACES[name]) * len(VALUES) / 8
        and max(map(len, said)) < 600
    )


LINES = (
    {"step": "x"},
    {"step": None},
    {"step": [1]},
    {"step": True},
    {"step": -1},
    {"step": 10**300},
    {"step": 1.5},
    {"step": 2**62},
    {"split": 3},
    {"split": ["train"]},
    {"loss": EVIL},
    {"loss": [1]},
    {"loss": 1e308},
    {"perplexity": "1"},
    {"perplexity": -1.0},
    {"perplexity": 1e300},
    {"perplexity": float("inf")},
    {"perplexity": 0},
    {"LOSS": 1},
    {"": 1},
    {"a\0b": 2},
    {"workdir": "x"},
)


def test_metrics_of_wrong_types_and_sizes(tmp_path):
    """Drawn, too."""
    lines = [
        {"step": 75, "split": split, "loss": 2.0, "perplexity": 9.0} | line
        for split in ("train", "validation")
        for line in LINES
    ]
    with open(
        trials(tmp_path) / "trials/00/metrics.jsonl", "a", encoding="utf-8"
    ) as file:
        file.write("".join(f"{line}\n" for line in map(json.dumps, lines)))
    assert write_report(tmp_path).html.stat().st_size > 10_000
    ((workdir, count),) = run_query(
        [tmp_path], "select workdir, count(*) from metrics group by all"
    ).rows
    assert workdir == str(tmp_path) and count > 6


@pytest.mark.parametrize(
    ("name", "arrays", "message"),
    [
        (
            "sentences.npz",
            {"validation_nll": np.ones(3)},
            "arrays of validation have the shapes",
        ),
        (
            "sentences.npz",
            {
                "test_bleu": np.ones((3, 9)),
                "test_exact": np.ones(3),
                "test_source": np.ones(3),
            },
            "of test",
        ),
        (
            "sentences.npz",
            {
                "test_bleu": np.ones(()),
                "test_exact": np.ones(()),
                "test_source": np.ones(()),
            },
            "of test",
        ),
        (
            "sentences.npz",
            {
                "validation_nll": np.ones(3),
                "validation_tokens": np.ones(3, int),
                "validation_source": np.full(3, np.nan),
            },
            "what is counted is of int64, float64",
        ),
        (
            "examples.npz",
            {"positions": np.ones(3)},
            r"positions has shape \(3,\), not \(L, d_model\)",
        ),
        ("examples.npz", {"positions": np.ones((4, 4, 3))}, "positions has shape"),
        ("examples.npz", {"0/encoder": np.ones((2, 4, 3))}, "0/encoder has shape"),
    ],
)
def test_arrays_of_other_shapes_are_named(name, arrays, message, tmp_path, undrawn):
    np.savez(
        trials(tmp_path, fakes.sentences(np.random.default_rng(0), 8, 0.0))
        / "trials/00"
        / name,
        **arrays,
    )
    with pytest.raises(ResultsError, match=f"{name}: .*{message}"):
        write_report(tmp_path)


def test_a_directory_with_a_name_that_none_can_have(tmp_path):
    workdir = trials(tmp_path)
    path = workdir / "sweep.json"
    sweep = json.loads(path.read_text())
    sweep["trials"][0]["directory"] = "x" * 5000
    path.write_text(json.dumps(sweep))
    with pytest.raises(ResultsError, match="a name of 5000 bytes") as refused:
        read_results(workdir)
    assert len(str(refused.value)) < 500
