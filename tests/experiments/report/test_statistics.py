import collections
import math

import numpy as np
import pytest
import sacrebleu
from scipy import stats

from experiments.evaluation.metrics import BLEU, EXACT_MATCH, PERPLEXITY, Metric
from experiments.report import statistics
from experiments.report.results import TrialResult, read_results
from experiments.report.statistics import Difference, Group, Score, Summary
from tests.experiments import fakes


def by_seed(values):
    return dict(enumerate(values))


def paired_tables(metric, row, base, seed=0, level=statistics.LEVEL):
    """Scores {seed: (S, k)} of both sides on the same resamples, and compares them."""
    sentences = len(next(iter(row.values())))
    weights = statistics.resamples(sentences, seed)
    sides = [statistics.resampled_scores(metric, side, weights) for side in (row, base)]
    return statistics.paired_scores(*sides, level)


def sampling_error(rate, count):
    """What a share of `count` stays within at 99.9 %."""
    return 3.3 * math.sqrt(rate * (1 - rate) / count)


# Means and groups


def test_by_hand():
    summary = statistics.summarise([1, 2, 6])
    assert (summary.mean, summary.spread, summary.n) == (
        3.0,
        math.sqrt((4 + 1 + 9) / 2),
        3,
    )
    assert (
        summary.high - 3
        == pytest.approx(4.3027 * math.sqrt(7 / 3), rel=1e-4)
        == 3 - summary.low
    )


@pytest.mark.parametrize("n", [2, 3, 5, 11])
def test_spread_is_the_sample_standard_deviation_and_the_interval_students(n):
    values = np.random.default_rng(n).normal(25.8, 0.1, n)
    summary = statistics.summarise(values)
    assert summary.n == n
    assert summary.mean == pytest.approx(values.mean(), rel=1e-14)
    assert summary.spread == pytest.approx(values.std(ddof=1), rel=1e-12)
    interval = stats.t.interval(0.95, n - 1, values.mean(), stats.sem(values))
    assert (summary.low, summary.high) == pytest.approx(interval, rel=1e-9)


def test_one_value_has_no_spread_and_none_has_nothing():
    assert statistics.summarise([4.92]) == Summary(4.92, None, 1, None, None)
    with pytest.raises(ValueError, match="no values"):
        statistics.summarise([])


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e200])
def test_a_diverged_value_shows_in_the_summary(bad):
    summary = statistics.summarise([1.0, bad])
    assert not summary.mean < 1e199
    assert not any(map(math.isfinite, (summary.spread, summary.low, summary.high)))


def test_groups_are_points_without_seed_in_order_of_appearance(tmp_path):
    trials = [
        ({"model.h": 8, "seed": 0}, fakes.finished(perplexity=2.0), {}),
        ({"seed": 0}, fakes.finished(), {}),
        ({"seed": 1, "model.h": 8}, fakes.finished(perplexity=4.0), {}),
        ({"model.h": 8, "seed": 2}, None, {}),
        ({"seed": 1, "model.h": 4}, fakes.finished(bleu=None), {}),
        ({"model.d_k": 4}, None, None),
    ]
    book = read_results(fakes.sweep(tmp_path, trials))
    h8, base, d_k4 = statistics.groups(book.trials, book.changes)

    assert [dict(group.point) for group in (h8, base, d_k4)] == [
        {"model.h": 8},
        {},
        {"model.d_k": 4},
    ]
    assert [len(group.trials) for group in (h8, base, d_k4)] == [
        3,
        2,
        1,
    ]  # h=4 is what the base has: the same point
    assert [trial.seed for trial in h8.finished] == [0, 1]
    assert (h8.summary("perplexity").mean, h8.summary("perplexity").spread) == (
        3.0,
        math.sqrt(2.0),
    )
    assert base.summary("bleu") == Summary(90.0, None, 1)
    assert d_k4.summary("perplexity") is None


