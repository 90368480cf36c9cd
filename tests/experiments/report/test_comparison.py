import dataclasses
import math

import numpy as np
import pytest

from experiments.evaluation.metrics import (
    ACCURACY,
    BLEU,
    EXACT_MATCH,
    METRICS,
    PERPLEXITY,
)
from experiments.report import comparison
from experiments.report.published import Published
from experiments.report.rows import Row, base_of
from experiments.report.table import paper_order
from experiments.report.trial_files import TrialResult
from experiments.stats.contrasts import contrast
from experiments.stats.differences import difference
from experiments.stats.least_squares import Column, Pairs
from experiments.stats.resampling import Runs

pytestmark = pytest.mark.quick

S, V = 41, 53


def trial(label, seed, status="finished", corpus="c0ffee", **result):
    scores = {"perplexity": 5.0, "bleu": 25.0, "exact_match": 0.5}
    return TrialResult(
        name=f"{label} seed={seed}",
        point={"seed": seed},
        seed=seed,
        directory=None,
        config={},
        record={"corpus": corpus},
        metrics=(),
        result={"status": status} | scores | result,
        status=status,
        label=label,
    )


def row(label, perplexities=(5.0,) * 3, bleus=(25.0,) * 3, point=None, **more):
    """A row of runs with these scores; `more` has others, one for all runs or a list."""
    trials = []
    for seed, scores in enumerate(zip(perplexities, bleus, strict=True)):
        of_run = dict(zip(("perplexity", "bleu"), scores, strict=True))
        for key, values in more.items():
            is_list = isinstance(values, (list, tuple))
            of_run[key] = values[seed] if is_list else values
        trials.append(trial(label, seed, **of_run))
    if point is None:
        point = {} if label == "base" else {"model.h": label}
    return Row(point, tuple(trials), label, label)


def nothing_kept(trial):
    return {}


def kept(trial, S=S):
    """Sentences by chance, their own for each trial; rows named "good" are better."""
    good = "good" in trial.name
    rng = np.random.default_rng([good, trial.seed, 7])
    reference = np.random.default_rng(0).integers(4, 20, S)
    total = np.maximum(0, reference[:, None] - np.arange(4))
    correct = rng.binomial(total, (0.9 if good else 0.7) ** np.arange(1, 5))
    lengths = reference[:, None].repeat(2, axis=1)
    tokens = np.random.default_rng(1).integers(1, 20, V)
    nll = tokens * rng.gamma(9, (0.1 if good else 0.2), V)
    return {
        "test_bleu": np.concatenate([correct, total, lengths], 1).astype(np.int32),
        "test_exact": rng.random(S) < (0.8 if good else 0.4),
        "validation_nll": nll.astype(np.float32),
        "validation_tokens": tokens.astype(np.int32),
    }


BASE = row("base", (4.92, 4.90, 4.95), (25.8, 25.7, 25.9))
GROUPS = [
    row("(A) h=1", (5.29, 5.25, 5.33), (23.80, 23.71, 23.89)),
    BASE,
    row("(C) N=8", (5.20, 5.179, 5.231), (25.7, 26.01, 26.1)),
    row("mine", (4.92, 4.90, 4.95), (25.8, 25.7, 25.9)),
    row("(A) h=16", (5.20, 5.19, 5.22), (23.1, 23.0, 23.21)),
]


def compared(groups, *arguments, **more):
    """{label: Row}."""
    rows = comparison.compare(groups, *arguments or [nothing_kept], **more)
    return {row.label: row for row in rows}


def words(row):
    return {key: verdict.words for key, verdict in row.verdicts.items()}


def test_rows_stand_against_the_group_labelled_base():
    rows = comparison.compare(GROUPS, nothing_kept)
    assert [row.trials for row in rows] == [row.trials for row in GROUPS]
    first, base, _, mine, _ = rows
    # Differences of means of roots of cross-entropies, shown as perplexities.
    roots = lambda group: [
        math.sqrt(math.log(t.result["perplexity"])) for t in group.trials
    ]
    mean = lambda group: math.exp(np.mean(roots(group)) ** 2)
    gap = mean(GROUPS[0]) - mean(BASE)
    assert first.differences["perplexity"].mean == pytest.approx(gap)
    assert gap == pytest.approx(0.37 - 0.01 / 3, abs=0.001)
    assert first.differences["bleu"].mean == pytest.approx(-2.0, abs=0.001)
    assert (base.differences, base.verdicts) == ({}, {})
    assert base.published == Published(4.92, 25.8)
    assert mine.differences["perplexity"].mean == pytest.approx(0.0, abs=1e-12)
    assert mine.published is None


