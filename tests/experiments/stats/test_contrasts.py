import dataclasses

import numpy as np
import pytest
from scipy import stats

from experiments.stats.contrasts import contrast, odd_rows
from experiments.stats.least_squares import Column, Pairs, fit_rows
from experiments.stats.variance_stabilising import ROOT_CROSS_ENTROPY, SHARE

pytestmark = pytest.mark.quick


def column(values, own=0.0, shared=0.0, at_bound=()):
    values = np.array(values, float)
    rows = len(values)
    bound = np.isin(np.arange(rows), at_bound)
    return Column(values, np.full(rows, own), np.full(rows, shared), bound)


def judged(values, own=0.0, shared=0.0, at_bound=(), **options):
    """Compares the rows of values (K, J) with the first, in one metric."""
    pairs = Pairs.against(0, len(values))
    (result,) = contrast([column(values, own, shared, at_bound)], pairs, **options)
    return result


def width(result):
    return result.high - result.low


def table(seed, rows, seeds, spread=1.0):
    return spread * np.random.default_rng(seed).standard_normal((rows, seeds))


def test_three_rows_of_one_spread_are_dunnetts_test():
    values = table(3, 3, 5) + np.array([[0.0], [1.0], [-2.0]])
    result = judged(values, usual_tau=0.0)
    expected = stats.dunnett(values[1], values[2], control=values[0], rng=0)
    np.testing.assert_allclose(result.p[1:], expected.pvalue, atol=0.01)
    interval = expected.confidence_interval(0.95)
    np.testing.assert_allclose(result.low[1:], interval.low, atol=0.06)
    np.testing.assert_allclose(result.high[1:], interval.high, atol=0.06)


def check_false_verdicts(draw):
    """Of null tables draw(rng) = (values, originals) one in twenty has a verdict, at most."""
    tables = 300
    wrong = 0
    rng = np.random.default_rng(0)
    for _ in range(tables):
        values, originals = draw(rng)
        result = judged(values, draws=1000, originals=originals)
        wrong += np.nanmin(result.p) < 0.05
    # 3.3 standard errors above 5 %.
    assert wrong / tables < 0.05 + 3.3 * np.sqrt(0.05 * 0.95 / tables)


def unlike_rows(rng, rows):
    """Rows of three runs, whose spreads vary by a factor of 1.5."""
    spreads = np.exp(0.4 * rng.standard_normal((rows, 1)))
    return rng.standard_normal((rows, 3)) * spreads


@pytest.mark.ci
def test_any_false_verdict_comes_in_one_null_table_of_twenty():
    check_false_verdicts(lambda rng: (unlike_rows(rng, 8), None))


def test_a_real_difference_is_shown_with_few_seeds():
    values = table(1, 12, 3) + 8.0 * (np.arange(12) % 4 == 1)[:, None]
    result = judged(values)
    shown = result.low > 0
    assert shown.tolist() == [i % 4 == 1 for i in range(12)]


def test_what_a_seed_does_to_all_rows_is_taken_out():
    values = table(2, 8, 4)
    with_blocks = values + 50 * np.random.default_rng(5).standard_normal(4)
    plain = judged(values)
    blocked = judged(with_blocks)
    np.testing.assert_allclose(blocked.mean, plain.mean, atol=1e-9)
    np.testing.assert_allclose(width(blocked), width(plain), rtol=1e-6)


def test_a_balanced_table_is_the_least_squares_of_an_unbalanced_one():
    """One run less in one row, which by its weight hardly counts."""
    values = table(11, 6, 12)
    lacking = values.copy()
    lacking[5] *= 1e6
    whole = judged(lacking)
    lacking[5, 3] = np.nan
    result = judged(lacking)
    np.testing.assert_allclose(result.mean[1:5], whole.mean[1:5], atol=1e-4)
    np.testing.assert_allclose(result.low[1:5], whole.low[1:5], rtol=0.1, atol=0.05)


def test_rows_of_other_seeds_are_compared_within_their_seeds():
    blocks = np.array([0.0, 100.0, -50.0, 30.0, 10.0])
    values = 0.1 * table(4, 6, 5) + blocks + np.arange(6)[:, None]
    # Row 5 has the first two seeds alone, whose mean would be 52 and not 18.
    values[5, 2:] = np.nan
    result = judged(values)
    np.testing.assert_allclose(result.mean[1:], np.arange(1, 6), atol=0.5)
    assert width(result)[5] > 1.2 * width(result)[1]