def test_a_group_has_its_trials_label():
    trials = [
        TrialResult(
            f"{h} {seed}", {"h": h}, seed, None, {}, {}, (), None, "unfinished", label
        )
        for seed in (0, 1)
        for h, label in ((1, "(A) h=1" if seed else ""), (2, ""))
    ]
    assert [
        (group.point, group.label)
        for group in statistics.groups(trials, lambda trial: trial.point)
    ] == [({"h": 1}, "(A) h=1"), ({"h": 2}, "")]
    assert Group({}, ()).label == ""


# Seeds in pairs


@pytest.mark.parametrize("n", [2, 3, 5])
def test_a_pair_of_rows_is_students_test_over_shared_seeds(n):
    row, base = np.random.default_rng(n).normal([[25.0], [25.3]], 0.4, (2, n))
    found = statistics.paired(
        {**by_seed(row), 101: 90.0}, {-1: 80.0, **dict(reversed(by_seed(base).items()))}
    )
    expected = stats.ttest_rel(row, base)
    interval = expected.confidence_interval(0.95)
    assert (found.mean, found.p, found.n) == (
        pytest.approx((row - base).mean()),
        pytest.approx(expected.pvalue),
        n,
    )
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.d == pytest.approx((row - base).mean() / (row - base).std(ddof=1))


def test_fewer_than_two_shared_seeds_make_no_pair():
    for row, base in (
        ({}, {}),
        ({0: 1.0}, {0: 2.0}),
        ({0: 1.0, 1: 2.0}, {1: 2.0, 2: 1.0}),
    ):
        assert statistics.paired(row, base) is None
    assert paired_tables(BLEU, {0: np.ones((3, 10))}, {0: np.ones((3, 10))}) is None


def test_differences_without_spread():
    assert statistics.paired({0: 2.0, 1: 5.0}, {0: 2.0, 1: 5.0}) == Difference(
        0.0, 0.0, 0.0, 1.0, 0.0, 2, 0.0
    )
    assert statistics.paired({0: 1.0, 1: 4.0}, {0: 2.0, 1: 5.0}) == Difference(
        -1.0, -1.0, -1.0, 0.0, -math.inf, 2, 0.0
    )
    tiny = statistics.paired({0: 1.0, 1: 4.0, 2: 7.0}, {0: 2.0, 1: 5.0, 2: 8.0 + 1e-14})
    assert 0 < tiny.p < 1e-12 and tiny.high < 0
    for second in (-1.0, -1.0 + 2**-52):
        assert statistics.paired(
            {0: 1.0, 1: second}, {0: 0.0, 1: 0.0}
        ).p == pytest.approx(1.0)
    huge = statistics.paired({0: 1e150, 1: 2e150}, {0: 0.0, 1: 0.0})
    assert (
        huge.p == pytest.approx(stats.ttest_1samp([1.0, 2.0], 0).pvalue)
        and huge.detectable > 1e150
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e200])
def test_a_value_that_is_no_number_shows_nothing(bad):
    found = statistics.paired({0: 1.0, 1: bad, 2: 3.0}, {0: 2.0, 1: 2.5, 2: 3.5})
    assert (found.low, found.high, found.p, found.detectable) == (
        -math.inf,
        math.inf,
        1.0,
        math.inf,
    )
    assert math.isnan(found.d) and not abs(found.mean) < 1e199


@pytest.mark.parametrize("n", [2, 3, 5])
def test_five_percent_of_true_nulls_are_rejected(n):
    trials = 1500
    row, base = np.random.default_rng(n).normal(size=(2, trials, n)) + 20
    found = [
        statistics.paired(by_seed(r), by_seed(b))
        for r, b in zip(row, base, strict=True)
    ]
    rejected = np.mean([one.p < 0.05 for one in found])
    assert rejected == pytest.approx(0.05, abs=sampling_error(0.05, trials))
    assert np.mean([one.low <= 0 <= one.high for one in found]) == 1 - rejected