def test_the_base_is_the_one_labelled_so_or_else_the_unchanged_one():
    unchanged = row("", (1,), (1,), point={})
    labelled = row("base", (1,), (1,), point={"model.h": 1})
    assert base_of([GROUPS[0], unchanged, labelled]) == 2
    assert base_of([GROUPS[0], unchanged]) == 1
    assert base_of([GROUPS[0]]) is None
    assert base_of([]) is None
    # Without a base no sentence is read.
    without = comparison.compare([GROUPS[0], GROUPS[2]], pytest.fail)
    assert [row.differences for row in without] == [{}, {}]
    assert comparison.compare([], nothing_kept) == []


def test_rows_and_metrics_are_one_family():
    """Every p and interval is that of one call of `contrast` with all columns."""
    scores = []
    for metric in METRICS:
        if metric.key not in BASE.trials[0].result:
            continue
        values = [
            [metric.link.forward(t.result[metric.key]) for t in group.trials]
            for group in GROUPS
        ]
        zeros = np.zeros(len(GROUPS))
        scores.append(Column(np.array(values), zeros, zeros, zeros > 0))
    expected = contrast(scores, Pairs.against(1, len(zeros)))
    rows = comparison.compare(GROUPS, nothing_kept)
    keys = ["perplexity", "bleu", "exact_match"]
    for key, contrasts in zip(keys, expected, strict=True):
        for i, row in enumerate(rows):
            if i != 1:
                assert row.differences[key].p == pytest.approx(contrasts.p[i])
    alone = comparison.compare(GROUPS, nothing_kept, [BLEU])
    both, single = rows[0].differences["bleu"], alone[0].differences["bleu"]
    assert both.high - both.low > single.high - single.low


def test_verdicts_say_what_to_conclude():
    rows = compared(GROUPS)
    assert words(rows["(A) h=1"])["perplexity"] == "worse"
    assert words(rows["(A) h=1"])["bleu"] == "worse"
    assert words(rows["mine"])["bleu"] == "undecided"
    text = str(rows["mine"].verdicts["bleu"])
    assert text.startswith("undecided; differences above 0.")
    assert text.endswith(" would have shown")
    # Without interest, no number of seeds shows a difference of 0.
    assert rows["mine"].verdicts["bleu"].more_seeds is None


def test_a_row_within_the_interest_is_equal():
    interest = {"bleu": 2.0, "perplexity": 0.001}
    rows = compared(GROUPS, nothing_kept, interest=interest)
    assert str(rows["mine"].verdicts["bleu"]) == "equal within 2"
    assert words(rows["mine"])["perplexity"] == "undecided"
    assert words(rows["(A) h=16"])["bleu"] == "worse"
    # In the units of the table: percent.
    wide = compared(GROUPS, nothing_kept, interest={"exact_match": 1.0})
    assert str(wide["mine"].verdicts["exact_match"]) == "equal within 1 %"


def test_the_seeds_that_are_proposed_decide():
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.1, (12, 40))

    def table(seeds):
        bleu = 25 + noise[:, :seeds]
        bleu[1] += 0.18 - noise[1, :seeds].mean() + noise[0, :seeds].mean()
        flat = (5.0,) * seeds
        groups = [row("base", flat, bleu[0])]
        groups += [row(f"row {i}", flat, bleu[i]) for i in range(1, 12)]
        return compared(groups, nothing_kept, [BLEU])["row 1"].verdicts["bleu"]

    few = table(3)
    assert few.words == "undecided" and few.more_seeds > 1
    assert table(3 + 2 * few.more_seeds).words == "better"
    assert str(few).startswith(f"undecided: about {few.more_seeds} more seeds; ")


def test_the_papers_orderings():
    rows = comparison.compare(GROUPS, nothing_kept)
    orderings = {}
    for row in rows:
        metrics = (PERPLEXITY, BLEU)
        orderings[row.label] = {m.key: paper_order(m, rows, row) for m in metrics}
    assert orderings == {
        "(A) h=1": {"perplexity": "supported", "bleu": "supported"},
        "base": {"perplexity": "", "bleu": ""},
        "(C) N=8": {"perplexity": "contradicted", "bleu": "cannot tell"},
        "mine": {"perplexity": "", "bleu": ""},
        # 25.8 is base's BLEU too: the paper has no ordering.
        "(A) h=16": {"perplexity": "contradicted", "bleu": ""},
    }


def test_a_metric_that_results_lack_is_not_compared():
    without = row("no BLEU", (5.0, 5.2, 5.1), (None, None, None))
    rows = compared([*GROUPS, without])
    keys = {"perplexity", "exact_match"}
    assert rows["no BLEU"].differences.keys() == rows["no BLEU"].verdicts.keys() == keys