def test_sentences_widen_intervals_however_many_seeds_there_are():
    values = 0.01 * table(5, 6, 40)
    alone = judged(values)
    result = judged(values, shared=1.0)
    assert np.nanmax(width(alone)) < 0.02
    assert np.nanmin(width(result)) > 2 * 1.96
    assert result.from_seeds[1] < 0.01 < 0.99 < alone.from_seeds[1]


def test_seeds_that_agree_by_luck_are_no_less_certain_than_their_sentences():
    values = np.zeros((2, 2))
    values[1] = [-0.29, -0.291]
    values[0, 1] = 0.002
    lucky = judged(values)
    result = judged(values, own=0.34**2)
    assert lucky.high[1] < 0 and result.high[1] > 0


def test_a_metric_more_widens_the_intervals_less_the_more_it_agrees():
    one = table(6, 8, 5)
    other = table(7, 8, 5)
    widths = []
    for second in (None, one + 1e-3 * other, other):
        columns = [column(values) for values in (one, second) if values is not None]
        result = contrast(columns, Pairs.against(0, 8))[0]
        widths.append(np.nanmean(width(result)))
    assert widths[0] < 1.03 * widths[1] and widths[1] < widths[2] < 1.25 * widths[0]


@pytest.mark.ci
def test_a_difference_of_the_detectable_size_is_shown_in_four_tables_of_five():
    rng = np.random.default_rng(0)
    shown = []
    for _ in range(150):
        first = judged(rng.standard_normal((8, 3)), draws=1000)
        again = rng.standard_normal((8, 3))
        again[1:] += first.detectable[1:, None]
        second = judged(again, draws=1000)
        shown.append(second.low[1:] > 0)
    # 150 tables of 7 rows that share a base.
    assert np.mean(shown) == pytest.approx(0.8, abs=0.08)


def test_a_row_of_one_seed_is_judged_by_the_spread_of_the_others():
    values = table(8, 6, 4)
    values[3] = [30.0, np.nan, np.nan, np.nan]
    result = judged(values)
    assert result.low[3] > 0
    assert result.high[3] - result.low[3] > 1.2 * (result.high[2] - result.low[2])


def test_nothing_varies():
    result = judged([[1.0, 1.0], [1.0, 1.0], [2.0, 2.0]])
    assert result.mean[1:] == pytest.approx([0.0, 1.0])
    assert result.p[1:].tolist() == [1.0, 0.0]
    assert (result.low == result.mean)[1:].all()


@pytest.mark.parametrize(
    "values",
    [
        [[1.0], [2.0]],
        [[np.nan, np.nan], [1.0, 2.0]],
        [[1.0, 2.0], [np.nan, np.nan]],
        [[1.0, 2.0]],
    ],
    ids=["one seed", "no base", "no row", "base alone"],
)
def test_without_anything_to_compare_there_is_no_difference(values):
    result = judged(values)
    assert not result.tested.any()


def test_a_row_at_its_bound_tells_nothing_of_spread():
    values = np.concatenate([table(9, 5, 3), np.full((3, 3), -6.0)])
    told = judged(values, at_bound=(5, 6, 7))
    without = judged(values[:5])
    assert width(without)[1] < width(told)[1] < 1.4 * width(without)[1]
    assert told.high[5] < 0


def with_copies(values, gaps):
    """The rows, and behind each a copy that scores otherwise by `gaps` (K, J); originals."""
    both = np.stack([values, values + gaps], axis=1).reshape(-1, values.shape[1])
    return both, np.repeat(2 * np.arange(len(values)), 2)


def test_a_copy_is_compared_with_its_original_run_by_run():
    values = 5 * table(8, 1, 6)
    gaps = 0.1 * table(9, 1, 6) + 0.2
    both, originals = with_copies(values, gaps)
    result = judged(both, usual_tau=0.0, originals=originals)
    expected = stats.ttest_rel(both[1], both[0])
    interval = expected.confidence_interval(0.95)
    assert result.p[1] == pytest.approx(expected.pvalue, abs=0.006)
    found = (result.low[1], result.high[1])
    assert found == pytest.approx((interval.low, interval.high), abs=0.02)


