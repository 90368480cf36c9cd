"""Which rows are compared with which, and that the answers are right."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest

from experiments.errors import UserError
from experiments.evaluation.metrics import BLEU, CHRF, PERPLEXITY
from experiments.report import comparison, table
from experiments.report.finding import finding
from experiments.report.questions import Group, Question, groups_of, pairs_of
from experiments.report.table import VERDICTS, result_table
from experiments.report.trial_files import Results
from experiments.stats.sequential import Budget, Plan
from tests.experiments.report.test_comparison import nothing_kept, row

pytestmark = pytest.mark.quick


def product(values, bleus=lambda point, seed: 20.0 + 0.1 * seed, seeds=3, corpus=None):
    """A row for each point of a product {key: values}; the first of each is the base's."""
    rows = []
    for chosen in itertools.product(*values.values()):
        settings = dict(zip(values, chosen, strict=True))
        point = {k: v for k, v in settings.items() if v != values[k][0]}
        label = "base" if not point else " ".join(map(str, chosen))
        scores = tuple(bleus(settings, seed) for seed in range(seeds))
        more = {} if corpus is None else {"corpus": corpus(settings)}
        found = row(label, (5.0,) * seeds, scores, point=point, **more)
        rows.append(dataclasses.replace(found, settings=settings))
    return rows


SCORES = {"model.score": ["scaled_dot", "mine.py:Own"], "model.d_k": [16, 4, 8]}


def test_each_row_has_its_partner_within_a_setting():
    rows = product(SCORES)
    for question in (
        Question("score=scaled_dot", ("d_k",)),
        Question("model.score=scaled_dot", ("model.d_k",)),
        Question("base", ("d_k",)),
        Question("", ("d_k",)),
    ):
        assert groups_of(rows, question) == [
            Group((0, 3), 0),
            Group((1, 4), 1),
            Group((2, 5), 2),
        ]
    other = Question("score=mine.py:Own", ("d_k",))
    assert [group.base for group in groups_of(rows, other)] == [3, 4, 5]


def test_a_base_is_named_by_its_label_its_name_or_its_settings():
    rows = product(SCORES)
    for name in ("scaled_dot 4", "score=scaled_dot,d_k=4", "d_k=4, score=scaled_dot"):
        assert groups_of(rows, Question(name)) == [Group((0, 1, 2, 3, 4, 5), 1)]


def test_settings_that_go_with_another_need_no_naming():
    """Half of the width goes with twice the heads: within h, each has the base's score."""
    rows = product({"model.score": ["dot", "additive"], "model.h": [4, 8]})
    for i, each in enumerate(rows):
        if each.settings["model.h"] == 8:
            more = {"model.d_k": 8}
            rows[i] = dataclasses.replace(each, point={**each.point, **more})
    groups = groups_of(rows, Question(within=("h",)))
    assert groups == [Group((0, 2), 0), Group((1, 3), 1)]


def test_a_group_without_such_a_row_has_no_base():
    rows = product(SCORES)[:5]
    groups = groups_of(rows, Question("score=mine.py:Own", ("d_k",)))
    assert groups == [Group((0, 3), 3), Group((1, 4), 4), Group((2,), None)]
    judged = comparison.compare(
        rows, nothing_kept, [BLEU], question=Question("score=mine.py:Own", ("d_k",))
    )
    assert [bool(row.differences) for row in judged] == [
        True,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (
            Question("adaptive"),
            "--base=adaptive: no row is called so; there are base, ",
        ),
        (Question("scaled_dot 5"), "; did you mean scaled_dot"),
        (
            Question("score=dot"),
            "no row has it; there are model.score: Own, scaled_dot",
        ),
        (
            Question("score=scaled_dot"),
            "3 rows have it that are compared with each other (base, scaled_dot 4, "
            "scaled_dot 8): name one of them, or compare within what sets them apart: "
            "--within=model.d_k",
        ),
        (
            Question("", ("h",)),
            "h does not vary in this table; what varies: model.score, model.d_k",
        ),
        (Question("", ("d_kk",)), "did you mean d_k?"),
    ],
)
def test_a_question_that_the_table_has_no_rows_for_says_what_there_is(
    question, message
):
    with pytest.raises(UserError) as raised:
        groups_of(product(SCORES), question)
    assert message in str(raised.value)


