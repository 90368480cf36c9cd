import math

import numpy as np
import pytest
from scipy import stats

from experiments.evaluation.metrics import BLEU, EXACT_MATCH, PERPLEXITY
from experiments.report import comparison, statistics
from experiments.report.published import TABLE_3, Published
from experiments.report.results import TrialResult
from experiments.report.statistics import Group

S, V = 41, 53


def trial(label, seed, status="finished", corpus="c0ffee", **result):
    result = {
        "status": status,
        "perplexity": 5.0,
        "bleu": 25.0,
        "exact_match": 0.5,
    } | result
    return TrialResult(
        f"{label} seed={seed}",
        {"seed": seed},
        seed,
        None,
        {},
        {"corpus": corpus},
        (),
        result,
        status,
        label,
    )


def row(label, perplexities, bleus, point=None, **more):
    trials = tuple(
        trial(label, seed, perplexity=perplexity, bleu=bleu, **more)
        for seed, (perplexity, bleu) in enumerate(zip(perplexities, bleus, strict=True))
    )
    return Group({"model.h": label} if point is None else point, trials, label)


def nothing_kept(trial):
    return {}


def kept(trial, S=S):
    """Sentences by chance, their own for each trial; rows named "good" are better."""
    good = "good" in trial.name
    rng = np.random.default_rng([good, trial.seed, 7])
    reference = np.random.default_rng(0).integers(4, 20, S)
    total = np.maximum(0, reference[:, None] - np.arange(4))
    correct = rng.binomial(total, (0.9 if good else 0.7) ** np.arange(1, 5))
    lengths = reference[:, None].repeat(2, axis=1)
    tokens = np.random.default_rng(1).integers(1, 20, V)
    nll = tokens * rng.gamma(9, (0.1 if good else 0.2), V)
    return {
        "test_bleu": np.concatenate([correct, total, lengths], 1).astype(np.int32),
        "test_exact": rng.random(S) < (0.8 if good else 0.4),
        "validation_nll": nll.astype(np.float32),
        "validation_tokens": tokens.astype(np.int32),
    }


BASE = row("base", (4.92, 4.90, 4.95), (25.8, 25.7, 25.9), point={})
GROUPS = [
    row("(A) h=1", (5.29, 5.25, 5.33), (23.80, 23.71, 23.89)),
    BASE,
    row("(C) N=8", (5.20, 5.179, 5.231), (26.0, 26.01, 26.29)),
    row("mine", (4.92, 4.90, 4.95), (25.8, 25.7, 25.9)),
    row("(A) h=16", (5.20, 5.19, 5.22), (23.1, 23.0, 23.21)),
]


def test_rows_stand_against_the_group_labelled_base():
    first, base, *others = comparison.compare(GROUPS, nothing_kept)
    assert [one.group for one in (first, base, *others)] == GROUPS
    assert [one.label for one in (first, base, *others)] == [
        group.label for group in GROUPS
    ]
    assert first.differences["perplexity"].mean == pytest.approx(0.37 - 0.01 / 3)
    assert first.differences["bleu"].mean == pytest.approx(-2.0)
    assert base.differences == {}
    assert (dict(base.adjusted), dict(base.verdicts), base.published) == (
        {},
        {},
        Published(4.92, 25.8),
    )
    assert (
        others[1].differences["perplexity"].mean == 0.0 and others[1].published is None
    )


def test_the_base_is_the_one_labelled_so_or_else_the_unchanged_one():
    unchanged, labelled = row("", (1,), (1,), point={}), row("base", (1,), (1,))
    assert comparison.base_of([GROUPS[0], unchanged, labelled]) is labelled
    assert comparison.base_of([GROUPS[0], unchanged]) is unchanged
    assert comparison.base_of([GROUPS[0]]) is None and comparison.base_of([]) is None
    without = comparison.compare(
        [GROUPS[0], GROUPS[2]], pytest.fail
    )  # no base: no sentence is read
    assert [one.differences for one in without] == [{}, {}]
    assert without[0].ordering == {
        "perplexity": "",
        "bleu": "",
    }
    assert comparison.compare([], nothing_kept) == []


