import collections
import math

import numpy as np
import pytest
import sacrebleu
from scipy import stats

from experiments.evaluation.metrics import BLEU, EXACT_MATCH, PERPLEXITY
from experiments.report import statistics
from experiments.report.results import TrialResult, read_results
from experiments.report.statistics import Group, Summary
from tests.experiments import fakes

pytestmark = pytest.mark.quick


def by_seed(values):
    return dict(enumerate(values))


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