def test_within_needs_a_base():
    rows = product(SCORES)[1:]
    assert groups_of(rows) == []
    with pytest.raises(
        UserError, match="no row of the table is its base: name one, as"
    ):
        groups_of(rows, Question(within=("d_k",)))


def test_rows_are_judged_against_their_partners_and_the_finding_says_so():
    def bleus(settings, seed):
        gain = 3.0 if settings["model.score"] == "mine.py:Own" else 0.0
        return 20.0 + gain + settings["model.d_k"] + 0.1 * seed

    question = Question("score=scaled_dot", ("d_k",))
    rows = comparison.compare(
        product(SCORES, bleus), nothing_kept, [BLEU], question=question
    )
    assert [row.base for row in rows] == [0, 1, 2, 0, 1, 2]
    for row_ in rows[3:]:
        assert row_.differences["bleu"].mean == pytest.approx(3.0, abs=0.05)
        assert row_.verdicts["bleu"].words == "better"
    assert rows[1].differences == rows[2].differences == {}
    text = finding(rows, [BLEU])
    assert "mine.py:Own 4 is better than scaled_dot 4: BLEU is 3.00 higher" in text
    assert "mine.py:Own 16 is better than base: BLEU is 3.00 higher" in text


def test_a_table_says_the_base_of_a_row_where_its_factors_do_not(monkeypatch):
    bleus = lambda settings, seed: 20.0 + settings["model.d_k"] + 0.1 * seed

    def verdicts():
        question = Question("score=scaled_dot", ("d_k",))
        rows = comparison.compare(
            product(SCORES, bleus), nothing_kept, [BLEU], question=question
        )
        found = result_table(Results(Path("."), (), metrics=(BLEU,)), rows)
        return found.results.column(VERDICTS)

    assert not any("(against" in text for text in verdicts())
    # A table that is no product has sentences for names.
    monkeypatch.setattr(table, "factors_of", lambda rows: {})
    assert verdicts()[-1].endswith("(against scaled_dot 8)")