def test_copies_say_nothing_of_the_spread_between_models():
    """Intervals of the others are as without copies, but for the larger family."""
    values = table(10, 5, 3)
    alone = judged(values)
    both, originals = with_copies(values, 1e-3 * table(11, 5, 3))
    result = judged(both, originals=originals)
    np.testing.assert_allclose(result.mean[2::2], alone.mean[1:], atol=1e-12)
    wider = width(result)[2::2] / width(alone)[1:]
    assert (wider > 0.98).all() and (wider < 1.15).all()
    # A copy of another row has that row's error, and hardly more.
    copies = width(result)[3::2] / width(result)[2::2]
    np.testing.assert_allclose(copies, 1, atol=0.02)
    # And as copies of no row they would narrow the intervals, as if there were more models.
    mistaken = judged(both)
    narrower = width(mistaken)[2::2] / width(result)[2::2]
    assert narrower.mean() < 0.9


def test_d_is_in_standard_deviations_of_a_run():
    """Of rows of their own in those of a run, of a copy in those of its differences."""
    values = table(3, 2, 400) + np.array([[0.0], [1.0]])
    spread = np.sqrt(values.var(1, ddof=1).mean())
    expected = (values[1].mean() - values[0].mean()) / spread
    assert judged(values, usual_tau=0.0).d[1] == pytest.approx(expected, rel=0.02)
    differences = 0.5 + 0.1 * table(4, 1, 400)[0]
    copied = np.stack([values[0], values[0] + differences])
    d = judged(copied, originals=[0, 0], usual_tau=0.0).d[1]
    expected = differences.mean() / differences.std(ddof=1)
    assert d == pytest.approx(expected, rel=0.02)


def test_a_copy_without_any_difference_has_none():
    values = table(12, 3, 4)
    both, originals = with_copies(values, np.zeros_like(values))
    result = judged(both, originals=originals)
    assert (result.mean[1], result.low[1], result.high[1]) == (0, 0, 0)
    assert result.p[1] == 1 and result.d[1] == 0
    np.testing.assert_allclose(result.low[3::2], result.low[2::2])
    both, _ = with_copies(values, np.full_like(values, 0.5))
    always = judged(both, originals=originals)
    assert (always.low[1], always.high[1]) == pytest.approx((0.5, 0.5))
    assert always.p[1] < 0.001


def test_sentences_widen_the_intervals_of_copies_too():
    for count in (1, 3):
        values = table(13, count, 8)
        both, originals = with_copies(values, 1e-3 * table(14, count, 8))
        result = judged(both, shared=1.0, originals=originals)
        assert width(result)[1] > 1.95 * 1.96
        assert result.from_seeds[1] < 0.01


def test_a_copy_needs_runs_of_its_original():
    values = table(15, 4, 3)
    both, originals = with_copies(values, 0.1 * table(16, 4, 3))
    both[3, 1:] = np.nan
    both[5] = np.nan
    both[6, 0] = np.inf
    result = judged(both, originals=originals)
    assert result.tested.tolist() == [False, *[True] * 4, *[False] * 3]
    assert result.mean[3] == pytest.approx(
        values[1].mean() - values[0].mean() + both[3, 0] - both[2, 0]
    )


def test_two_runs_of_one_copy_say_too_little():
    both, originals = with_copies(table(17, 4, 2), 0.1 * table(18, 4, 2))
    some = judged(both, originals=originals)
    assert some.tested[1:].all()
    one = judged(both[:2], originals=originals[:2])
    assert not one.tested.any()


@pytest.mark.ci
def test_any_false_verdict_of_copies_comes_in_one_null_table_of_twenty():
    check_false_verdicts(
        lambda rng: with_copies(unlike_rows(rng, 4), 0.1 * unlike_rows(rng, 4))
    )


def test_on_a_straight_scale_the_printed_interval_is_the_interval():
    result = judged(table(19, 6, 3))
    for i in range(1, 6):
        mean, low, high = result.printed(i, lambda x: 3 * x + 7)
        assert mean == pytest.approx(3 * result.mean[i])
        # As near as points around an ellipse are.
        ends = 3 * result.low[i], 3 * result.high[i]
        assert (low, high) == pytest.approx(ends, abs=0.01 * (ends[1] - ends[0]))


@pytest.mark.parametrize(
    "link", [ROOT_CROSS_ENTROPY, SHARE], ids=lambda link: link.name
)
def test_a_printed_interval_leaves_0_out_just_where_there_is_a_verdict(link):
    """Near the bounds too, where the scale is bent most."""
    rng = np.random.default_rng(0)
    decided = 0
    for seed in range(20):
        middle = rng.uniform(0.02, 0.9, (6, 1))
        values = np.clip(middle + 0.1 * table(seed, 6, 3), 0.0, 1.5)
        result = judged(values, draws=1000)
        for i in range(1, 6):
            _, low, high = result.printed(i, link.inverse)
            assert (low > 0 or high < 0) == (result.p[i] <= 0.05)
            decided += result.p[i] <= 0.05
    assert 10 < decided < 90


