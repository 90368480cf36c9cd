"""What a report says first: a sentence or two from the verdicts of its table."""

import dataclasses
import itertools
import re

import pytest

from experiments.evaluation.metrics import BLEU, PERPLEXITY
from experiments.report.finding import finding
from experiments.report.notable_rows import notable
from experiments.report.rows import Row
from experiments.report.trial_files import TrialResult
from experiments.stats.differences import Difference, Verdict

pytestmark = pytest.mark.quick

METRICS = (PERPLEXITY, BLEU)


def group(point, perplexity, bleu=30.0):
    result = {"perplexity": perplexity, "bleu": bleu}
    trial = TrialResult("", point, 0, None, {}, {}, (), result, "finished")
    return (trial,)


def row(name, perplexity=(0.0, 0.01), bleu=(0.0, 0.5), words=("undecided",) * 2):
    """A row with (difference, half of its interval) and words for both metrics."""
    differences = {}
    verdicts = {}
    for metric, (mean, half), said in zip(
        METRICS, (perplexity, bleu), words, strict=True
    ):
        ends = (mean, mean - half, mean + half)
        differences[metric.key] = Difference(*ends, 0.5, 1.0, 3, 0.1, None)
        verdicts[metric.key] = Verdict(said, 4 if said == "undecided" else None)
    if not name:
        differences, verdicts = {}, {}
    point = {"name": name} if name else {}
    trials = group(point, 4.0 + perplexity[0])
    return Row(point, trials, name, name or "base", None, differences, verdicts)


def said(*rows):
    rows = [dataclasses.replace(row, base=0) for row in rows]
    return finding(rows, METRICS)


BASE = row("")
WORSE = row("none", (0.28, 0.01), (-5.0, 0.5), ("worse", "worse"))


def test_one_row_is_worse_and_the_others_are_bounded():
    assert said(BASE, row("a", (0.01, 0.013)), row("b", bleu=(-0.1, 0.46)), WORSE) == (
        "none is worse: perplexity is 0.280 higher [+0.270, +0.290]. Nothing else differs "
        "by more than 0.023 in perplexity and 0.57 in BLEU."
    )


def test_no_row_differs():
    assert said(BASE, row("a")) == (
        "No row differs by more than 0.010 in perplexity and 0.50 in BLEU."
    )


def test_a_bound_that_says_nothing_is_left_out():
    wide = row("a", (0.0, 3.0), (0.0, 25.0))
    assert (
        said(BASE, wide) == "No row is shown to differ; about 4 more seeds may decide."
    )


def test_a_row_that_is_better_in_one_metric_and_worse_in_another():
    mixed = row("a", (-0.5, 0.1), (-3.0, 1.0), ("better", "worse"))
    assert said(BASE, mixed) == (
        "a is better: perplexity is 0.500 lower [-0.600, -0.400] (but worse in BLEU)."
    )


def test_of_many_rows_the_clearest_of_each_side_is_named():
    worse = [row(f"w{i}", (0.1 * i, 0.01), words=("worse", "worse")) for i in (1, 3, 2)]
    better = row("up", (-0.1, 0.01), words=("better", "better"))
    text = said(BASE, *worse, better, row("same"))
    assert text.startswith("4 of 5 rows differ from base: 1 better, 3 worse. ")
    assert "The clearest: w3 is worse" in text and "; up is better" in text
    assert "w1" not in text and text.endswith("0.010 in perplexity and 0.50 in BLEU.")


def test_what_diverged_is_named():
    lost = row("hot", words=("diverged in 1 of 3 runs",) * 2)
    lost = dataclasses.replace(lost, differences={})
    assert said(BASE, lost, WORSE).count("hot diverged in some runs.") == 1


def test_without_differences_the_best_row_is_named():
    rows = [
        Row({"h": i}, group({"h": i}, 4.0 - i), label, label)
        for i, label in enumerate(("a", "b"))
    ]
    text = finding(rows, METRICS)
    assert text.startswith("b has the lowest perplexity, 3.000; no row is the base")
    assert said(rows[0]) == ""


@pytest.mark.parametrize(("most", "places"), [(1, [0]), (2, [0, 4]), (3, [0, 2, 4])])
def test_the_rows_that_matter_are_the_base_and_the_clearest(most, places):
    rows = [BASE, row("a"), row("b", (0.02, 0.01)), row("c"), WORSE]
    assert notable(rows, most) == places
    assert notable(rows, 5) == [0, 1, 2, 3, 4]


def test_without_differences_the_rows_that_matter_are_far_from_the_middle():
    values = (4.0, 4.1, 9.0, 3.9, 1.0)
    rows = [Row({"h": i}, group({"h": i}, x), str(i)) for i, x in enumerate(values)]
    assert notable(rows, 2, METRICS) == [2, 4]


def test_numbers_of_the_sentence_are_those_of_the_table(table_3):
    interval = re.search(r"\[[^]]+\]", table_3.table.finding)[0]
    assert interval in table_3.table.differences["perplexity"].rows[-1]


def test_a_product_is_told_by_what_it_compares():
    rows = []
    for system, (i, d_model) in itertools.product("ABC", enumerate((16, 32, 64, 128))):
        words = {"B": "worse", "C": ("undecided", "better")[i % 2]}.get(system, "")
        made = row(f"{system} {d_model}", (0.3, 0.1), words=(words,) * 2)
        if system == "A":
            made = dataclasses.replace(made, differences={}, verdicts={})
        parts = {"systems": system, "d_model": str(d_model)}
        rows.append(dataclasses.replace(made, parts=parts, base=i))
    assert finding(rows, METRICS).startswith(
        "Against A at the same d_model: B is worse in 4 of 4; C is better in 2 of 4 and "
        "undecided in 2 of 4. The clearest: "
    )


@pytest.mark.parametrize(("factor", "bases"), [("d_model", 1), ("systems", 2)])
def test_what_has_several_bases_or_factors_is_counted(factor, bases):
    """Of rows against one base both factors differ; of two bases neither is the one."""
    rows = []
    for place, (system, d_model) in enumerate(itertools.product("ABC", "123")):
        made = row(f"{system} {d_model}", (0.3, 0.1), words=("worse",) * 2)
        base = 0 if bases == 1 else place % 3 + 3 * (place < 6)
        if place == base:
            made = dataclasses.replace(made, differences={}, verdicts={})
        parts = {"systems": system, "d_model": d_model}
        rows.append(dataclasses.replace(made, parts=parts, base=base))
    text = finding(rows, METRICS)
    assert "Against" not in text and re.match(r"\d of \d rows differ", text)


def test_a_product_says_what_diverged_and_what_is_equal():
    rows = []
    said = {"B": ("equal within 1",) * 2, "C": ("worse", "diverged in 1 of 2 runs")}
    for system, i in itertools.product("ABCD", range(4)):
        words = said.get(system, ("worse",) * 2)
        made = row(f"{system} {i}", (0.3, 0.1), words=words)
        if system == "A":
            made = dataclasses.replace(made, differences={}, verdicts={})
        parts = {"systems": system, "d_model": str(i)}
        rows.append(dataclasses.replace(made, parts=parts, base=i))
    diverged = dataclasses.replace(rows[8], verdicts={"bleu": Verdict("diverged in 1")})
    text = finding([*rows[:8], diverged, *rows[9:]], METRICS)
    assert text.startswith(
        "Against A at the same d_model: B is equal in 4 of 4; C is worse in 3 of 4 and "
        "diverged in 1 of 4; D is worse in 4 of 4. "
    )
