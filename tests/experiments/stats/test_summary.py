import math

import numpy as np
import pytest
from scipy import stats

from experiments.stats.summary import Summary, holm, summarise

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("n", [2, 3, 5, 11])
def test_spread_is_the_sample_standard_deviation_and_the_interval_students(n):
    values = np.random.default_rng(n).normal(25.8, 0.1, n)
    summary = summarise(values)
    assert summary.n == n
    assert summary.mean == pytest.approx(values.mean(), rel=1e-14)
    assert summary.spread == pytest.approx(values.std(ddof=1), rel=1e-12)
    interval = stats.t.interval(0.95, n - 1, values.mean(), stats.sem(values))
    assert (summary.low, summary.high) == pytest.approx(interval, rel=1e-9)


def test_one_value_has_no_spread_and_none_has_nothing():
    assert summarise([4.92]) == Summary(4.92, None, 1, None, None)
    with pytest.raises(ValueError, match="no values"):
        summarise([])


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e200])
def test_a_diverged_value_shows_in_the_summary(bad):
    summary = summarise([1.0, bad])
    assert not summary.mean < 1e199
    assert not any(map(math.isfinite, (summary.spread, summary.low, summary.high)))


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.0, 1.0, 0.6]) == [0.0, 1.0, 1.0]
    assert holm([0.04]) == [0.04] and holm([]) == []


@pytest.mark.parametrize("wrong", [math.nan, -0.1, 1.1])
def test_holm_refuses_what_is_no_probability(wrong):
    with pytest.raises(ValueError, match=f"between 0 and 1, not at {wrong}"):
        holm([0.5, wrong])


@pytest.mark.parametrize("shared_base", [False, True])
def test_holm_keeps_the_error_of_a_table_of_true_nulls(shared_base):
    tables = 2000
    rng = np.random.default_rng(0)
    runs = rng.normal(size=(tables, 20, 3))
    runs = runs - shared_base * rng.normal(size=(tables, 1, 3))
    p_values = stats.ttest_1samp(runs, 0, axis=2).pvalue
    wrong = np.mean([min(holm(own)) < 0.05 for own in p_values])
    # 3.3 standard errors above 5 %.
    assert 0.02 < wrong <= 0.05 + 3.3 * math.sqrt(0.05 * 0.95 / tables)