def test_printed_intervals_carry_the_bases_own_spread():
    """Of rows that have all but solved a task, a difference varies as the base does."""
    true = np.sqrt(np.log([5.15, 12, 2.7, 1.0001, 1.02, 4.6]))
    of_runs = np.log(np.square(true))
    rng = np.random.default_rng(0)
    held = np.zeros(6)
    tables = 40
    printed = ROOT_CROSS_ENTROPY.inverse(true)
    for _ in range(tables):
        # Cross-entropies vary by 10 % from run to run.
        logs = of_runs[:, None] + 0.1 * rng.standard_normal((6, 3))
        result = judged(np.exp(logs / 2), draws=1000)
        for i in range(1, 6):
            _, low, high = result.printed(i, ROOT_CROSS_ENTROPY.inverse)
            held[i] += low <= printed[i] - printed[0] <= high
    # Each of five joint intervals holds in 99 of 100 tables or so.
    assert (held[1:] >= 0.93 * tables).all()


def test_what_seeds_do_to_all_rows_is_in_the_base_and_in_no_difference():
    values = table(20, 8, 4)
    effects = 5 * np.random.default_rng(5).standard_normal(4)
    plain = judged(values)
    blocked = judged(values + effects)
    reach = lambda result, axis: np.ptp(result.edge[1, :, axis])
    # As near as points around an ellipse are.
    assert reach(blocked, 1) == pytest.approx(reach(plain, 1), rel=3e-3)
    # The mean of four effects varies by half of what one does, and an interval reaches two
    # such deviations at least.
    spread = effects.std(ddof=1) / 2
    assert reach(blocked, 0) > 2 * 1.96 * spread > reach(plain, 0)


def test_an_odd_row_leaves_the_intervals_of_others_nearly_as_they_were():
    values = table(21, 10, 3)
    plain = judged(values)
    odd = values.copy()
    odd[9] *= 20
    result = judged(odd)
    wider = (width(result) / width(plain))[1:9]
    assert np.median(wider) < 1.6


def test_an_odd_row_does_not_count_in_the_effects_of_seeds():
    values = table(5, 5, 4)
    values[4] *= 1000
    fit = fit_rows(column(values), np.arange(5))
    alone = fit_rows(column(values[:4]), np.arange(4))
    # They are of other weights, of as many runs: by less than three variances differ.
    np.testing.assert_allclose(fit.variances[:4], alone.variances, rtol=0.4)


def test_rows_that_vary_alike_are_not_named_as_more_variable():
    tables = [[column(table(seed, 8, 3)) for seed in (i, i + 100)] for i in range(40)]
    named = [odd_rows(columns) for columns in tables]
    # By luck alone a row of three runs looks like one at times.
    assert sum(map(bool, named)) <= 2


# Several bases


def pairs(*places):
    return Pairs(*map(np.array, zip(*places, strict=True)))


def test_all_pairs_of_rows_of_one_spread_are_tukeys_test():
    # Of four rows and more the effects of seeds are taken out, which Tukey's does not.
    values = table(21, 3, 5) + np.array([[0.0], [1.0], [-2.0]])
    places = [(1, 0), (2, 0), (2, 1)]
    (result,) = contrast([_of_pairs(values, 3)], pairs(*places), usual_tau=0.0)
    expected = stats.tukey_hsd(*values)
    interval = expected.confidence_interval(0.95)
    for place, (i, j) in enumerate(places):
        assert result.p[place] == pytest.approx(expected.pvalue[i, j], abs=0.01)
        assert result.low[place] == pytest.approx(interval.low[i, j], abs=0.06)
        assert result.high[place] == pytest.approx(interval.high[i, j], abs=0.06)


def test_a_pair_does_not_depend_on_which_of_the_two_is_the_base():
    values = table(22, 6, 3)
    places = [(1, 0), (3, 2), (5, 4)]
    one = contrast([_of_pairs(values, 3)], pairs(*places))[0]
    other = contrast([_of_pairs(values, 3)], pairs(*((j, i) for i, j in places)))[0]
    np.testing.assert_allclose(one.mean, -other.mean)
    np.testing.assert_allclose(one.low, -other.high, rtol=0.02)
    np.testing.assert_allclose(one.base + one.mean, other.base)


