import numpy as np
import pytest

from experiments.stats.least_squares import Pairs
from experiments.stats.resampling import (
    Runs,
    column_of,
    resampled_scores,
    resamples,
)
from experiments.stats.variance_stabilising import IDENTITY, SHARE

pytestmark = pytest.mark.quick

PAIRS = Pairs.against(0, 2)

S = 41


def mean_of_sums(sums, sentences):
    return sums[..., 0] / sentences


def runs_of(answers, sentences=None):
    """A row whose runs have the answers (J, S) right, and keep the first `sentences`."""
    answers = np.asarray(answers, float)
    values = {seed: float(row.mean()) for seed, row in enumerate(answers)}
    tables = {seed: row[:sentences, None] for seed, row in enumerate(answers)}
    size = answers.shape[1]
    return Runs(values, tables, sentences or size, size)


def answers(seeds, size=S, seed=0, rate=0.6):
    return np.random.default_rng(seed).random((seeds, size)) < rate


def test_resamples_draw_as_many_sentences_with_replacement():
    weights = resamples(7, seed=3, count=5000)
    assert weights.shape == (5000, 7)
    assert (weights.sum(1) == 7).all() and (weights >= 0).all()
    np.testing.assert_allclose(weights.mean(0), 1, atol=0.06)
    np.testing.assert_allclose(weights.var(0), 1 - 1 / 7, atol=0.1)
    assert (weights != resamples(7, seed=4, count=5000)).any()
    with pytest.raises(ValueError, match=r"1 sentence.*2 are needed"):
        resamples(1)


def test_test_sets_of_one_size_are_drawn_once_so_that_scores_can_be_paired():
    assert resamples(S) is resamples(S)


def test_scores_are_of_resampled_test_sets():
    rng = np.random.default_rng(0)
    weights = resamples(11, count=13)
    tables = rng.gamma(2, 3, (2, 11, 2))
    ratio = lambda sums, sentences: sums[..., 0] / sums[..., 1]
    scores = resampled_scores(ratio, tables, weights)
    assert scores.shape == (2, 13)
    for run, table in enumerate(tables):
        for draw, counts in enumerate(weights.astype(int)):
            again = np.repeat(table, counts, axis=0)
            assert scores[run, draw] == pytest.approx(ratio(again.sum(0), 11))


def test_values_are_on_the_scale_and_runs_without_a_seed_are_one_more():
    rows = [Runs({None: 0.25, 0: 0.5}, {}, S, S), Runs({0: np.inf, 2: 1.0}, {}, S, S)]
    column = column_of(rows, PAIRS, SHARE, [0, 1])
    nan = np.nan
    expected = np.arcsin(np.sqrt([[0.25, 0.5, nan], [nan, nan, 1.0]]))
    np.testing.assert_allclose(column.values, expected)
    assert column.at_bound.tolist() == [False, True]
    assert column_of(rows, PAIRS, SHARE, [0, 1], mean_of_sums).shared[1] > 0
    # What a bound hides is the same, whichever of the two is the base.
    either = Pairs(np.array([1, 0]), np.array([0, 1]))
    one, other = column_of(rows, either, SHARE, [0, 1]).shared
    assert one == other > 0
    assert (
        column_of([rows[1]._replace(values={}), rows[0]], PAIRS, SHARE, [0, 1]) is None
    )


def test_a_runs_own_sentences_are_the_variance_of_a_share():
    rows = [runs_of(answers(2, 100, seed, 0.5)) for seed in (0, 1)]
    own = column_of(rows, PAIRS, SHARE, [0, 1], mean_of_sums).own
    # That of the angle of a share of 100 answers.
    np.testing.assert_allclose(own, 1 / 400, rtol=0.4)


def test_runs_of_other_seeds_are_no_pairs():
    """As where one trial of each failed: the copy is then as another row is."""
    base, copy = (runs_of(answers(2, 100, seed, 0.5)) for seed in (0, 1))
    seeds = (0, 2)
    copy = copy._replace(
        values=dict(zip(seeds, copy.values.values(), strict=True)),
        tables=dict(zip(seeds, copy.tables.values(), strict=True)),
    )
    of_copy, of_row = (
        column_of([base, copy], PAIRS, SHARE, originals, mean_of_sums).shared
        for originals in ([0, 0], [0, 1])
    )
    np.testing.assert_array_equal(of_copy, of_row)


@pytest.mark.parametrize("is_alike", [False, True])
def test_sentences_of_a_copy_are_paired_run_by_run(is_alike):
    """One sentence in twenty is answered otherwise: by chance, or in all runs and rightly."""
    rng = np.random.default_rng(0)
    base = rng.random((4, 1000)) < rng.random((4, 1)) * 0.4 + 0.3
    changed = rng.random((4, 1000)) < 0.05
    if is_alike:
        changed[:] = changed[0]
        base[changed] = False
    rows = [runs_of(base), runs_of(base ^ changed)]
    _, shared = column_of(rows, PAIRS, SHARE, [0, 0], mean_of_sums).shared
    # Copies of another row are paired with each other, too.
    three = [runs_of(~base), *rows]
    copies = Pairs(np.array([2]), np.array([1]))
    assert column_of(three, copies, SHARE, [0, 0, 0], mean_of_sums).shared == shared
    # Of a share, and of its angle where it is near a half.
    of_one = 0.05 / 1000
    if is_alike:
        assert shared == pytest.approx(of_one, rel=0.4)
    else:
        # What runs do not share falls with their number, and is their own.
        assert shared < 0.5 * of_one / 4


@pytest.mark.parametrize("why", ["one not kept", "other sentences", "one sentence"])
def test_else_nothing_is_known_of_sentences(why):
    # All runs of a row are alike, so that sentences matter to every one of them.
    first, second = (np.repeat(answers(1, seed=seed), 3, axis=0) for seed in (0, 1))
    base, good = runs_of(first), runs_of(second)
    assert column_of([base, good], PAIRS, IDENTITY, [0, 1], mean_of_sums).shared[1] > 0
    if why == "one not kept":
        good.tables.pop(1)
    elif why == "other sentences":
        good = runs_of(second, S - 1)
    else:
        base, good = runs_of(first, 1), runs_of(second, 1)
    column = column_of([base, good], PAIRS, IDENTITY, [0, 1], mean_of_sums)
    assert column.shared.tolist() == [0, 0]
