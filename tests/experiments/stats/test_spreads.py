import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from experiments.stats.spreads import (
    ODD,
    ODD_TAU,
    USUAL_TAU,
    draw_spreads,
    oddness_of,
)

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


def odd_in_two_metrics(seeds=3):
    """Three metrics of eight rows; the last varies ten times as much, by luck not in one."""
    rng = np.random.default_rng(2)
    variances = rng.chisquare(seeds - 1, (3, 8)) / (seeds - 1)
    variances[:, -1] = (100, 2, 70)
    return variances, np.full((3, 8), seeds - 1.0)


def test_other_metrics_say_that_a_row_is_odd():
    variances, freedom = odd_in_two_metrics()
    correlation = np.full((3, 3), 0.5)
    np.fill_diagonal(correlation, 1)
    oddness = oddness_of(variances, freedom, correlation)
    assert oddness[1].share[-1] > 0.5 > 2 * ODD > oddness[1].share[:-1].max()
    assert oddness[1].seen[-1] > 0.5 > oddness[1].seen[:-1].max()
    uniforms = (np.arange(4000)[:, None] + 0.5) / 4000 * np.ones((1, 8))
    drawn = [
        draw_spreads(
            variances[1], freedom[1], uniforms, np.random.default_rng(0), oddness=one
        )[0]
        for one in (oddness[1], None)
    ]
    with_hints, without = np.median(drawn, axis=1)
    # Its own runs say 1.4; the others that it may be 10.
    assert with_hints[-1] > 1.8 * without[-1]
    np.testing.assert_allclose(with_hints[:-1], without[:-1], rtol=0.1)


def test_a_row_that_varies_less_in_other_metrics_is_not_taken_for_odd():
    variances, freedom = odd_in_two_metrics(6)
    variances[:, -1] = 1e-3
    oddness = oddness_of(variances, freedom, np.eye(3))
    assert all(one.share[-1] > 2 * ODD and not one.are_odd.any() for one in oddness)


def test_metrics_that_repeat_each_other_say_nothing_more():
    variances, freedom = odd_in_two_metrics()
    oddness = oddness_of(variances, freedom, np.ones((3, 3)))
    for one in oddness:
        np.testing.assert_allclose(one.share, ODD)
    # And nothing is said where one spread is given to all.
    (one,) = oddness_of(variances[:1], freedom[:1], np.ones((1, 1)), usual_tau=0.0)
    assert not one.are_odd.any()


@pytest.mark.ci
def test_spreads_are_those_that_a_sampler_draws():
    """Of the model in the module's text, by numpyro's no-U-turn sampler."""
    numpyro = pytest.importorskip("numpyro")
    from numpyro import distributions
    from numpyro.infer import MCMC, NUTS

    variances = np.array([1.0, 0.3, 2.2, 0.8, 60.0, 1.4])
    freedom = np.array([2.0, 2.0, 3.0, 2.0, 2.0, 4.0])

    def model():
        # Flat, as far as six rows can tell.
        m = numpyro.sample("m", distributions.Normal(0.0, 20.0))
        tau = numpyro.sample("tau", distributions.HalfNormal(USUAL_TAU))
        sizes = jnp.stack([tau, jnp.hypot(tau, ODD_TAU * USUAL_TAU)])
        shares = distributions.Categorical(probs=jnp.array([1 - ODD, ODD]))
        of_rows = distributions.MixtureSameFamily(
            shares, distributions.Normal(m, sizes)
        )
        with numpyro.plate("rows", len(variances)):
            log_sigma = numpyro.sample("log_sigma", of_rows)
        # ν s² / σ² ~ χ²(ν), so s² is Gamma(ν / 2, ν / (2 σ²)).
        rate = freedom / 2 * jnp.exp(-2 * log_sigma)
        numpyro.sample("s2", distributions.Gamma(freedom / 2, rate), obs=variances)

    kernel = NUTS(model, target_accept_prob=0.95)
    sampler = MCMC(kernel, num_warmup=1000, num_samples=12_000, progress_bar=False)
    with jax.numpy_rank_promotion("allow"):
        sampler.run(jax.random.key(0))
    expected = np.exp(np.asarray(sampler.get_samples()["log_sigma"]))
    ours = drawn(variances, freedom)
    for quantile in (0.1, 0.5, 0.9):
        np.testing.assert_allclose(
            np.quantile(ours, quantile, axis=0),
            np.quantile(expected, quantile, axis=0),
            rtol=0.08,
        )
