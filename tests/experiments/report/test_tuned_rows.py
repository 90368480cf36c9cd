"""The report of a tuned sweep: what was chosen, and the rows without it."""

import csv
import io
import json
import math

import pytest
import rich.console

from experiments.report.terminal import print_table
from experiments.report.trial_files import read_results
from experiments.report.write import compare_rows, write_report
from tests.experiments import fakes

pytestmark = pytest.mark.quick

RATE = "training.learning_rate"
TUNING = {"grid": {RATE: [0.5, 2.0]}, "seeds": [1000]}


def tuned(workdir, trials, tuning=TUNING):
    """Makes a tuned sweep of [(role, point, result)]."""
    fakes.sweep(workdir, [(point, result, {}) for _, point, result in trials])
    path = workdir / "sweep.json"
    sweep = json.loads(path.read_text())
    for entry, (role, _, _) in zip(sweep["trials"], trials, strict=True):
        entry["role"] = role
    path.write_text(json.dumps(sweep | dict(tuning=tuning)))
    return workdir


def result(perplexity):
    return fakes.finished(perplexity=perplexity, bleu=100 / perplexity)


def two_rows(workdir):
    """Base is best at 0.5, h=1 at its own; two seeds of each are compared."""
    trials = []
    for point, scores in (({}, (1.2, 1.3, 1.4)), ({"model.h": 1}, (1.6, 1.5, None))):
        for values, score in zip(({RATE: 0.5}, {}, {RATE: 2.0}), scores, strict=True):
            outcome = result(score) if score else fakes.DIVERGED
            trials.append(("tuning", {**point, **values, "seed": 1000}, outcome))
    for seed in (0, 1):
        later = {RATE: 0.5, "seed": seed}
        trials.append(("compared", later, result(1.20 + seed / 100)))
        trials.append(("untuned", {"seed": seed}, result(1.30 + seed / 100)))
    for seed in (0, 1):
        own = {"model.h": 1, "seed": seed}
        trials.append(("compared", own, result(1.50 + seed / 100)))
    return tuned(workdir, trials)


def cells(grid):
    return [dict(zip(grid.headings, row, strict=True)) for row in grid.rows]


def test_rows_are_compared_at_the_values_that_were_chosen(tmp_path):
    rows = compare_rows(read_results(two_rows(tmp_path)))
    assert [dict(row.point) for row in rows] == [{}, {"model.h": 1}]
    assert [row.summary("perplexity").mean for row in rows] == [
        pytest.approx(1.205),
        pytest.approx(1.505),
    ]
    # The tuned base is the base: the other row has a difference to it.
    assert rows[0].differences == {}
    assert rows[1].differences["perplexity"].mean == pytest.approx(0.3, abs=0.01)


