import math

import numpy as np
import pytest

from experiments import ledger, statistics
from tests.experiments import fakes


def test_by_hand():
    assert statistics.summarise([1, 2, 6]) == statistics.Summary(3.0, math.sqrt((4 + 1 + 9) / 2), 3)


@pytest.mark.parametrize("n", [2, 3, 5, 11])
def test_spread_is_the_sample_standard_deviation(n):
    values = np.random.default_rng(n).normal(25.8, 0.1, n)
    summary = statistics.summarise(values)
    assert summary.n == n
    assert summary.mean == pytest.approx(values.mean(), rel=1e-14)
    assert summary.spread == pytest.approx(values.std(ddof=1), rel=1e-12)


def test_one_value_has_no_spread_and_none_has_nothing():
    assert statistics.summarise([4.92]) == statistics.Summary(4.92, None, 1)
    with pytest.raises(ValueError, match="no values"):
        statistics.summarise([])


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e200])
def test_a_diverged_value_shows_in_the_summary(bad):
    summary = statistics.summarise([1.0, bad])
    assert not summary.mean < 1e199
    assert not math.isfinite(summary.spread)


def test_groups_are_points_without_seed_in_order_of_appearance(tmp_path):
    trials = [({"model.h": 8, "seed": 0}, fakes.finished(perplexity=2.0), {}), ({"seed": 0}, fakes.finished(), {}),
              ({"seed": 1, "model.h": 8}, fakes.finished(perplexity=4.0), {}), ({"model.h": 8, "seed": 2}, None, {}),
              ({"seed": 1, "model.h": 4}, fakes.finished(bleu=None), {}), ({"model.d_k": 4}, None, None)]
    book = ledger.read(fakes.sweep(tmp_path, trials))
    h8, base, d_k4 = statistics.groups(book.trials, book.changes)

    assert [dict(group.point) for group in (h8, base, d_k4)] == [{"model.h": 8}, {}, {"model.d_k": 4}]
    assert [len(group.trials) for group in (h8, base, d_k4)] == [3, 2, 1]  # h=4 is what the base has: the same point
    assert [trial.seed for trial in h8.finished] == [0, 1]
    assert h8.summary("perplexity") == statistics.Summary(3.0, math.sqrt(2.0), 2)
    assert base.summary("bleu") == statistics.Summary(90.0, None, 1)
    assert d_k4.summary("perplexity") is None