@pytest.mark.parametrize(
    ("n", "level"), [(2, 0.05), (3, 0.05), (5, 0.05), (3, 0.05 / 20), (5, 0.05 / 20)]
)
def test_detectable_differences_are_found_in_four_of_five_tables(n, level):
    found = statistics.paired(by_seed(np.arange(n) * 0.7), by_seed([3.0] * n), level)
    differences = np.random.default_rng(n).normal(
        found.detectable, np.std(np.arange(n) * 0.7, ddof=1), (20_000, n)
    )
    assert np.mean(
        stats.ttest_1samp(differences, 0, axis=1).pvalue < level
    ) == pytest.approx(0.8, abs=0.01)


# Scores over sentences


def ngram_counts(hypothesis, reference):
    hypothesis, reference = hypothesis.split(), reference.split()
    correct, total = [], []
    for k in range(1, 5):
        ours, theirs = (
            collections.Counter(zip(*[side[i:] for i in range(k)], strict=False))
            for side in (hypothesis, reference)
        )
        correct.append(sum((ours & theirs).values()))
        total.append(max(0, len(hypothesis) - k + 1))
    return [*correct, *total, len(hypothesis), len(reference)]


def test_bleu_is_sacrebleus():
    rng = np.random.default_rng(0)
    words = "ein zwei drei vier der die das Haus Hund".split()
    pairs = [
        (
            " ".join(
                np.where(rng.random(len(text)) < keep, text, rng.permutation(text))[
                    :cut
                ]
            ),
            " ".join(text),
        )
        for text in (list(rng.choice(words, n)) for n in rng.integers(0, 14, 40))
        for keep, cut in ((0.8, None), (0.3, None), (1.0, 5), (0.9, 0), (1.0, None))
    ]
    pairs += [(f"{text} {text}", text) for _, text in pairs[::9]] + [
        (text.upper(), text) for _, text in pairs[::9]
    ]
    table = np.array([ngram_counts(*pair) for pair in pairs])
    chosen = [
        rng.choice(len(pairs), size)
        for size in (1, 1, 1, 2, 2, 3, 5, 200)
        for _ in range(25)
    ]
    chosen.append(np.arange(len(pairs)))
    expected = [
        sacrebleu.BLEU(tokenize="none", force=True)
        .corpus_score([pairs[i][0] for i in own], [[pairs[i][1] for i in own]])
        .score
        for own in chosen
    ]
    assert {0.0, 100.0} <= {round(score, 6) for score in expected} and len(
        set(expected)
    ) > 100
    np.testing.assert_allclose(
        BLEU.of_sums(np.array([table[own].sum(0) for own in chosen]), len(pairs)),
        expected,
        rtol=1e-12,
    )


def test_resamples_draw_as_many_sentences_with_replacement():
    weights = statistics.resamples(7, seed=3, count=5000)
    assert (
        weights.shape == (5000, 7)
        and (weights.sum(1) == 7).all()
        and (weights >= 0).all()
    )
    np.testing.assert_allclose(weights.mean(0), 1, atol=0.06)
    np.testing.assert_allclose(weights.var(0), 1 - 1 / 7, atol=0.1)
    np.testing.assert_array_equal(weights, statistics.resamples(7, seed=3, count=5000))
    assert (weights != statistics.resamples(7, seed=4, count=5000)).any()
    with pytest.raises(ValueError, match=r"1 sentence.*2 are needed"):
        statistics.resamples(1)


def test_scores_are_of_the_test_set_and_of_its_resamples():
    rng = np.random.default_rng(0)
    weights, truth = statistics.resamples(11, count=13), rng.random((2, 11)) < 0.4
    nll, tokens = rng.gamma(2, 3, (2, 11)), rng.integers(1, 9, (2, 11))
    rates = statistics.resampled_scores(EXACT_MATCH, by_seed(truth[..., None]), weights)
    perplexities = statistics.resampled_scores(
        PERPLEXITY, by_seed(np.stack([nll, tokens], -1)), weights
    )
    for seed in (0, 1):
        assert rates[seed].value == truth[seed].mean()
        assert perplexities[seed].value == pytest.approx(
            math.exp(nll[seed].sum() / tokens[seed].sum())
        )
        for draw in range(13):
            again = np.repeat(np.arange(11), weights[draw].astype(int))
            assert rates[seed].draws[draw] == pytest.approx(truth[seed][again].mean())
            expected = math.exp(nll[seed][again].sum() / tokens[seed][again].sum())
            assert perplexities[seed].draws[draw] == pytest.approx(expected)
    assert statistics.resampled_scores(EXACT_MATCH, {}, weights) == {}