def test_rows_within_strata_are_compared_with_their_own_base():
    """And the family is what is asked: fewer pairs have narrower intervals than all."""
    effects = np.repeat([0.0, 30.0, -10.0], 2)
    values = table(23, 6, 4) + (effects + np.tile([0.0, 4.0], 3))[:, None]
    (result,) = contrast([_of_pairs(values, 3)], pairs((1, 0), (3, 2), (5, 4)))
    assert (result.low > 0).all() and (abs(result.mean - 4) < 1.5).all()
    places = [(i, j) for i in range(6) for j in range(i)]
    (every,) = contrast([_of_pairs(values, 15)], pairs(*places))
    own = [places.index((2 * i + 1, 2 * i)) for i in range(3)]
    assert (width(every)[own] > 1.1 * width(result)).all()


def test_a_row_that_diverged_takes_its_own_pairs_alone():
    values = table(24, 6, 3)
    values[2, 0] = np.inf
    (result,) = contrast([_of_pairs(values, 3)], pairs((1, 0), (3, 2), (5, 4)))
    assert result.tested.tolist() == [True, False, True]


def test_copies_of_one_row_are_compared_in_pairs():
    """Two ways of scoring the same three models, and two of other models."""
    models = 10 * table(25, 2, 3)
    values = np.stack([models[0], models[0] + 1, models[1], models[1] + 2])
    values += 0.01 * table(26, 4, 3)
    (result,) = contrast(
        [_of_pairs(values, 3)], pairs((1, 0), (3, 2), (2, 0)), originals=[0, 0, 2, 2]
    )
    np.testing.assert_allclose(result.mean[:2], [1, 2], atol=0.05)
    assert (width(result)[:2] < 0.5).all() and width(result)[2] > 10


@pytest.mark.parametrize("places", [(1, 2), (2, 1)])
def test_a_copy_without_runs_is_compared_with_no_other(places):
    values = np.stack([10 * table(27, 1, 4)[0]] * 3) + 0.01 * table(28, 3, 4)
    values[2] = np.nan
    asked = pairs(places, (1, 0))
    (result,) = contrast([_of_pairs(values, 2)], asked, originals=[0, 0, 0])
    assert result.tested.tolist() == [False, True]


@pytest.mark.ci
def test_any_false_verdict_comes_in_one_null_table_of_twenty_with_several_bases():
    tables = 300
    wrong = 0
    rng = np.random.default_rng(1)
    asked = pairs(*((i, i - i % 3) for i in range(9) if i % 3))
    for _ in range(tables):
        strata = np.repeat(10 * rng.standard_normal(3), 3)[:, None]
        values = unlike_rows(rng, 9) + strata
        (result,) = contrast([_of_pairs(values, 6)], asked, draws=1000)
        wrong += np.nanmin(result.p) < 0.05
    assert wrong / tables < 0.05 + 3.3 * np.sqrt(0.05 * 0.95 / tables)


def _of_pairs(values, count):
    return dataclasses.replace(column(values), shared=np.zeros(count))


def test_families_are_judged_each_by_itself():
    values = table(30, 5, 4)
    places = [(i, base) for base in range(5) for i in range(5)]
    families = np.array([base for _, base in places])
    options = dict(draws=4000)
    (every,) = contrast(
        [_of_pairs(values, 25)], pairs(*places), families=families, **options
    )
    for base in range(5):
        (own,) = contrast([column(values)], Pairs.against(base, 5), **options)
        part = slice(5 * base, 5 * base + 5)
        np.testing.assert_allclose(every.mean[part], own.mean)
        np.testing.assert_allclose(every.low[part], own.low, rtol=0.06)
        np.testing.assert_allclose(every.p[part], own.p, atol=0.04)


def test_a_small_family_is_less_careful_than_a_large_one():
    values = table(31, 12, 4)
    places = [(1, 0), *((i, 2) for i in range(3, 12))]
    families = np.array([0, *[1] * 9])
    (result,) = contrast([_of_pairs(values, 10)], pairs(*places), families=families)
    (alone,) = contrast([_of_pairs(values, 1)], pairs((1, 0)))
    assert width(result)[0] == pytest.approx(width(alone)[0], rel=0.05)
    assert (width(result)[1:] > 1.1 * width(result)[0]).mean() > 0.5