def test_p_values_are_adjusted_over_the_rows_of_a_metric():
    rows = [
        one for one in comparison.compare(GROUPS, nothing_kept) if one.label != "base"
    ]
    values = np.array(
        [
            [[t.result[metric] for t in one.group.trials] for one in rows]
            for metric in Published._fields
        ]
    )
    base = np.array(
        [[t.result[metric] for t in BASE.trials] for metric in Published._fields]
    )
    for i, metric in enumerate(Published._fields):
        p_values = [
            stats.ttest_rel(own, base[i]).pvalue if (own != base[i]).any() else 1.0
            for own in values[i]
        ]
        assert [one.differences[metric].p for one in rows] == pytest.approx(p_values)
        assert [one.adjusted[metric] for one in rows] == pytest.approx(
            statistics.holm(p_values)
        )
        alone = statistics.paired(
            dict(enumerate(values[i][0])), dict(enumerate(base[i])), level=0.05 / 4
        )
        assert (
            rows[0].differences[metric] == alone
        )  # detectable at the level that Holm's correction always leaves
    assert [one.verdicts["bleu"] for one in rows] == [
        "worse",
        rows[1].verdicts["bleu"],
        "no difference shown",
        "worse",
    ]
    assert rows[1].verdicts["bleu"].startswith("no difference shown; differences above")
    assert (
        rows[1].differences["bleu"].p < 0.05 < rows[1].adjusted["bleu"]
    )  # so that the paper's ordering is not told from p alone


def test_the_papers_orderings():
    orderings = {
        one.label: one.ordering for one in comparison.compare(GROUPS, nothing_kept)
    }
    assert orderings == {
        "(A) h=1": {"perplexity": "supported", "bleu": "supported"},
        "base": {"perplexity": "", "bleu": ""},
        "(C) N=8": {"perplexity": "contradicted", "bleu": "cannot tell"},
        "mine": {"perplexity": "", "bleu": ""},
        "(A) h=16": {"perplexity": "contradicted", "bleu": ""},
    }  # 25.8 is base's BLEU too: the paper has no ordering


def test_a_row_with_too_few_seeds_has_no_difference_and_counts_for_nothing():
    two = row("two", (5.0, 5.1), (24.0, 24.2))
    one = Group(
        {"x": 1},
        (
            trial("(A) h=4", 0),
            trial("(A) h=4", 1, status="failed"),
            trial("(A) h=4", 7),
        ),
        "(A) h=4",
    )
    rows = comparison.compare([BASE, two, one, row("none", (), ())], nothing_kept)
    bleu = rows[1].differences["bleu"]
    assert bleu.n == 2 and rows[1].adjusted["bleu"] == bleu.p
    for empty in rows[2:]:
        assert empty.differences == empty.adjusted == empty.verdicts == {}
    assert rows[2].published == TABLE_3["(A) h=4"] and rows[2].ordering == {
        "perplexity": "",
        "bleu": "",
    }


def test_a_metric_that_results_lack_is_not_compared():
    rows = comparison.compare(
        [BASE, row("no BLEU", (5.0, 5.2, 5.1), (None, None, None))], nothing_kept
    )
    compared = {"perplexity", "exact_match"}
    assert rows[1].differences.keys() == compared
    assert rows[1].adjusted.keys() == rows[1].verdicts.keys() == compared


@pytest.mark.parametrize("metric", [PERPLEXITY, BLEU, EXACT_MATCH], ids=lambda m: m.key)
def test_sentences_are_used_where_both_sides_kept_them(metric):
    good = row("good", (1, 2, 3), (1, 2, 3))
    (_, compared) = comparison.compare([BASE, good], kept)
    weights = statistics.resamples(V if metric is PERPLEXITY else S)
    sides = []
    for group in (good, BASE):
        tables = {trial.seed: metric.statistics(kept(trial)) for trial in group.trials}
        sides.append(statistics.resampled_scores(metric, tables, weights))
    assert compared.differences[metric.key] == statistics.paired_scores(*sides)
    assert compared.verdicts[metric.key] == "better"


def test_a_metric_whose_sentences_an_old_run_lacks_is_compared_by_its_results():
    base = [trial("base", seed, chrf=50.0 + seed) for seed in range(3)]
    other = [trial("good", seed, chrf=52.0 + 2 * seed) for seed in range(3)]
    groups = [Group({}, tuple(base), "base"), Group({"x": 1}, tuple(other), "good")]
    compared = comparison.compare(groups, kept)[1]
    expected = statistics.paired(
        {0: 52.0, 1: 54.0, 2: 56.0}, {0: 50.0, 1: 51.0, 2: 52.0}
    )
    assert compared.differences["chrf"] == expected


