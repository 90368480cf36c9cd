import numpy as np
import pytest

from experiments.stats.variance_stabilising import (
    IDENTITY,
    PERCENT,
    ROOT_CROSS_ENTROPY,
    SHARE,
)

pytestmark = pytest.mark.quick

VALUES = {
    ROOT_CROSS_ENTROPY: (1.0, 1 + 1e-6, 1.01, 5.0, 1e5),
    PERCENT: (0.0, 0.001, 0.117, 25.8, 99.91, 100.0),
    SHARE: (0.0, 0.002, 0.5, 0.9991, 1.0),
    IDENTITY: (-3.0, 0.0, 1e9),
}


@pytest.mark.parametrize("link", VALUES, ids=lambda link: link.name)
def test_the_inverse_undoes_the_link_at_bounds_too(link):
    values = np.array(VALUES[link])
    on_scale = link.forward(values)
    assert (np.diff(on_scale) > 0).all() and np.isfinite(on_scale).all()
    np.testing.assert_allclose(link.inverse(on_scale), values, rtol=1e-9, atol=1e-12)


def test_by_hand():
    assert ROOT_CROSS_ENTROPY.forward(np.exp(0.09)) == pytest.approx(0.3)
    assert PERCENT.forward(50.0) == SHARE.forward(0.5) == pytest.approx(np.pi / 4)
    assert SHARE.forward(0.25) == pytest.approx(np.pi / 6)


@pytest.mark.parametrize("share", [0.03, 0.5, 0.9])
def test_a_share_of_n_answers_varies_alike_wherever_it_is(share):
    shares = np.random.default_rng(0).binomial(1000, share, 20_000) / 1000
    expected = SHARE.variance_of_one / 1000
    # The standard error of a variance of 20,000 numbers is one percent of it.
    assert SHARE.forward(shares).var() == pytest.approx(expected, rel=0.05)


def test_no_link_leaves_its_bounds():
    far = np.array([-800.0, 800.0])
    assert (ROOT_CROSS_ENTROPY.inverse(far) == [1.0, np.inf]).all()
    assert (PERCENT.inverse(far) == [0.0, 100.0]).all()


def test_a_diverged_perplexity_stays_so():
    assert ROOT_CROSS_ENTROPY.forward(np.inf) == np.inf
    assert np.isnan(ROOT_CROSS_ENTROPY.forward(np.nan))