@pytest.mark.parametrize("n", [2, 5])
def test_variances_are_of_seeds_and_of_sentences_in_common(n):
    """Shares of sentences are linear, so that their covariances over test sets are
    known without a bootstrap."""
    rng = np.random.default_rng(n)
    S = 19
    easy = np.stack([rng.random(S), rng.random(S)])
    row, base = rng.random((2, n, S)) < (0.3 + 0.7 * easy)[:, None]
    weights = statistics.resamples(S, count=40_000)
    found = statistics.paired_scores(
        *[
            statistics.resampled_scores(EXACT_MATCH, by_seed(side[..., None]), weights)
            for side in (row, base)
        ]
    )

    differences = row.astype(float) - base
    covariance = np.cov(differences) / S
    shared = covariance[~np.eye(n, dtype=bool)].mean()
    parts = (differences.mean(1).var(ddof=1) / n, n - 1), (shared, S - 1)
    reach = lambda level: math.sqrt(
        sum(v * stats.t.isf(level / 2, nu) ** 2 for v, nu in parts)
    )
    assert shared > parts[0][0] / 5 and found.mean == pytest.approx(differences.mean())
    assert (found.high - found.mean, found.mean - found.low) == pytest.approx(
        [reach(0.05)] * 2, rel=0.008
    )
    assert reach(found.p) == pytest.approx(abs(found.mean), rel=0.008)


def test_other_resamples_give_another_difference():
    rng = np.random.default_rng(0)
    tables = sentences(rng, trials=1, n=3, S=17, seeds=0.3, rows=0.4, both=0.4)[0]
    row, base = map(by_seed, tables)
    first = paired_tables(BLEU, row, base)
    assert first == paired_tables(BLEU, row, base)
    assert first != paired_tables(BLEU, row, base, seed=5)


def test_sentences_that_cannot_be_paired_are_refused():
    scores = {}
    for S in (3, 4):
        tables = by_seed(np.ones((2, S, 10)))
        weights = statistics.resamples(S)
        scores[S] = statistics.resampled_scores(BLEU, tables, weights)
    with pytest.raises(ValueError, match="the row has 3 sentences, the base 4"):
        statistics.paired_scores(scores[3], scores[4])
    mixed = {0: scores[3][0], 1: scores[4][1]}
    with pytest.raises(ValueError, match="the row has 3 or 4 sentences, the base 3"):
        statistics.paired_scores(mixed, scores[3])


def test_identical_runs_over_sentences_have_no_difference():
    table = by_seed(np.random.default_rng(0).integers(1, 9, (3, 7, 2)))
    same = paired_tables(PERPLEXITY, table, table)
    assert same == Difference(0.0, 0.0, 0.0, 1.0, 0.0, 3, 0.0)


@pytest.mark.parametrize("bad", [math.inf, math.nan, 1e6])
def test_a_diverged_run_over_sentences_shows_nothing(bad):
    table = by_seed(np.random.default_rng(0).integers(1, 9, (3, 7, 2)))
    nll = [bad] + [1.0] * 6
    diverged = table | {1: np.stack([nll, np.ones(7)], axis=1)}
    difference = paired_tables(PERPLEXITY, diverged, table)
    assert (difference.low, difference.high) == (-math.inf, math.inf)
    assert difference.p == 1.0


# Simulated tables: sentences and seeds by chance