def test_a_factor_with_the_name_of_another_column_is_told_from_it():
    rows = [
        dataclasses.replace(row_, parts={"seeds": str(i // 3), "d_k": str(i % 3)})
        for i, row_ in enumerate(product(SCORES))
    ]
    found = result_table(Results(Path("."), (), metrics=(BLEU,)), rows)
    assert found.results.headings[:4] == ("by seeds", "d_k", "seeds", "parameters")


def test_seeds_go_where_the_question_is_open():
    """Within 16 the gain is plain after two seeds, within 4 and 8 there may be none."""
    rng = np.random.default_rng(3)

    def bleus(settings, seed):
        gain = 90.0 * (settings["model.score"] != "scaled_dot")
        return 20.0 + gain * (settings["model.d_k"] == 16) + rng.standard_normal()

    rows = product(SCORES, bleus, seeds=2)
    question = Question("score=scaled_dot", ("d_k",))
    plan = comparison.next_plan(
        rows, nothing_kept, Budget(60), [BLEU], question=question
    )
    # No seed for what is decided, nor for its base.
    assert plan == Plan((2, 3, 3, 2, 3, 3), 2)


QUESTIONS = {
    "own score at equal d_k": (
        SCORES,
        Question("score=scaled_dot", ("d_k",)),
        None,
    ),
    "systems at equal length and keys": (
        {
            "model.decoder_mixing": ["attention", "gru", "convolution"],
            "data.length": [64, 32],
            "data.key_values": [4, 2],
        },
        Question("decoder_mixing=attention", ("length", "key_values")),
        lambda settings: f"{settings['data.length']} {settings['data.key_values']}",
    ),
    "normalisers within positions": (
        {
            "model.normaliser": ["softmax", "sink", "sigmoid"],
            "model.positions": ["rotary", "alibi", "none"],
        },
        Question("normaliser=softmax", ("positions",)),
        None,
    ),
}


@pytest.mark.ci
@pytest.mark.parametrize("name", QUESTIONS)
def test_false_verdicts_come_in_one_table_of_twenty(name):
    """What differs between groups is large, and within them nothing does."""
    values, question, corpus = QUESTIONS[name]
    tables = 200
    wrong = 0
    rng = np.random.default_rng(0)
    within = [next(k for k in values if k.endswith(f".{w}")) for w in question.within]
    for _ in range(tables):
        levels = {}

        def bleus(settings, seed, levels=levels):
            group = tuple(settings[key] for key in within)
            level = levels.setdefault(group, 30 + 10 * rng.random())
            return level + rng.standard_normal()

        rows = product(values, bleus, corpus=corpus)
        judged = comparison.compare(rows, nothing_kept, [BLEU], question=question)
        words = [row.verdicts[BLEU.key].words for row in judged if row.verdicts]
        assert len(words) == sum(
            group.comparisons for group in groups_of(rows, question)
        )
        wrong += any(word in ("better", "worse") for word in words)
    # 3.3 standard errors above 5 %.
    assert wrong / tables < 0.05 + 3.3 * np.sqrt(0.05 * 0.95 / tables)


# Pairs


def test_pairs_are_named_or_all_of_a_setting():
    rows = product(SCORES)
    for text in ("mine.py:Own 4:base", "d_k=4,score=mine.py:Own:base"):
        assert pairs_of(rows, Question(pairs=(text,))) == [(4, 0)]
    both = Question(pairs=("base:mine.py:Own 4", "mine.py:Own 4:base"))
    assert pairs_of(rows, both) == [(0, 4)]
    assert pairs_of(rows, Question(pairs=("score",))) == [(3, 0), (4, 1), (5, 2)]
    widths = [(1, 0), (2, 0), (2, 1), (4, 3), (5, 3), (5, 4)]
    assert pairs_of(rows, Question(pairs=("d_k",))) == widths
    within = Question(pairs=("d_k",), within=("score",))
    assert pairs_of(rows, within) == widths


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (
            Question(pairs=("base:bas",)),
            "--pairs=bas: no row is called so; there are base",
        ),
        (Question(pairs=("base:base",)), "--pairs=base:base: both are base"),
        (Question(pairs=("d_k=4:base",)), "several rows are d_k=4; name one of them"),
        (Question(pairs=("h",)), "h does not vary in this table"),
        (
            Question(base="base", pairs=("d_k",)),
            "the pairs of --pairs have their own bases",
        ),
    ],
)
def test_pairs_that_are_none_say_why(question, message):
    with pytest.raises(UserError) as raised:
        pairs_of(product(SCORES), question)
    assert message in str(raised.value)


def test_rows_that_share_nothing_are_no_pairs_of_a_setting():
    rows = [product(SCORES)[i] for i in (0, 4)]
    with pytest.raises(UserError, match="no two rows differ in it and have the rest"):
        pairs_of(rows, Question(pairs=("score",)))


def test_a_pair_is_judged_as_such():
    def bleus(settings, seed):
        gain = {16: 0.0, 4: 3.0, 8: 3.05}[settings["model.d_k"]]
        return 20.0 + gain + 0.1 * seed

    question = Question(pairs=("d_k",))
    judged = comparison.compare(
        product(SCORES, bleus), nothing_kept, [BLEU], question=question
    )
    assert [row.title for row in judged[:3]] == [
        "scaled_dot 4 against base",
        "scaled_dot 8 against base",
        "scaled_dot 8 against scaled_dot 4",
    ]
    means = [row.differences["bleu"].mean for row in judged]
    assert means == pytest.approx(2 * [3.0, 3.05, 0.05], abs=0.01)
    words = [row.verdicts["bleu"].words for row in judged]
    assert words[:2] == ["better", "better"]
    text = finding(judged, [BLEU], are_pairs=True)
    assert text.startswith(
        "6 of 6 rows differ from their bases: 6 better. The clearest: "
    )


def test_rows_of_other_text_are_no_evidence_in_pairs_either():
    values = {"model.h": [4, 2], "data.length": [64, 32]}
    rows = product(values, corpus=lambda settings: str(settings["data.length"]))
    asked = Question(pairs=("base:4 32", "h"))
    judged = comparison.compare(rows, nothing_kept, [BLEU], question=asked)
    assert [row.base for row in judged] == [None, 0, 1]
    assert [bool(row.verdicts) for row in judged] == [False, True, True]


def test_looks_spend_by_what_is_compared():
    """Of six rows, as many as have partners, in each metric that a trial has."""
    rows = product(SCORES)
    for question, pairs in (
        (Question(), 5),
        (Question("score=scaled_dot", ("d_k",)), 3),
        (Question(pairs=("d_k",)), 6),
    ):
        asked = (rows, [BLEU, PERPLEXITY, CHRF], question)
        assert comparison._comparisons(*asked) == 2 * pairs


@pytest.mark.parametrize(
    "others", [{"corpus": "another"}, {"vocabulary": "another"}, {}], ids=str
)
def test_all_bases_are_tried_of_one_text_and_one_vocabulary(others):
    rows = product(SCORES)[:3]
    row_ = rows[2]
    trials = tuple(
        dataclasses.replace(trial, record=trial.record | others)
        for trial in row_.trials
    )
    rows[2] = dataclasses.replace(row_, trials=trials)
    found = comparison.against_each(rows, nothing_kept, [BLEU])
    assert len(found) == (0 if others else 3)
    assert comparison.against_each(rows[:2], nothing_kept, [BLEU]) == []


def of_other_tokens(row_):
    trials = tuple(
        dataclasses.replace(trial, record=trial.record | {"vocabulary": "another"})
        for trial in row_.trials
    )
    return dataclasses.replace(row_, trials=trials)


@pytest.mark.parametrize("other", [0, 2])
def test_rows_of_other_tokens_keep_their_pairs_of_equal_ones(other):
    """In perplexity, which is of tokens; BLEU is of words, and has all pairs."""
    rows = product({"model.h": [4, 2, 1]})
    rows[other] = of_other_tokens(rows[other])
    asked = Question(pairs=("h",))
    metrics = [PERPLEXITY, BLEU]
    judged = comparison.compare(rows, nothing_kept, metrics, question=asked)
    # Of rows 1 and 0, 2 and 0, 2 and 1.
    alike = {2: 0, 0: 2}[other]
    for place, found in enumerate(judged):
        both = {"perplexity", "bleu"}
        assert set(found.differences) == (both if place == alike else {"bleu"})


def test_rows_of_other_tokens_say_nothing_of_the_rest():
    """Neither of their spreads nor as members of the family."""
    values = {"model.h": [4, 2, 1, 8]}
    scores = {
        4: (5.0, 5.1, 5.3),
        2: (5.2, 5.6, 5.5),
        1: (9.0, 4.0, 6.0),
        8: (3.0, 7.0, 8.0),
    }
    rows = []
    for each in product(values):
        h = each.settings["model.h"]
        made = row(each.label, scores[h], (20.0,) * 3, point=each.point)
        rows.append(made if h in (4, 2) else of_other_tokens(made))
    whole = comparison.compare(rows, nothing_kept, [PERPLEXITY])
    alone = comparison.compare(rows[:2], nothing_kept, [PERPLEXITY])
    one, other = (rows_[1].differences["perplexity"] for rows_ in (whole, alone))
    assert (one.low, one.high) == pytest.approx((other.low, other.high), rel=0.03)
