"""Seeds go where they decide, and looking often makes no more false verdicts."""

import dataclasses

import numpy as np
import pytest

from experiments.evaluation.metrics import BLEU, PERPLEXITY
from experiments.report.comparison import compare, next_plan
from experiments.report.rows import Row
from experiments.report.table import paper_order
from experiments.report.trial_files import TrialResult
from experiments.stats import contrasts, sequential
from experiments.stats.sequential import SEEDS, SPENT, Budget, first_plan, looks_of
from experiments.stats.summary import LEVEL

pytestmark = pytest.mark.quick

ROWS = 8
MOST = 12


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    """As few as a report of many rows makes."""
    monkeypatch.setattr(contrasts, "DRAWS", contrasts.FEWEST_DRAWS)


def trial(row, seed, bleu, status="finished", seconds=3600.0):
    result = {"status": status, "bleu": float(bleu), "seconds": seconds}
    empty = status == "unfinished"
    return TrialResult(
        name=f"{row} seed={seed}",
        point={"seed": seed},
        seed=seed,
        directory=None,
        config={},
        record={},
        metrics=(),
        result=None if empty else result,
        status=status,
        label=f"row {row}" if row else "base",
    )


def table(bleu):
    """Returns the groups of rows (K, J) of BLEU; NaN where a trial has not ended."""
    groups = []
    for i, row in enumerate(bleu):
        trials = []
        for seed, value in enumerate(row):
            status = "unfinished" if np.isnan(value) else "finished"
            trials.append(trial(i, seed, value, status))
        point = {"model.h": i} if i else {}
        groups.append(Row(point, tuple(trials), "base" if i == 0 else f"row {i}"))
    return groups


def runs(seed=0, differences=(), spread=0.3):
    bleu = 40 + spread * np.random.default_rng(seed).standard_normal((ROWS, MOST))
    for row, difference in enumerate(differences, 1):
        bleu[row] += difference
    return bleu


def nothing_kept(trial):
    return {}


def judge(groups, looks, metrics=(BLEU,), interest=None):
    return compare(groups, nothing_kept, metrics, interest, looks)


def plan_of(bleu, budget, interest=None):
    return next_plan(table(bleu), nothing_kept, Budget(budget), [BLEU], interest)


def followed(bleu, budget, interest=None):
    """Returns the last plan of a sweep that trains what each plan asks for."""
    plan = first_plan(len(bleu))
    while True:
        known = np.full(bleu.shape, np.nan)
        for row, count in enumerate(plan.seeds):
            known[row, :count] = bleu[row, :count]
        following = plan_of(known, budget, interest)
        if following == plan:
            return plan
        assert all(
            new >= old for new, old in zip(following.seeds, plan.seeds, strict=True)
        )
        assert sum(following.seeds) <= budget
        plan = following


def test_the_levels_of_all_looks_are_the_tables():
    assert sum(SPENT.values()) == pytest.approx(1)
    assert list(SEEDS) == sorted(set(SEEDS)) and SEEDS[0] == 2
    for comparisons in (1, 20, 1000):
        looks = looks_of(comparisons)
        assert [look.seeds for look in looks] == list(SEEDS)
        # Looks at the same seeds agree, so that the levels add up to more.
        assert LEVEL < sum(look.level for look in looks) < 2 * LEVEL
    assert looks_of(0) == looks_of(1)


def test_a_look_waits_for_all_of_its_trials():
    bleu = runs()
    bleu[3, 1] = np.nan
    assert plan_of(bleu[:, :2], 100) == first_plan(ROWS)


def test_rows_that_are_decided_leave_their_seeds_to_the_others():
    # Half of the rows differ by a lot, the others hardly.
    bleu = runs(differences=(9, -9, 9, -9))
    plan = plan_of(bleu[:, :2], 100)
    assert plan.looks == 2
    assert plan.seeds == (3, 2, 2, 2, 2, 3, 3, 3)


def test_the_budget_is_kept_and_spent_on_the_most_promising():
    bleu = runs(seed=3, differences=(1.2, 0.0, 0.0, 0.0, 0.0, 0.0, 0.9))
    # Two seeds are 16 trials: three are left, one of them for the base.
    plan = plan_of(bleu[:, :2], 19)
    assert sum(plan.seeds) == 19
    assert plan.seeds[0] == plan.seeds[1] == 3
    assert plan_of(bleu[:, :2], 17) == first_plan(ROWS)
    assert sum(followed(bleu, 40).seeds) <= 40


def test_hours_are_those_that_the_trials_took():
    groups = table(runs(differences=(9, 9, 9, 9, 9))[:, :2])
    slow = groups[6].trials
    slow = tuple(
        dataclasses.replace(t, result=t.result | {"seconds": 360_000.0}) for t in slow
    )
    groups[6] = dataclasses.replace(groups[6], trials=slow)
    # 14 hours and 200 have been spent; one more seed takes 1 hour, or 100.
    ask = lambda hours: (
        next_plan(groups, nothing_kept, Budget(hours, True), [BLEU]).seeds
    )
    assert ask(220) == (3, 2, 2, 2, 2, 2, 2, 3)
    assert ask(530) == (3, 2, 2, 2, 2, 2, 3, 3)