def width(row, metric):
    difference = row.differences[metric.key]
    return difference.high - difference.low


@pytest.mark.parametrize("metric", [PERPLEXITY, BLEU, EXACT_MATCH], ids=lambda m: m.key)
def test_sentences_count_where_both_sides_kept_them(metric):
    """Rows that differ by one sentence's worth in seeds differ by much over sentences."""
    rows = []
    bumps = dict(base=0.0, good=0.01, third=0.003, fourth=0.02)
    for i, (label, bump) in enumerate(bumps.items(), 1):
        perplexities = (5 + bump, 5.01 + bump, 5.02)
        bleus = (25 + bump, 25.1, 25.2 + bump)
        exact = [0.5 + 0.001 * seed * i for seed in range(3)]
        rows.append(row(label, perplexities, bleus, exact_match=exact))
    with_sentences = compared(rows, kept)
    without = compared(rows, nothing_kept)
    assert width(with_sentences["good"], metric) > 3 * width(without["good"], metric)
    # Where the base has kept none, only the row's own sentences count, as its least spread.
    of_base = lambda trial: {} if "base" in trial.name else kept(trial)
    one_side = compared(rows, of_base)
    assert width(one_side["good"], metric) < width(with_sentences["good"], metric)


def test_a_difference_that_cannot_be_is_not_spoken_of():
    wild = row("wild", (5.0, 5.5, 9.0), (1.0, 50.0, 99.0))
    steady = row("base", (5.0, 5.1, 5.2), (2.0, 60.0, 98.0))
    bleu = compared([steady, wild])["wild"].verdicts["bleu"]
    assert str(bleu) == "undecided; too few seeds to show any difference"
    differences = compared([steady, wild])["wild"].differences["bleu"]
    # No interval leaves what BLEU can be.
    assert differences.low >= -100 and differences.high <= 100


def test_a_run_that_diverged_is_named_and_leaves_the_other_rows_alone():
    odd = row("odd", (5.0, math.inf, 5.2), (25.0, 24.9, 25.1))
    two = row("y", (5.0, 5.1), (25.0, 25.2))
    ended = dataclasses.replace(two, trials=(*two.trials, trial("y", 2, "diverged")))
    rows = compared([*GROUPS, odd, ended])
    assert str(rows["odd"].verdicts["perplexity"]) == "diverged in 1 of 3 runs"
    assert set(words(rows["y"]).values()) == {"diverged in 1 of 3 runs"}
    assert words(rows["(A) h=1"])["bleu"] == "worse"


def test_rows_of_the_same_models_are_compared_run_by_run():
    """A table of three trainings, each with two scores."""
    perplexities = (5.0, 5.3, 4.8), (5.1, 4.7, 5.2), (4.9, 5.4, 5.0)
    bleus = (20.0, 22.0, 24.0), (21.5, 23.0, 19.5), (24.5, 20.0, 22.5)
    groups = []
    for i, (perplexity, bleu) in enumerate(zip(perplexities, bleus, strict=True)):
        training = {"training.log_every": 100 * i} if i else {}
        better = [
            score + 0.5 + 0.02 * (j - 1) * (i + 1) for j, score in enumerate(bleu)
        ]
        scored = training | {"evaluation.beam": 4}
        # The base is the second of its models.
        groups.insert(2 * i, row(f"{i}, beam 4", perplexity, better, point=scored))
        groups.insert(2 * i + 1, row(f"{i}", perplexity, bleu, point=training))
    assert comparison.originals_of(groups, [1]) == [1, 1, 2, 2, 4, 4]
    rows = compared(groups)
    difference = rows["0, beam 4"].differences["bleu"]
    assert difference.mean == pytest.approx(0.5, abs=0.01)
    assert 0.3 < difference.low < difference.high < 0.7
    assert words(rows["0, beam 4"])["bleu"] == "better"
    # Its perplexity is that of the base, run by run.
    same = rows["0, beam 4"].differences["perplexity"]
    assert (same.mean, same.low, same.high, same.p) == (0, 0, 0, 1)
    for name in ("1", "1, beam 4", "2", "2, beam 4"):
        assert words(rows[name])["bleu"] == "undecided"


def test_a_run_without_a_seed_is_one_of_its_row():
    first = dataclasses.replace(BASE.trials[0], seed=None)
    base = Row({}, (first, *BASE.trials[1:]), "base")
    rows = compared([base, *GROUPS[2:], GROUPS[0]])
    assert rows["(A) h=1"].differences["bleu"].runs == 3
    assert words(rows["(A) h=1"])["bleu"] == "worse"


