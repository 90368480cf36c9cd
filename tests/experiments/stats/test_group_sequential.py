"""Levels of looks against the tables of the literature, and against chance."""

import numpy as np
import pytest
from scipy import special

from experiments.stats.contrasts import contrast
from experiments.stats.group_sequential import nominal_levels
from experiments.stats.least_squares import Column, Pairs
from experiments.stats.sequential import looks_of

pytestmark = pytest.mark.quick


def levels_of(bounds):
    return 2 * special.ndtr(-np.asarray(bounds))


def exits(counts, levels, paths=400_000):
    """Returns how often a first extreme value comes at each look, of simulated paths."""
    rng = np.random.default_rng(0)
    steps = np.diff(counts, prepend=0)
    sums = np.cumsum(rng.standard_normal((paths, len(counts))) * np.sqrt(steps), axis=1)
    extreme = np.abs(sums / np.sqrt(counts)) > -special.ndtri(np.asarray(levels) / 2)
    first = np.argmax(extreme, axis=1)
    reached = extreme.any(1)
    return np.bincount(first[reached], minlength=len(counts)) / paths


# Jennison and Turnbull 2000, "Group sequential methods with applications to clinical trials",
# tables 2.1 and 2.3: two-sided 5 %, equal groups.
CONSTANTS = {
    "Pocock": {2: 2.178, 3: 2.289, 5: 2.413, 10: 2.555},
    # Of more looks the first are too rare to be counted.
    "O'Brien and Fleming": {2: 1.977, 3: 2.004},
}


@pytest.mark.parametrize(
    ("name", "looks"),
    [(name, looks) for name in CONSTANTS for looks in CONSTANTS[name]],
)
def test_bounds_of_the_literature_spend_what_they_should(name, looks):
    """And the recursion gives them back, from what they spend at each look."""
    counts = np.arange(1, looks + 1)
    falling = np.sqrt(looks / counts) if name != "Pocock" else np.ones(looks)
    bounds = CONSTANTS[name][looks] * falling
    spent = exits(counts, levels_of(bounds))
    assert spent.sum() == pytest.approx(0.05, abs=0.0015)
    found = -special.ndtri(np.array(nominal_levels(counts, spent)) / 2)
    assert found == pytest.approx(bounds, abs=0.05)


def test_what_is_spent_is_what_paths_take():
    counts = (2, 3, 5, 8, 20)
    spent = (0.01, 0.02, 0.01, 0.005, 0.005)
    levels = nominal_levels(counts, spent)
    assert levels[0] == pytest.approx(spent[0])
    assert exits(np.array(counts), levels) == pytest.approx(spent, abs=6e-4)
    assert sum(levels) > sum(spent)


def test_the_largest_of_many_comparisons_spends_less_together():
    counts = (2, 3, 5)
    spent = (0.02, 0.02, 0.01)
    totals = [sum(nominal_levels(counts, spent, m)) for m in (1, 10, 100, 10_000)]
    assert totals == sorted(totals, reverse=True)
    assert totals[-1] > sum(spent)
    # One look alone is a level, whatever there is to compare.
    for comparisons in (1, 50):
        assert nominal_levels((4,), (0.05,), comparisons) == pytest.approx((0.05,))


@pytest.mark.ci
@pytest.mark.parametrize("rows", [2, 8])
def test_false_verdicts_of_all_looks_come_in_one_table_of_twenty(rows):
    """Of spreads that are learned, and unlike from row to row."""
    tables = 400
    looks = [look for look in looks_of(rows - 1) if look.seeds <= 12]
    rng = np.random.default_rng(rows)
    nothing = np.zeros(rows)
    wrong = 0
    for _ in range(tables):
        spreads = np.exp(0.4 * rng.standard_normal((rows, 1)))
        values = spreads * rng.standard_normal((rows, 12))
        for look in looks:
            column = Column(values[:, : look.seeds], nothing, nothing, nothing > 0)
            pairs = Pairs.against(0, rows)
            (result,) = contrast([column], pairs, draws=2000, level=look.level)
            if np.nanmin(result.p) < look.level:
                wrong += 1
                break
    assert wrong / tables < 0.05 + 3.3 * np.sqrt(0.05 * 0.95 / tables)
