"""Rows of another corpus are compared within it, with a base of their own."""

import itertools

import pytest

from experiments.evaluation.metrics import BLEU
from experiments.report import comparison
from experiments.report.finding import finding
from experiments.report.questions import Group, Question, groups_of
from tests.experiments.report.test_comparison import nothing_kept, row

pytestmark = pytest.mark.quick


def of_corpus(label, corpus, point, bleus=(20.0, 20.1, 20.2)):
    return row(label, (5.0, 5.1, 5.2), bleus, point=point, corpus=corpus)


def product(systems=("attention", "gru"), lengths=(64, 32, 128)):
    """A sweep over what mixes positions, and over the length of texts, with its batch."""
    groups = []
    for system, length in itertools.product(systems, lengths):
        point = {}
        if system != "attention":
            point["model.decoder_mixing"] = system
        if length != 64:
            point |= {"data.length": length, "training.batch_size": 2048 // length}
        gain = 3.0 * (system == "gru") + length / 100
        bleus = tuple(20.0 + gain + 0.1 * seed for seed in range(3))
        name = "base" if not point else f"{system} {length}"
        groups.append(of_corpus(name, f"of {length}", point, bleus))
    return groups


def test_each_corpus_has_the_base_of_its_own():
    assert groups_of(product()) == [
        Group((0, 3), 0),
        Group((1, 4), 1),
        Group((2, 5), 2),
    ]


def test_one_corpus_is_one_stratum():
    groups = [of_corpus(str(i), "same", {"model.h": i}) for i in range(4)]
    assert groups_of(groups, Question(base="2")) == [Group((0, 1, 2, 3), 2)]


def test_rows_of_a_corpus_without_the_bases_model_have_no_base():
    groups = [
        of_corpus("base", "a", {}),
        of_corpus("x", "a", {"model.h": 2}),
        of_corpus("y", "b", {"model.h": 4, "data.length": 9}),
        of_corpus("z", "b", {"model.h": 8, "data.length": 9}),
    ]
    assert groups_of(groups)[1] == Group((2, 3), None)
    rows = comparison.compare(groups, nothing_kept, [BLEU])
    assert [bool(row.differences) for row in rows] == [False, True, False, False]
    assert [row.verdicts for row in rows[2:]] == [{}, {}]


def test_a_row_is_judged_against_the_base_of_its_corpus():
    groups = product()
    rows = comparison.compare(groups, nothing_kept, [BLEU])
    for i, against in ((3, 0), (4, 1), (5, 2)):
        assert rows[i].base == against
        assert rows[i].differences["bleu"].mean == pytest.approx(3.0, abs=0.05)
        assert rows[i].verdicts["bleu"].words == "better"
    # Nothing is said of how one text differs from another.
    assert rows[1].differences == rows[2].differences == {}


def test_the_finding_says_so():
    rows = comparison.compare(product(), nothing_kept, [BLEU])
    text = finding(rows, [BLEU])
    assert text.startswith(
        "Rows are of 3 corpora, and each is compared within its own. "
    )
    assert "gru 32 is better than attention 32: BLEU is 3.00 higher" in text
    alone = comparison.compare(product(systems=("attention",)), nothing_kept, [BLEU])
    assert finding(alone, [BLEU]) == (
        "Rows are of 3 corpora, and each is compared within its own. 3 rows have no other "
        "to be compared with there, and nothing is said of them."
    )


def test_the_levels_of_all_corpora_add_up(monkeypatch):
    levels = []
    contrast = comparison.contrast

    def noted(columns, pairs, **more):
        levels.append(more["level"])
        return contrast(columns, pairs, **more)

    monkeypatch.setattr(comparison, "contrast", noted)
    comparison.compare(product(lengths=(64, 32)), nothing_kept, [BLEU])
    assert levels == [0.025, 0.025]