def test_rows_at_a_bound_say_so():
    groups = [
        row("base", (5.0, 5.1, 5.2), (20.0, 21.0, 20.5), exact_match=0.0),
        row("low", (5.0, 5.1, 5.2), (0.0, 0.0, 0.0), exact_match=0.0),
        row("mid", (5.0, 5.2, 5.2), (20.1, 20.2, 20.4), exact_match=0.0),
    ]
    rows = compared(groups)
    assert str(rows["low"].verdicts["bleu"]) == "worse; all runs at 0"
    assert "exact_match" not in rows["low"].differences


def test_a_bound_does_not_widen_what_is_far_from_it():
    """As in experiments/results/lengths/recall.md: 25 % against seeds of 99.9 and 100 %."""
    accuracies = {
        "base": (1.0, 0.999),
        "guess": (0.252, 0.249),
        "near": (0.965, 0.923),
        "nearer": (0.978, 0.956),
        "half": (0.6, 0.55),
        "third": (0.3, 0.31),
    }
    rows = [
        row(label, (5.0, 5.0), (1.0, 2.0), exact_match=values)
        for label, values in accuracies.items()
    ]
    guess = compared(rows, nothing_kept, [EXACT_MATCH])["guess"]
    difference = guess.differences["exact_match"]
    assert -0.9 < difference.low < difference.high < -0.6


@pytest.mark.parametrize(("answers", "is_equal"), [(1, False), (60, True)])
def test_what_answers_leave_open_at_a_bound_is_in_the_interval(answers, is_equal):
    """Rows of which all answers are right differ by as much as so many answers can miss."""

    def sentences(trial):
        # 500 texts with some answers each; the row "mid" has missed a part of them.
        right = np.full(500, answers)
        if "mid" in trial.name:
            right = np.random.default_rng(trial.seed).binomial(answers, 0.7, 500)
        return {"test_accuracy": np.stack([right, np.full(500, answers)], axis=1)}

    groups = []
    for label in ("base", "same", "mid", "mid 2"):
        counts = [sentences(trial(label, seed))["test_accuracy"] for seed in range(3)]
        accuracies = [right.sum() / all_.sum() for right, all_ in (c.T for c in counts)]
        groups.append(row(label, accuracy=accuracies))
    rows = compared(groups, sentences, [ACCURACY], interest={"accuracy": 0.5})
    difference = rows["same"].differences["accuracy"]
    # The rule of three: 3 of n answers wrong have a probability of 5 %.
    assert difference.high > 3 / (500 * answers)
    expected = "equal within 0.5 %" if is_equal else "undecided"
    assert str(rows["same"].verdicts["accuracy"]).startswith(expected)
    assert rows["same"].verdicts["accuracy"].detail == "all runs at 100 %"


def test_perplexities_of_another_vocabulary_are_not_compared():
    groups = [BASE, GROUPS[0], row("other tokens", (4.0, 4.1, 4.2), (20, 21, 22))]
    for run in groups[2].trials:
        run.record["vocabulary"] = "another"
    rows = compared(groups)
    assert set(rows["other tokens"].differences) == {"bleu", "exact_match"}
    assert set(rows["(A) h=1"].differences) == {"perplexity", "bleu", "exact_match"}


@pytest.mark.parametrize(
    ("seeds", "sentences", "mean", "needs"),
    [
        # Of runs that vary little beside their sentences, more runs say nothing.
        (0.05, 1.0, 1.6, "more test sentences"),
        (1.0, 0.0, 0.5, "more than 50 more seeds"),
        (1.0, 1.0, 1.4, "more seeds and test sentences"),
        # Nothing to be seen of it.
        (1.0, 1.0, 0.001, ""),
    ],
)
def test_what_would_decide_is_named(seeds, sentences, mean, needs):
    nothing = np.zeros(6)
    values = np.random.default_rng(0).standard_normal((6, 4)) * seeds
    values -= values.mean(1, keepdims=True)
    values[1] += mean
    shared = np.array([0.0, *5 * [sentences**2]])
    columns = [Column(values, nothing, shared, nothing > 0)]
    (contrasted,) = contrast(columns, Pairs.against(0, 6))
    found = difference(contrasted, 1, BLEU.link, 4)
    found = dataclasses.replace(found, more_seeds=None, p=0.5)
    verdict = comparison.verdict_of(found, Runs({0: 1.0}, {}, 100, 100), BLEU, None)
    assert verdict.needs == needs
    assert str(verdict).startswith(f"undecided: {needs}" if needs else "undecided; ")