def sentences(rng, trials, n, S, seeds, rows, both, better=0.0):
    """(trials, 2, n, S, 10): BLEU's counts of row and base, from standard deviations of
    what seeds, sentences, both do.

    Sentences differ in length and in how hard they are. `better` is the row's
    advantage; at 0 true BLEU is equal.
    """
    normal = lambda *shape: rng.normal(size=(trials, *shape))
    skill = (
        np.array([better, 0.0])[None, :, None, None]
        + 0.8 * normal(1, 1, S)
        + rows * normal(2, 1, S)
    )
    skill = skill + seeds * normal(2, n, 1) + both * normal(2, n, S)
    reference = np.broadcast_to(rng.integers(4, 20, (trials, 1, 1, S)), skill.shape)
    length = np.maximum(1, reference + rng.integers(-2, 3, skill.shape))
    total = np.maximum(0, length[..., None] - np.arange(4))
    correct = rng.binomial(
        total, (1 / (1 + np.exp(-skill)))[..., None] ** np.array([1, 1.8, 2.5, 3.2])
    )
    return np.concatenate([correct, total, length[..., None], reference[..., None]], -1)


CHANCE = {
    "seeds": (0.3, 0.0, 0.3),
    "identical models": (0.0, 0.0, 0.4),
    "seeds and sentences": (0.1, 0.5, 0.3),
    "sentences": (0.0, 1.0, 0.1),
}


@pytest.mark.parametrize("chance", CHANCE)
@pytest.mark.parametrize("n", [3, 5])
def test_intervals_cover_and_few_true_nulls_are_rejected(n, chance):
    trials = 300
    S = 50
    weights = statistics.resamples(S, count=150)
    for better in (0.0, 0.5):
        tables = sentences(
            np.random.default_rng(n), trials, n, S, *CHANCE[chance], better
        )
        found = [
            statistics.paired_scores(
                *[
                    statistics.resampled_scores(BLEU, by_seed(side), weights)
                    for side in table
                ]
            )
            for table in tables
        ]
        truth = np.mean([one.mean for one in found]) if better else 0.0
        covered = np.mean([one.low <= truth <= one.high for one in found])
        assert 0.95 - sampling_error(0.05, trials) <= covered <= 0.99
        if not better:
            assert np.mean([one.p < 0.05 for one in found]) == pytest.approx(
                1 - covered
            )
        else:
            assert truth > 3


def known_scores(values, shared, S=1000):
    """{seed: Score} on resamples by which test sets give the mean a variance of exactly
    `shared`."""
    draws = np.random.default_rng(0).normal(size=200)
    draws *= math.sqrt(shared * (S - 1) / S) / draws.std(ddof=1)
    return by_seed([Score(value, draws, S) for value in values])


def simulated(rng, trials, n, seeds, shared, difference=0.0):
    """p-values where the mean of n seeds has variances `seeds` and `shared`."""
    values = rng.normal(difference, math.sqrt(seeds * n), (trials, n)) + rng.normal(
        0, math.sqrt(shared), (trials, 1)
    )
    base = known_scores([0.0] * n, 0.0)
    return np.array(
        [statistics.paired_scores(known_scores(own, shared), base).p for own in values]
    )


def test_sentences_never_make_an_interval_shorter():
    """Two seeds whose differences move against each other over the resamples: a
    covariance below 0."""
    draws = np.random.default_rng(0).normal(size=200)
    row = by_seed([Score(1.0, draws, 1000), Score(2.0, -draws, 1000)])
    found = statistics.paired_scores(row, known_scores([0.0, 0.0], 0.0))
    assert found == statistics.paired({0: 1.0, 1: 2.0}, {0: 0.0, 1: 0.0})


@pytest.mark.parametrize("n", [2, 3])
def test_a_small_part_of_chance_in_sentences_makes_no_test_of_few_seeds_too_bold(n):
    """Where Welch and Satterthwaite's degrees of freedom reject 12.7 % and 7.8 %."""
    trials = 1500
    rejected = np.mean(
        simulated(np.random.default_rng(n), trials, n, seeds=1.0, shared=0.1) < 0.05
    )
    assert 0.02 < rejected <= 0.05 + sampling_error(0.05, trials)


