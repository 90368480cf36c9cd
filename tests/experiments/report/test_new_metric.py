"""A metric that a test adds is in every part of a report, and nothing else is edited."""

import csv

import numpy as np
import pytest

from experiments.evaluation.metrics import (
    METRICS,
    Metric,
    Texts,
    corpus_scores,
    sentence_arrays,
)
from experiments.report.trial_files import read_results
from experiments.report.trial_outputs import read_sentences
from experiments.report.write import write_report
from tests.experiments import fakes


class Edits(Metric):
    key = "edits"
    heading = "Edits, %"
    higher_is_better = False
    columns = 2

    def of_sentences(self, texts):
        rows = []
        for translation, reference in texts.pairs:
            words = zip(translation.split(), reference.split(), strict=True)
            rows.append([sum(a != b for a, b in words), len(reference.split())])
        return np.array(rows)

    def of_sums(self, sums, sentences):
        return 100 * sums[..., 0] / sums[..., 1]


EDITS = Edits()

REFERENCES = [f"number {i} of all the sentences in this set" for i in range(40)]


def run(skill, seed):
    """The result and the sentences.npz of a run; fewer words are wrong with more skill."""
    rng = np.random.default_rng(seed)
    texts = []
    for reference in REFERENCES:
        words = np.array(reference.split())
        texts.append(" ".join(np.where(rng.random(len(words)) > skill, "x", words)))
    scores = corpus_scores(Texts(texts, REFERENCES), [EDITS])
    kept = fakes.sentences(np.random.default_rng(seed), len(REFERENCES), 0.0)
    kept |= sentence_arrays(Texts(texts, REFERENCES), [EDITS])
    return fakes.finished(**fakes.scores(kept), **scores), kept


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A sweep whose row "good" has fewer edits, and a row that was run before the metric."""
    trials = []
    for seed in range(3):
        for h, label, skill in ((4, "base", 0.5), (2, "good", 0.9)):
            result, kept = run(skill, seed)
            point = {"label": label, "model.h": h, "seed": seed}
            trials.append((point, result, {"sentences": kept}))
        old = {"label": "old", "model.h": 1, "seed": seed}
        trials.append((old, fakes.finished(), {}))
    workdir = fakes.sweep(tmp_path_factory.mktemp("edits"), trials)
    return write_report(workdir, (*METRICS, EDITS))


def test_the_table_has_its_means_and_verdicts(report):
    names = report.table.results.column("")
    means = dict(zip(names, report.table.results.column("Edits, %"), strict=True))
    scores = [run(0.9, seed)[0]["edits"] for seed in range(3)]
    assert means["good"].startswith(f"{np.mean(scores):.1f} ± ")
    assert means["old"] == "–"
    assert "better (Edits)" in report.table.results.rows[1][-1]


def test_differences_are_those_of_its_verdict(report):
    good = report.rows[1]
    assert good.verdicts["edits"].words == "better"
    grid = report.table.differences["edits"]
    assert grid.title == "Edits, %: differences to base"
    assert grid.column("") == ["base", "good", "old"]
    assert grid.rows[1][2] == f"{good.differences['edits'].mean:+.2f}"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("markdown", "## Edits, %: differences to base"),
        ("latex", r"& Edits, \% & $-$ base"),
        ("html", "Edits, %: differences to base"),
        ("html", ">Edits, %</text>"),
        ("html", "Edits on the test set, %"),
    ],
)
def test_every_file_has_it(report, name, text):
    assert text in getattr(report, name).read_text(encoding="utf-8")


def test_the_csv_has_a_column(report):
    lines = list(csv.DictReader(report.csv.read_text().splitlines()))
    scores = [float(line["edits"]) for line in lines if line["label"] == "base"]
    assert scores == pytest.approx([run(0.5, seed)[0]["edits"] for seed in range(3)])
    assert {line["edits"] for line in lines if line["label"] == "old"} == {""}


def test_its_arrays_are_checked(report):
    trial = read_results(report.csv.parent).trials[0]
    assert read_sentences(trial, (EDITS,))["test_edits"].shape == (len(REFERENCES), 2)
    narrow = type("Narrow", (Edits,), dict(columns=3))()
    message = r"test_edits: shapes \[\(40, 2\)\], not \(S, 3\)"
    with pytest.raises(ValueError, match=message):
        read_sentences(trial, (narrow,))
