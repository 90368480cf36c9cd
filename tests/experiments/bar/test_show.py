"""What is shown of entries equals their logs."""

import csv
import io
import re
import statistics

import pytest

from experiments.bar import logs, rules, show
from experiments.stats.wins import Contest
from tests.experiments.bar import fakes

pytestmark = pytest.mark.quick

ENTRIES = [
    fakes.log("base", seeds=16, seed=1),
    fakes.log("worse", better=-3.0, seeds=4, seed=2),
    fakes.log("equal", seed=3),
    fakes.log("better", better=3.0, seed=4),
]


@pytest.fixture
def rows():
    return show.rows_of(ENTRIES)


def test_the_finding_counts_and_names_the_record(rows):
    text = show.finding(rows)
    assert "Entries beside base: 3, of which 1 better, 1 worse, 1 undecided." in text
    assert "The record is better, whose runs win" in text
    assert show.finding(rows[:3]).endswith("Base is the record.")


def test_the_table_has_the_best_first_and_records_bold(rows):
    lines = show.table(rows).splitlines()
    names = [line.split(" | ")[0].removeprefix("| ") for line in lines[2:]]
    assert names == ["**better**", "equal", "**base**", "worse"]
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2].count("▲") == len(rules.tasks_of("small"))
    assert "▼" in lines[5]
    assert "▲" not in lines[3]
    assert "▼" not in lines[3]


def test_the_table_has_means_of_the_chosen_runs(rows):
    cells = dict(zip(show.headings(ENTRIES[0].tasks), show.cells(rows[0]), strict=True))
    values = ENTRIES[0].values()["A5"].values()
    assert cells["A5, %"] == f"{100 * statistics.mean(values):.1f}"
    assert cells["seeds"] == "16"
    assert cells["minutes"] == f"{16 * 7 * 3 * 12 / 60:.0f}"


def test_data_say_what_the_table_says(rows):
    lines = list(csv.DictReader(io.StringIO(show.as_csv(rows))))
    assert len(lines) == len(ENTRIES) * (len(rules.tasks_of("small")) + 1)
    better = {line["task"]: line for line in lines if line["entry"] == "better"}
    values = [*ENTRIES[3].values()["copy"].values()]
    assert float(better["copy"]["mean"]) == pytest.approx(100 * statistics.mean(values))
    assert float(better["copy"]["sd"]) == pytest.approx(100 * statistics.stdev(values))
    assert better["all"]["verdict"] == "better"
    assert better["all"]["record_then"] == "base"
    base = ENTRIES[0].values()
    of_copy = Contest(values, [*base["copy"].values()]).share
    assert float(better["copy"]["share_of_wins"]) == pytest.approx(of_copy)
    shares = [
        Contest([*by_seed.values()], [*base[task].values()]).share
        for task, by_seed in ENTRIES[3].values().items()
    ]
    assert float(better["all"]["share_of_wins"]) == pytest.approx(
        statistics.mean(shares)
    )
    characters = float(better["characters"]["mean"])
    mine = statistics.mean(ENTRIES[3].values()["characters"].values())
    assert characters == pytest.approx(-mine)


def test_a_run_that_diverged_is_counted_and_not_averaged():
    log = ENTRIES[2]
    task = log.tasks[0]
    first = next(run for run in log.runs if run.task == task.name)
    runs = [
        run._replace(value=float("nan"), validation=float("inf"))
        if (run.task, run.seed) == (first.task, first.seed)
        else run
        for run in log.runs
    ]
    text = show.mean_text(log._replace(runs=tuple(runs)), task)
    assert text.endswith("(7 of 8)")
    gone = [run._replace(value=float("nan")) for run in log.runs]
    assert show.mean_text(log._replace(runs=tuple(gone)), task) == "diverged"


def test_data_of_runs_that_diverged_are_left_empty(rows):
    gone = [run._replace(value=float("nan")) for run in ENTRIES[2].runs]
    log = ENTRIES[2]._replace(runs=tuple(gone))
    text = show.as_csv(show.rows_of([ENTRIES[0], log]))
    lines = list(csv.DictReader(io.StringIO(text)))
    assert {line["mean"] for line in lines if line["entry"] == "equal"} == {""}
    assert {line["share_of_wins"] for line in lines if line["entry"] == "equal"} == {
        "0.0"
    }


def test_the_figure_has_every_task_of_every_entry():
    one = dict.fromkeys(["copy"], fakes.log("x", better=9.0, seed=5))
    runs = [run for run in ENTRIES[2].runs if run.task not in one]
    runs += [run for run in one["copy"].runs if run.task in one]
    outlier = ENTRIES[2]._replace(runs=tuple(runs))
    (axes,) = show.figure(show.rows_of([ENTRIES[0], outlier])).figure.axes
    small = [line for line in axes.lines if line.get_markersize() < 3]
    assert [len(line.get_xdata()) for line in small] == [len(outlier.tasks)]


def test_a_verdict_is_told_task_by_task_and_in_the_whole():
    lines = show.verdict(ENTRIES[3], ENTRIES[:3])
    assert lines[-1] == "better beats the record"
    assert re.fullmatch(
        r"against base: wins \d+ \[\d+, \d+\] %, p = \S+, better", lines[-2]
    )
    p = float(re.search(r"p = ([\d.e-]+)", lines[-2])[1])
    assert p < rules.LEVEL
    lines = show.verdict(fakes.log("late", seed=9), ENTRIES)
    assert "against better: wins" in lines[-1]
    assert lines[-1].endswith("worse")
    assert show.verdict(ENTRIES[0], []) == [
        "base is the first entry, which others are compared with"
    ]


def test_the_page_holds_all_entries_and_nothing_from_elsewhere(rows):
    page = show.page(rows)
    for entry in ENTRIES:
        assert f'<th scope="row">{entry.name}</th>' in page
    assert not re.search(r'(?:src|href)="(?!#)', page)
    assert page.count("<figure") == 1


def test_a_name_is_no_markup(rows):
    evil = fakes.log("<script>alert(1)</script>", seed=3)
    page = show.page(show.rows_of([ENTRIES[0], evil]))
    assert "<script>alert" not in page


def test_readme_is_filled_between_its_marks(rows):
    text = "before\n<!-- entries: small -->\nold\n<!-- / -->\nafter\n"
    filled = show.with_table(text, rows)
    assert filled.startswith("before\n")
    assert filled.endswith("<!-- / -->\nafter\n")
    assert "old" not in filled
    assert show.with_table(filled, rows) == filled


@pytest.mark.parametrize("size", rules.SIZES)
def test_what_is_written_of_the_entries_is_what_their_logs_say(size):
    entries = logs.read_all(size)
    if not entries:
        assert not (logs.FOLDER / f"{size}.csv").exists()
        return
    rows = show.rows_of(entries)
    text = show.README.read_text(encoding="utf-8")
    remedy = f"python -m launch.bar --table --size={size}"
    assert show.with_table(text, rows) == text, remedy
    assert (logs.FOLDER / f"{size}.csv").read_text() == show.as_csv(rows), remedy