@pytest.mark.parametrize(("seeds", "shared"), [(1.0, 1.0), (0.2, 1.0)])
def test_detectable_differences_are_found_over_sentences_too(seeds, shared):
    as_found = np.array([-1.0, 0.0, 1.0]) * math.sqrt(seeds * 3)
    detectable = statistics.paired_scores(
        known_scores(as_found, shared), known_scores([0.0] * 3, 0.0)
    ).detectable
    p_values = simulated(np.random.default_rng(0), 1000, 3, seeds, shared, detectable)
    assert np.mean(p_values < 0.05) == pytest.approx(0.8, abs=sampling_error(0.8, 1000))


# The whole table


def test_holm_by_hand():
    assert statistics.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx(
        [0.03, 0.06, 0.06, 0.02]
    )
    assert statistics.holm([0.0, 1.0, 0.6]) == [0.0, 1.0, 1.0]
    assert statistics.holm([0.04]) == [0.04] and statistics.holm([]) == []


@pytest.mark.parametrize("wrong", [math.nan, -0.1, 1.1])
def test_holm_refuses_what_is_no_probability(wrong):
    with pytest.raises(ValueError, match=f"between 0 and 1, not at {wrong}"):
        statistics.holm([0.5, wrong])


@pytest.mark.parametrize("shared_base", [False, True])
def test_holm_keeps_the_error_of_a_table_of_true_nulls(shared_base):
    trials = 2000
    rows = 20
    n = 3
    rng = np.random.default_rng(0)
    differences = rng.normal(size=(trials, rows, n)) - shared_base * rng.normal(
        size=(trials, 1, n)
    )
    wrong = [
        min(statistics.holm(own)) < 0.05
        for own in stats.ttest_1samp(differences, 0, axis=2).pvalue
    ]
    assert 0.02 < np.mean(wrong) <= 0.05 + sampling_error(0.05, trials)


HIGHER = Metric(key="x", heading="x")
LOWER = Metric(key="x", heading="x", higher_is_better=False)


@pytest.mark.parametrize(
    ("mean", "metric", "expected"),
    [
        (0.5, HIGHER, "better"),
        (0.5, LOWER, "worse"),
        (-0.5, HIGHER, "worse"),
        (-0.5, LOWER, "better"),
    ],
)
def test_a_verdict_takes_the_side_that_the_metric_calls_better(mean, metric, expected):
    difference = Difference(mean, mean - 0.3, mean + 0.3, 0.001, 3.0, 3, 0.314)
    assert statistics.verdict(difference, 0.049, metric) == expected


@pytest.mark.parametrize(
    ("detectable", "metric", "expected"),
    [
        (0.314, HIGHER, "differences above 0.31 would have shown"),
        (5.67e17, HIGHER, "differences above 5.7e+17 would have shown"),
        (0.314, EXACT_MATCH, "differences above 31 % would have shown"),
        (100.0, BLEU, "differences above 100 would have shown"),
        (100.1, BLEU, "too few seeds to show any"),
    ],
)
def test_a_verdict_names_the_difference_that_would_have_shown(
    detectable, metric, expected
):
    difference = Difference(-0.5, -0.8, -0.2, 0.001, -3.0, 3, detectable)
    verdict = statistics.verdict(difference, 0.05, metric)
    assert verdict == f"no difference shown; {expected}"


@pytest.mark.parametrize(
    ("detectable", "text"),
    [
        (0.0, "no difference shown"),
        (math.inf, "no difference shown"),
        (123.4, "above 123 would"),
        (99.7, "above 100 would"),
        (0.00123, "above 0.0012 would"),
    ],
)
def test_a_verdict_names_a_difference_only_where_there_is_one(detectable, text):
    verdict = statistics.verdict(
        Difference(0.0, -1.0, 1.0, 1.0, 0.0, 3, detectable), 1.0, HIGHER
    )
    assert text in verdict and ("above" in verdict) == ("above" in text)