def test_the_plan_depends_on_results_alone():
    """Whatever else has ended, and however far the sweep was when it was killed."""
    bleu = runs(seed=1, differences=(4, 0.4, -0.5))
    plan = followed(bleu, 60)
    assert plan_of(bleu, 60) == plan
    groups = table(bleu)
    once = judge(groups, plan.looks)
    turned = [dataclasses.replace(g, trials=g.trials[::-1]) for g in groups]
    again = judge(turned, plan.looks)
    assert [row.verdicts for row in once] == [row.verdicts for row in again]


def test_a_verdict_once_given_stays_with_its_numbers():
    bleu = runs(differences=(9,))
    # After two seeds the row is as the base.
    bleu[1, 2:] -= 9
    first = judge(table(bleu), 1)[1]
    later = judge(table(bleu), 3)[1]
    assert str(first.verdicts["bleu"]) == "better"
    assert later.verdicts == first.verdicts
    assert later.differences == first.differences
    assert later.differences["bleu"].runs == 2


def test_the_papers_orderings_are_those_of_the_verdicts():
    """Of the look that decided, and of the last where none did."""
    groups = [
        dataclasses.replace(group, label=label)
        for group, label in zip(
            table(runs(differences=(-9, 0.1, 9))),
            ("base", "(A) h=1", "(A) h=4", "(C) N=8", "other"),
            strict=False,
        )
    ]
    for looks in (1, 2, 3):
        rows = judge(groups, looks)
        orderings = {row.label: paper_order(BLEU, rows, row) for row in rows}
        assert orderings == {
            "base": "",
            "(A) h=1": "supported",
            "(A) h=4": "cannot tell",
            "(C) N=8": "contradicted",
            "other": "",
        }


def test_a_look_is_judged_at_its_level():
    groups = table(runs(differences=(9, 2.0))[:, :2])
    (_, _, looked, *_) = judge(groups, 1)
    (_, _, once, *_) = compare(groups, nothing_kept, [BLEU])
    ours = looked.differences["bleu"]
    theirs = once.differences["bleu"]
    assert ours.high - ours.low > 1.1 * (theirs.high - theirs.low)
    assert 0 < theirs.p < 0.15
    assert ours.p == pytest.approx(min(1.0, theirs.p * LEVEL / looks_of(1)[0].level))


def test_before_the_first_look_nothing_is_judged():
    rows = judge(table(runs(differences=(9,))), 0)
    assert all(not row.verdicts and not row.differences for row in rows)
    assert len(rows[1].trials) == MOST


def test_p_is_below_a_half_tenth_just_where_there_is_a_verdict():
    rows = judge(table(runs(differences=(9, 1, 0.6, 0.4))), 2)
    for row in rows[1:]:
        is_shown = row.verdicts["bleu"].words in ("better", "worse")
        assert (row.differences["bleu"].p < LEVEL) == is_shown


def test_rows_that_are_equal_within_the_interest_are_decided():
    bleu = runs(spread=0.05)
    plan = followed(bleu, 200, {"bleu": 2.0})
    assert plan == first_plan(ROWS)
    rows = judge(table(bleu), 1, [BLEU], {"bleu": 2.0})
    assert {str(row.verdicts["bleu"]) for row in rows[1:]} == {"equal within 2"}


def test_rows_without_hope_get_no_more():
    # No budget of this size shows a difference as small as the last row leaves open.
    bleu = runs(spread=5.0)
    hopeless = plan_of(bleu[:, :2], 19, {"bleu": 0.01})
    hopeful = plan_of(bleu[:, :2], 300, {"bleu": 0.01})
    assert sum(hopeless.seeds) <= sum(hopeful.seeds)
    assert hopeful.looks == 2


def test_with_an_interest_its_metrics_decide():
    groups = table(runs())
    row = judge(groups, 1, [BLEU, PERPLEXITY])[1]
    verdicts = {"bleu": row.verdicts["bleu"]._replace(words="undecided")}
    verdicts["chrf"] = row.verdicts["bleu"]._replace(words="worse")
    row = dataclasses.replace(row, verdicts=verdicts)
    assert sequential.is_decided(row, {})
    assert not sequential.is_decided(row, {"bleu": 0.5})
    assert sequential.is_decided(row, {"chrf": 0.5})


@pytest.mark.ci
def test_looking_often_makes_no_more_false_verdicts():
    tables = 200
    wrong = 0
    for seed in range(tables):
        bleu = runs(seed)
        rows = judge(table(bleu), 5)
        wrong += any(row.verdicts["bleu"].words != "undecided" for row in rows[1:])
    # 3.3 standard errors above 5 %.
    assert wrong / tables < 0.05 + 3.3 * np.sqrt(0.05 * 0.95 / tables)