@pytest.mark.usefixtures("undrawn")
def test_a_choice_that_the_compared_seeds_contradict_is_named(tmp_path):
    """The seed of tuning was a lucky one: at 0.5 the compared seeds do worse."""
    trials = [
        ("tuning", {RATE: 0.5, "seed": 1000}, result(1.29)),
        ("tuning", {"seed": 1000}, result(1.30)),
    ]
    for seed in (0, 1):
        trials.append(("compared", {RATE: 0.5, "seed": seed}, result(1.4 + seed / 50)))
        trials.append(("untuned", {"seed": seed}, result(1.3 + seed / 50)))
    (note,) = [
        note
        for note in write_report(tuned(tmp_path, trials)).table.notes
        if "for the worse" in note
    ]
    assert (
        "base (1.410 ± 0.014, at its own 1.310 ± 0.014); choose on more seeds" in note
    )
    # Where both diverge no seed is worse; where the chosen value does, its mean hides it.
    for i, (at_chosen, is_named) in enumerate(
        [((1.2, None), False), ((1.5, None), True)]
    ):
        workdir = tmp_path / str(i)
        workdir.mkdir()
        outcomes = [result(x) if x else fakes.DIVERGED for x in at_chosen]
        for seed, outcome in enumerate(outcomes):
            trials[2 + 2 * seed] = ("compared", {RATE: 0.5, "seed": seed}, outcome)
        notes = write_report(tuned(workdir, trials)).table.notes
        assert any("for the worse" in note for note in notes) == is_named
    # Its own value diverged on a seed: the chosen one is worse on the other alone.
    (tmp_path / "own").mkdir()
    outcomes = [result(1.4), result(1.30), result(1.2), fakes.DIVERGED]
    trials[2:] = [
        (role, {**values, "seed": i // 2}, outcomes[i])
        for i, (role, values) in enumerate(
            [("compared", {RATE: 0.5}), ("untuned", {})] * 2
        )
    ]
    notes = write_report(tuned(tmp_path / "own", trials)).table.notes
    assert not any("for the worse" in note for note in notes)
    (tmp_path / "right").mkdir()
    right = write_report(two_rows(tmp_path / "right")).table.notes
    assert not any("for the worse" in note for note in right)


@pytest.mark.usefixtures("undrawn")
def test_values_are_shown_where_a_loss_is_a_cross_entropy(tmp_path):
    """As a classifier's, which has no perplexity."""

    def labelled(perplexity):
        return fakes.finished(accuracy=0.5, cross_entropy=math.log(perplexity))

    trials = [
        ("tuning", {RATE: 0.5, "seed": 1000}, labelled(1.29)),
        ("tuning", {"seed": 1000}, labelled(1.30)),
    ]
    for seed in (0, 1):
        trials.append(("compared", {RATE: 0.5, "seed": seed}, labelled(1.4)))
        trials.append(("untuned", {"seed": seed}, labelled(1.3)))
    table = write_report(tuned(tmp_path, trials)).table
    (base,) = cells(table.tuning)
    assert base["validation perplexity of each"] == "0.5: 1.290, 1: 1.300"
    (note,) = [note for note in table.notes if "for the worse" in note]
    assert "base (1.400 ± 0.000, at its own 1.300 ± 0.000)" in note


@pytest.mark.usefixtures("undrawn")
def test_a_choice_at_the_edge_of_the_grid_is_named(tmp_path):
    """Base was tried at 0.5, 1 and 2, of which 0.5 was best; h=1 is best at 1."""
    edges = "at the edge of what was tried"
    (note,) = [n for n in write_report(two_rows(tmp_path)).table.notes if edges in n]
    assert note.endswith("may do better: the lowest learning_rate for base")
    # Two settings at a time, of which one is at its edge.
    kind = "training.schedule"
    grid = {RATE: [0.5, 2.0], kind: ["constant", "cosine"]}
    trials = []
    for rate in (0.5, 1.0, 2.0):
        for schedule in grid[kind]:
            values = {RATE: rate, kind: schedule}
            score = result(abs(rate - 2) + 1 + (schedule == "cosine"))
            trials.append(("tuning", {**values, "seed": 1000}, score))
    trials.append(("compared", {RATE: 2.0, kind: "constant", "seed": 0}, result(1)))
    trials.append(("untuned", {"seed": 0}, result(2)))
    (tmp_path / "two").mkdir()
    workdir = tuned(tmp_path / "two", trials, {"grid": grid, "seeds": [1000]})
    (note,) = [n for n in write_report(workdir).table.notes if edges in n]
    assert note.endswith("may do better: the highest learning_rate for base")


@pytest.mark.usefixtures("undrawn")
def test_what_was_chosen_stands_in_the_table_and_the_untuned_beside_it(tmp_path):
    table = write_report(two_rows(tmp_path)).table
    base, one = cells(table.results)
    assert (base[""], base["chosen"]) == ("base", "learning_rate=0.5")
    assert (one[""], one["chosen"]) == ("h=1", "learning_rate=1 (its own)")
    assert base["perplexity"].startswith("1.205") and base["seeds"] == "2"
    base, one = cells(table.tuning)
    assert base["validation perplexity of each"] == "0.5: 1.200, 1: 1.300, 2: 1.400"
    assert one["validation perplexity of each"] == "0.5: 1.600, 1: 1.500, 2: diverged"
    assert base["untuned perplexity"].startswith("1.305")
    assert one["untuned perplexity"].startswith("1.505")
    assert base["against base, untuned"] == ""
    assert one["against base, untuned"] != ""
    (note,) = [note for note in table.notes if note.startswith("chosen: ")]
    lowest = "the learning_rate of the lowest validation perplexity on seed 1000"
    assert f"{lowest}, which no comparison has" in note


def test_all_forms_of_the_report_have_it(tmp_path):
    report = write_report(two_rows(tmp_path))
    markdown = report.markdown.read_text()
    assert "## Before tuning" in markdown and "learning_rate=1 (its own)" in markdown
    page = report.html.read_text()
    assert "<h2>Before tuning</h2>" in page and "0.5: 1.600, 1: 1.500" in page
    latex = report.latex.read_text()
    assert " & chosen & seeds & parameters & perplexity & untuned & $-$ base &" in latex
    assert (
        r"base & learning\_rate=0.5 & 2 & 241,664 & 1.205 $\pm$ 0.007 & 1.305" in latex
    )
    with open(report.csv) as file:
        found = list(csv.DictReader(file))
    assert [line["role"] for line in found].count("tuning") == 6
    assert {line[RATE] for line in found if line["role"] == "compared"} == {
        "0.5",
        "1.0",
    }
    printed = io.StringIO()
    print_table(report.table, rich.console.Console(file=printed))
    text = printed.getvalue()
    assert "untuned perplexity" in text and "validation perplexity of each" not in text


@pytest.mark.usefixtures("undrawn")
def test_a_row_that_is_not_tuned_yet_stands_beside_the_table_alone(tmp_path):
    trials = [
        ("tuning", {RATE: 0.5, "seed": 1000}, result(1.2)),
        ("tuning", {"seed": 1000}, result(1.3)),
        ("tuning", {"model.h": 1, RATE: 0.5, "seed": 1000}, None),
        ("compared", {RATE: 0.5, "seed": 0}, None),
        ("untuned", {"seed": 0}, result(1.3)),
        ("untuned", {"model.h": 1, "seed": 0}, result(1.5)),
    ]
    table = write_report(tuned(tmp_path, trials)).table
    assert [row[""] for row in cells(table.results)] == ["base"]
    base, one = cells(table.tuning)
    assert (base["chosen"], one["chosen"]) == ("learning_rate=0.5", "–")
    assert one["validation perplexity of each"] == "0.5: unfinished"
    assert one["untuned perplexity"] == "1.500"


@pytest.mark.usefixtures("undrawn")
def test_nothing_is_compared_before_the_first_choice(tmp_path):
    trials = [
        ("tuning", {RATE: 0.5, "seed": 1000}, None),
        ("untuned", {"seed": 0}, None),
    ]
    table = write_report(tuned(tmp_path, trials)).table
    assert table.results.rows == ()
    assert cells(table.tuning)[0]["untuned perplexity"] == "–"
    print_table(table, rich.console.Console(file=io.StringIO()))


@pytest.mark.usefixtures("undrawn")
def test_several_keys_and_seeds(tmp_path):
    """Tried values are those of both keys; their perplexity is the geometric mean."""
    clip = "training.clip"
    trials = []
    for seed, score in ((1000, 2.0), (1001, 8.0)):
        for values in ({}, {RATE: 0.5, clip: 1.0}):
            point = {**values, "seed": seed}
            trials.append(("tuning", point, result(score + len(values))))
    trials.append(("compared", {"seed": 0}, result(1.3)))
    tuning = {"grid": {RATE: [0.5, 1], clip: [1.0]}, "seeds": [1000, 1001]}
    table = write_report(tuned(tmp_path, trials, tuning)).table
    (base,) = cells(table.tuning)
    assert base["chosen"] == "learning_rate=1, clip=2 (its own)"
    assert base["validation perplexity of each"] == "0.5/1: 6.325, 1/2: 4.000"
    (note,) = [note for note in table.notes if note.startswith("chosen: ")]
    assert "learning_rate, clip of the lowest" in note
    assert "on seeds 1000, 1001," in note


@pytest.mark.usefixtures("undrawn")
def test_a_sweep_without_tuning_has_none_of_it(tmp_path):
    fakes.sweep(tmp_path, [({"seed": 0}, result(1.2), {})])
    report = write_report(tmp_path)
    assert report.table.tuning is None
    assert "chosen" not in report.table.results.headings
    assert "role" not in report.csv.read_text().splitlines()[0]
