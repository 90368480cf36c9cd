import numpy as np
import pytest
from scipy import stats

from experiments.stats.spreads import draw_spreads

pytestmark = pytest.mark.quick

DRAWS = 40_000


def drawn(variances, freedom, seed=0, **more):
    rng = np.random.default_rng(seed)
    uniforms = rng.random((DRAWS, len(variances)))
    return draw_spreads(np.array(variances), np.array(freedom), uniforms, rng, **more)[
        0
    ]


def test_rows_of_one_spread_have_the_pooled_variances_distribution():
    variances = [1.3, 0.4, 2.0, 0.9]
    freedom = [2.0, 3.0, 2.0, 4.0]
    spreads = drawn(variances, freedom, usual_tau=0.0)
    pooled = np.average(variances, weights=freedom)
    # σ² is ν s² / χ²(ν), and with τ = 0 the same in every row.
    expected = np.sqrt(
        sum(freedom) * pooled / stats.chi2(sum(freedom)).isf([0.1, 0.5, 0.9])
    )
    for row in spreads.T:
        np.testing.assert_allclose(
            np.quantile(row, [0.1, 0.5, 0.9]), expected, rtol=0.03
        )


def test_a_row_of_many_degrees_keeps_its_spread():
    spreads = drawn([1.0, 25.0, 1.0, 1.0], [2000.0] * 4)
    np.testing.assert_allclose(np.median(spreads, 0), [1, 5, 1, 1], rtol=0.03)
    assert (spreads.std(0) / spreads.mean(0) < 0.06).all()


def test_a_row_of_few_degrees_follows_the_others():
    alone = np.median(drawn([1e-4] * 8, [1.0] * 8), 0)[0]
    among = np.median(drawn([1e-4] + [1.0] * 7, [1.0] * 8), 0)[0]
    assert alone < 0.02 and 0.3 < among < 1.5


def test_a_row_without_degrees_is_drawn_from_the_others():
    spreads = drawn([0.0] + [4.0] * 9, [0.0] + [4.0] * 9)
    assert np.median(spreads[:, 0]) == pytest.approx(2.0, rel=0.15)
    assert spreads[:, 0].std() > spreads[:, 1].std()


def test_posteriors_cover_the_truth():
    rng = np.random.default_rng(1)
    inside = []
    for _ in range(60):
        tau = 0.6 * abs(rng.standard_normal())
        true = np.exp(tau * rng.standard_normal(10) + rng.uniform(-3, 3))
        variances = true**2 * rng.chisquare(2, 10) / 2
        uniforms = rng.random((500, 10))
        spreads = draw_spreads(variances, np.full(10, 2.0), uniforms, rng)[0]
        low, high = np.quantile(spreads, [0.05, 0.95], axis=0)
        inside.append((low <= true) & (true <= high))
    # 600 rows of 60 tables, correlated within one.
    assert np.mean(inside) == pytest.approx(0.9, abs=0.05)


def test_the_unit_does_not_matter():
    small = drawn([1.0, 2.0, 0.5], [2.0] * 3)
    np.testing.assert_allclose(
        1e6 * small, drawn([1e12, 2e12, 0.5e12], [2.0] * 3), rtol=1e-6
    )


def test_a_table_without_any_spread_is_refused():
    with pytest.raises(ValueError, match="no row has a spread"):
        drawn([0.0, 1.0], [3.0, 0.0])
