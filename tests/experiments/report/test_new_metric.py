"""A metric that a test adds is in every part of a report, and nothing else is edited."""

import csv

import numpy as np
import pytest
import sacrebleu

from experiments.evaluation.metrics import (
    METRICS,
    Metric,
    corpus_scores,
    sentence_arrays,
)
from experiments.report.trial_files import read_results
from experiments.report.trial_outputs import read_sentences
from experiments.report.write import compare_rows, write_report
from tests.experiments import fakes


def ter_of_corpus(translations, references, tokens_of):
    return sacrebleu.TER().corpus_score(translations, [references]).score


def ter_of_sentences(translations, references, tokens_of):
    rows = []
    for translation, reference in zip(translations, references, strict=True):
        score = sacrebleu.TER().sentence_score(translation, [reference])
        rows.append([score.num_edits, score.ref_length])
    return np.array(rows)


def ter_of_sums(sums, sentences):
    """Computes the translation edit rate (Snover et al. 2006), in per cent."""
    return 100 * sums[..., 0] / sums[..., 1]


TER = Metric(
    key="edits",
    heading="Edits, %",
    higher_is_better=False,
    of_corpus=ter_of_corpus,
    of_sentences=ter_of_sentences,
    of_sums=ter_of_sums,
    columns=2,
)
WITH_TER = (*METRICS, TER)

REFERENCES = [f"number {i} of all the sentences in this set" for i in range(40)]


def translations(skill, seed):
    """Returns references of which words are replaced, fewer with more skill."""
    rng = np.random.default_rng(seed)
    texts = []
    for reference in REFERENCES:
        words = np.array(reference.split())
        wrong = rng.random(len(words)) > skill
        texts.append(" ".join(np.where(wrong, "x", words)))
    return texts


def run(skill, seed):
    """Returns the result and the sentences.npz of a run."""
    texts = translations(skill, seed)
    scores = corpus_scores(texts, REFERENCES, metrics=[TER])
    kept = fakes.sentences(np.random.default_rng(seed), len(REFERENCES), 0.0)
    kept |= sentence_arrays(texts, REFERENCES, metrics=[TER])
    return fakes.finished(**fakes.scores(kept), **scores), kept


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """A sweep whose row "good" has a lower TER, and a row that was run before TER."""
    trials = []
    for label, skill in (("base", 0.5), ("good", 0.9)):
        for seed in range(3):
            point = {"label": label, "seed": seed}
            point |= {"model.h": 2} if label == "good" else {}
            result, kept = run(skill, seed)
            trials.append((point, result, {"sentences": kept}))
    for seed in range(3):
        trials.append(
            ({"label": "old", "model.h": 1, "seed": seed}, fakes.finished(), {})
        )
    return fakes.sweep(tmp_path_factory.mktemp("edits"), trials)


@pytest.fixture(scope="module")
def report(workdir):
    return write_report(workdir, WITH_TER)


def cells(report, label):
    """Returns {heading: cell} of a row of the table."""
    results = report.table.results
    (row,) = [row for row in results.rows if row[0] == label]
    return dict(zip(results.headings, row, strict=True))


def test_the_table_has_its_means_and_verdicts(report, workdir):
    scores = [
        ter_of_corpus(translations(0.9, seed), REFERENCES, "") for seed in range(3)
    ]
    assert cells(report, "good")["Edits, %"].startswith(f"{np.mean(scores):.1f} ± ")
    assert "better (Edits)" in cells(report, "good")["against base"]


def test_a_run_without_it_has_an_empty_cell(report, workdir):
    assert cells(report, "old")["Edits, %"] == "–"
    lines = list(csv.DictReader(report.csv.read_text().splitlines()))
    assert {line["edits"] for line in lines if line["label"] == "old"} == {""}


def test_differences_are_over_seeds_and_sentences(report, workdir):
    rows = compare_rows(read_results(workdir, WITH_TER))
    good = next(row for row in rows if row.label == "good")
    assert good.verdicts["edits"].words == "better"
    grid = report.table.differences["edits"]
    assert grid.title == "Edits, %: differences to base"
    assert [row[0] for row in grid.rows] == ["base", "good", "old"]
    assert grid.rows[1][2] == f"{good.differences['edits'].mean:+.2f}"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("markdown", "## Edits, %: differences to base"),
        ("latex", r"& Edits, \% & $-$ base"),
        ("html", "Edits, %: differences to base"),
        ("html", "Edits, %, difference to base"),
        ("html", "Edits on the test set, %"),
    ],
)
def test_every_file_has_it(report, name, text):
    assert text in getattr(report, name).read_text(encoding="utf-8")


def test_the_csv_has_a_column(report):
    lines = list(csv.DictReader(report.csv.read_text().splitlines()))
    scores = [float(line["edits"]) for line in lines if line["label"] == "base"]
    expected = [ter_of_corpus(translations(0.5, s), REFERENCES, "") for s in range(3)]
    assert scores == pytest.approx(expected)


def test_its_arrays_are_checked(workdir):
    trial = read_results(workdir).trials[0]
    assert read_sentences(trial, WITH_TER)["test_edits"].shape == (len(REFERENCES), 2)
    narrow = Metric(key="edits", heading="Edits", columns=3)
    with pytest.raises(
        ValueError, match=r"test_edits: shapes \[\(40, 2\)\], not \(S, 3\)"
    ):
        read_sentences(trial, (narrow,))
