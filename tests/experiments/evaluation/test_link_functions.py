import numpy as np
import pytest

from experiments.evaluation.link_functions import (
    IDENTITY,
    LOG_CROSS_ENTROPY,
    PERCENT,
    SHARE,
)

INSIDE = {
    LOG_CROSS_ENTROPY: (1.01, 1.1, 5.0, 1e5),
    PERCENT: (0.2, 25.8, 98.0, 99.8),
    SHARE: (0.002, 0.5, 0.998),
    IDENTITY: (-3.0, 0.0, 1e9),
}


@pytest.mark.parametrize("link", INSIDE, ids=lambda link: link.name)
def test_the_inverse_undoes_the_link(link):
    values = np.array(INSIDE[link])
    on_scale = link.forward(values, 500)
    assert (np.diff(on_scale) > 0).all()
    np.testing.assert_allclose(link.inverse(on_scale), values, rtol=1e-9)


def test_by_hand():
    assert LOG_CROSS_ENTROPY.forward(np.exp(np.exp(0.3)), 9) == pytest.approx(0.3)
    assert PERCENT.forward(50.0, 9) == SHARE.forward(0.5, 9) == 0.0
    assert SHARE.forward(0.9, 1000) == pytest.approx(np.log(9))


@pytest.mark.parametrize(("link", "largest"), [(PERCENT, 100.0), (SHARE, 1.0)])
def test_a_score_at_its_bound_counts_as_half_a_sentence_from_it(link, largest):
    bounds = link.forward(np.array([0.0, largest]), 100)
    np.testing.assert_allclose(link.inverse(bounds), [0.005 * largest, 0.995 * largest])


def test_no_link_leaves_its_bounds():
    far = np.array([-800.0, 800.0])
    assert (LOG_CROSS_ENTROPY.inverse(far) == [1.0, np.inf]).all()
    assert (PERCENT.inverse(far) == [0.0, 100.0]).all()


def test_a_diverged_perplexity_stays_so_and_one_of_1_is_finite():
    assert LOG_CROSS_ENTROPY.forward(np.inf, 9) == np.inf
    assert np.isnan(LOG_CROSS_ENTROPY.forward(np.nan, 9))
    assert np.isfinite(LOG_CROSS_ENTROPY.forward(1.0, 9))