@pytest.mark.parametrize(
    "why",
    ["none kept", "one not kept", "other sentences", "other corpus", "one sentence"],
)
def test_else_chance_is_the_seeds_alone(why):
    good = row(
        "good",
        (6.0, 6.2, 6.1),
        (24.0, 24.3, 24.1),
        corpus="other" if why == "other corpus" else "c0ffee",
    )

    def sentences(trial):
        if trial in good.trials and (
            why == "none kept" or (why == "one not kept" and trial.seed == 1)
        ):
            return {}
        size = (
            1
            if why == "one sentence"
            else S - (why == "other sentences" and trial in good.trials)
        )
        return {
            key: array[: size + (key[0] == "v" and size > 1)]
            for key, array in kept(trial).items()
        }

    found = comparison.compare([BASE, good], sentences)[1]
    expected = statistics.paired(
        {0: 24.0, 1: 24.3, 2: 24.1}, {0: 25.8, 1: 25.7, 2: 25.9}
    )
    assert found.differences["bleu"] == expected
    assert found.differences["perplexity"].mean == pytest.approx(6.1 - 4.92 - 0.01 / 3)


def test_seeds_that_only_one_side_has_need_no_sentences():
    base = Group({}, (*BASE.trials, trial("base", 3)), "base")
    found = comparison.compare(
        [base, row("good", (1, 2), (1, 2))], lambda t: {} if t.seed == 3 else kept(t)
    )[1]
    bleu = found.differences["bleu"]
    # Of the sentences, not of the results 1 and 2.
    assert bleu.n == 2 and bleu.mean > 10


def test_test_sets_are_resampled_once_for_each_size_and_groups_scored_once(monkeypatch):
    sizes = []
    scored = []
    resamples = statistics.resamples
    resampled_scores = statistics.resampled_scores

    def counted_resamples(size):
        sizes.append(size)
        return resamples(size)

    def counted_scores(metric, tables, weights):
        scored.append((metric.key, len(tables)))
        return resampled_scores(metric, tables, weights)

    monkeypatch.setattr(statistics, "resamples", counted_resamples)
    monkeypatch.setattr(statistics, "resampled_scores", counted_scores)
    good = row("good", (1, 2), (1, 2))
    bad = row("bad", (1, 2, 3), (1, 2, 3))
    comparison.compare([BASE, good, bad], kept)
    assert sorted(sizes) == [S, V]
    assert [count for key, count in scored if key == "bleu"] == [3, 2, 3]


def test_exact_match_is_told_in_percent():
    other = Group(
        {"x": 1},
        tuple(trial("other", seed, exact_match=0.5 + 0.01 * seed) for seed in range(3)),
    )
    found = comparison.compare([BASE, other], nothing_kept)[1]
    percent = f"{100 * found.differences['exact_match'].detectable:.2g} %"
    assert (
        found.verdicts["exact_match"]
        == f"no difference shown; differences above {percent} would have shown"
    )


def test_a_difference_that_cannot_be_is_not_told_of():
    other = row("other", (5.0, 5.5, 9.0), (0.0, 50.0, 100.0), exact_match=0.5)
    verdicts = comparison.compare([BASE, other], nothing_kept)[1].verdicts
    assert verdicts["bleu"] == "no difference shown; too few seeds to show any"
    assert verdicts["perplexity"].endswith(" would have shown")


def test_a_diverged_value_shows_nothing_and_leaves_the_other_rows_alone():
    rows = comparison.compare(
        [*GROUPS, row("odd", (5.0, math.inf, 5.2), (25.0, math.nan, 25.1))],
        nothing_kept,
    )
    assert (
        rows[-1].adjusted["bleu"] == 1.0
        and rows[-1].verdicts["perplexity"] == "no difference shown"
    )
    assert rows[0].verdicts["bleu"] == "worse"


def test_the_papers_table():
    assert len(TABLE_3) == 20
    best = lambda metric, pick: pick(
        TABLE_3, key=lambda label: getattr(TABLE_3[label], metric)
    )
    assert (best("perplexity", min), best("bleu", max)) == ("big", "big")
    assert (best("perplexity", max), best("bleu", min)) == ("(C) N=2", "(C) N=2")
