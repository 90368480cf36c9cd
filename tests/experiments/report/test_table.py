"""The table of a report as Markdown, CSV, and in a terminal."""

import csv
import io
import re

import numpy as np
import pytest
import rich.console

from experiments.evaluation.metrics import BLEU, METRICS
from experiments.report.cells import Grid
from experiments.report.formats import to_markdown
from experiments.report.rows import short_names
from experiments.report.table import Table, result_table
from experiments.report.terminal import print_differences, print_table
from experiments.report.trial_files import read_results
from experiments.report.write import compare_rows, write_report
from tests.experiments import fakes

pytestmark = pytest.mark.quick


def test_markdown(sweep):
    assert (
        sweep.markdown.read_text(encoding="utf-8")
        == """\
# quick: table × seed

base has the lowest perplexity, 1.150; there are too few seeds, so nothing is said of which \
differences are real.

|  | seeds | parameters | perplexity | BLEU | chrF | exact match, % |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
| base | 2 | 241,664 | 1.150 ± 0.071 | 97.0 ± 1.4 | 98.0 ± 0.7 | 93.5 ± 2.1 |
| h=2, positions=learned | 1 of 2 | 1,000 | 2e+05 | 5.0 | 12.0 | 0.4 |
| h=1 | 0 of 2 | – | – | – | – | – |

base: h=4, positions=sinusoidal (experiments/configs/quick.py)

perplexity: validation, per token; BLEU, chrF and exact match: 500 test sentences; ±: \
sample standard deviation over seeds

## Trials without a result

| trial | status | why |
| --- | --- | --- |
| h=2 positions=learned seed=1 | failed | loss is NaN at step 125 |
| h=1 seed=0 | unfinished | stopped or still running, last logged at step 50 of 750 |
| h=1 seed=1 | unfinished | not started |

## What ran

- config: experiments/configs/quick.py
- sweeps: table, seed
- trials: 3 finished of 6
- started: 2026-11-21T09:00:00 to 2026-11-22T01:00:00
- git: 0a1b2c3d
- device: 1 × cpu
- corpus: c0ffee12
- corpus counts: train 40000, dropped 12
- vocabulary: 5eed5eed
- python: 3.11.7
- versions: jax 0.10.2, flax 0.12.8

Figures, position encodings and attention maps: report.html; a line a trial: report.csv; \
for LaTeX: report.tex.
"""
    )


def test_results_say_how_a_row_stands_to_base(table_3):
    results = table_3.table.results
    assert results.headings[-1] == "against base"
    assert {row[0]: row[-1] for row in results.rows} == {
        "base": "",
        "(A) h=1": "worse (perplexity, BLEU); undecided (chrF, exact match): about 15 "
        "more seeds for chrF",
        "(B) d_k=16": "diverged in 1 of 3 runs",
        "(E) learned positions": "undecided",
        "big": "better (perplexity, BLEU); undecided (chrF, exact match): about 10 more "
        "seeds for chrF",
    }
    assert [row[1] for row in results.rows] == ["3", "3", "2 of 3", "3", "3"]
    assert table_3.table.problems == (
        ("(B) d_k=16, seed 2", "diverged", "loss is NaN at step 75"),
    )


def test_differences_stand_beside_the_papers(table_3):
    perplexity, bleu, chrf, exact = table_3.table.differences.values()
    titles = ("Perplexity", "BLEU", "chrF", "Exact match, %")
    for grid, title in zip((perplexity, bleu, chrf, exact), titles, strict=True):
        assert grid.title == f"{title}: differences to base"
    ours = ("difference", "95 % interval", "p", "d", "runs", "verdict")
    paper = ("paper", "paper’s difference", "paper’s order")
    assert perplexity.headings[2:] == bleu.headings[2:] == ours + paper
    assert chrf.headings[2:] == exact.headings[2:] == ours
    rows = {row[0]: row[2:] for row in perplexity.rows}
    assert rows["base"] == ("–",) * 6 + ("4.92", "–", "–")
    one = rows["(A) h=1"]
    assert re.fullmatch(r"\+\d\.\d{3}", one[0])
    assert one[4:] == ("3", "worse", "5.29", "+0.37", "supported")
    assert re.fullmatch(r"\[-\d\.\d{3}, -\d\.\d{3}\]", rows["big"][1])
    assert rows["big"][-2:] == ("-0.59", "supported")
    assert rows["(B) d_k=16"][4:6] == ("2", "diverged in 1 of 3 runs")
    learned = rows["(E) learned positions"]
    assert re.search(r"undecided.*; differences above \d", learned[5])
    # The paper has no ordering there.
    assert learned[-3:] == ("4.92", "+0.00", "–")
    markdown = table_3.markdown.read_text(encoding="utf-8")
    assert markdown.count("| supported |") == 5
    assert "“Attention Is All You Need”" in markdown


def test_rows_of_one_seed_beside_the_paper(tmp_path):
    book = read_results(fakes.table_3(tmp_path, seeds=1), fakes.REPORTED)
    table = result_table(book, compare_rows(book))
    paper = ("paper", "paper’s difference", "paper’s order")
    assert [g.headings[2:] for g in table.differences.values()] == [paper] * 2
    differences = table.differences["bleu"].column("paper’s difference")
    assert differences == ["–", "-0.90", "-0.70", "-0.10", "+0.60"]
    verdicts = table.results.column("against base")
    assert verdicts == ["", "", "diverged in 1 of 1 runs", "", ""]
    assert "corrected for" not in to_markdown(book, table)


def test_a_base_alone_does_not_stand_beside_the_paper(tmp_path):
    trials = [
        ({"label": "base"}, fakes.finished(), {}),
        ({"label": "mine", "model.h": 2}, fakes.finished(), {}),
    ]
    book = read_results(fakes.sweep(tmp_path, trials), fakes.REPORTED)
    rows = compare_rows(book)
    assert rows[0].published
    assert result_table(book, rows).differences == {}


def read_csv(report):
    return list(csv.DictReader(io.StringIO(report.csv.read_text(encoding="utf-8"))))


def test_csv_has_a_line_a_trial_and_a_column_a_varied_key(sweep):
    lines = read_csv(sweep)
    columns = (
        "name label model.h model.positions seed status parameters perplexity bleu "
        "bleu_detokenized chrf exact_match alignment_error first_token_mass "
        "attention_entropy test_perplexity test_bits_per_character steps seconds tokens_per_second "
        "training_flops peak_memory code"
    )
    assert list(lines[0]) == columns.split()
    of_column = lambda column: [line[column] for line in lines]
    assert of_column("name")[1:4] == [
        "seed=1",
        "h=2 positions=learned seed=0",
        "h=2 positions=learned seed=1",
    ]
    assert of_column("model.h") == ["4", "4", "2", "2", "1", "1"]
    statuses = ["finished"] * 3 + ["failed"] + ["unfinished"] * 2
    assert of_column("status") == statuses
    first = "0,finished,241664,1.1,96.0,,97.5,0.92,,,,,,750,20.5,31000.0,,,0a1b2c3d"
    assert list(lines[0].values())[4:] == first.split(",")
    # What a failed trial has written is no result.
    assert set(list(lines[3].values())[6:-1]) == {""}


@pytest.mark.usefixtures("undrawn")
def test_csv_has_labels_and_the_scores_of_all_weights(tmp_path):
    beside = {}
    for i, name in enumerate(("raw", "ema")):
        test = {"bleu": 30.0 + i, "chrf": 40.0, "exact_match": 0.5}
        validation = {"perplexity": 1.5 + i, "bleu": 9.0}
        beside[name] = {"steps": [1], "validation": validation, "test": test}
    result = fakes.finished(bleu_detokenized=29.5, beside=beside)
    trials = [
        ({"label": "base"}, result, {}),
        ({"label": "a, b", "model.h": 2}, fakes.DIVERGED, {}),
    ]
    base, other = read_csv(write_report(fakes.sweep(tmp_path, trials)))
    columns = [f"{name}.{metric.key}" for name in ("raw", "ema") for metric in METRICS]
    assert list(base)[-len(columns) - 1 :] == [*columns, "code"]
    names = (
        "label",
        "bleu_detokenized",
        "raw.perplexity",
        "ema.perplexity",
        "ema.bleu",
    )
    assert [base[name] for name in names] == ["base", "29.5", "1.5", "2.5", "31.0"]
    found = (other["label"], other["status"], other["ema.bleu"])
    assert found == ("a, b", "diverged", "")


@pytest.mark.usefixtures("undrawn")
def test_what_trials_say_of_their_scores_stands_below_the_table(tmp_path):
    """Once, though several say it; and what is no text is left out."""
    said = ["BLEU counts 4\ntokens", "BLEU counts 4\ntokens", 7]
    trials = []
    for h, note in zip((2, 1, 4), said, strict=True):
        trials.append(({"model.h": h}, fakes.finished(notes={"bleu": note}), {}))
    trials.append(({"model.h": 8}, fakes.finished(notes=["none"]), {}))
    table = write_report(fakes.sweep(tmp_path, trials)).table
    assert [note for note in table.notes if "counts" in note] == [
        "BLEU counts 4 tokens"
    ]


def test_short_names():
    assert short_names(["model.h", "seed"]) == {"model.h": "h", "seed": "seed"}
    known = ["evaluation.batch_size", "training.batch_size", "training.steps"]
    assert short_names(["training.batch_size", "training.steps"], known) == {
        "training.batch_size": "training.batch_size",
        "training.steps": "steps",
    }


def shown(table, width, terminal):
    console = rich.console.Console(
        file=io.StringIO(), width=width, force_terminal=terminal, color_system=None
    )
    print_table(table, console)
    return console.file.getvalue()


def test_a_pipe_gets_plain_columns_that_never_wrap(sweep):
    plain = shown(sweep.table, 40, terminal=False).splitlines()
    assert plain[0].split() == ["seeds", "perplexity", "BLEU", "exact", "match,", "%"]
    assert plain[1].split("  ", 1) == [
        "base",
        "                       2  1.150 ± 0.071  97.0 ± 1.4      93.5 ± 2.1",
    ]
    assert plain[-4] == "failed: h=2 positions=learned seed=1: loss is NaN at step 125"
    assert plain[-1] == sweep.table.finding
    assert len(plain) == 1 + 3 + 2 + 3 + 1


def test_differences_are_drawn_a_line_a_row(table_3):
    def printed(is_sorted):
        console = rich.console.Console(file=io.StringIO(), width=140)
        print_differences(table_3.rows, BLEU, is_sorted, console)
        return [line.rstrip() for line in console.file.getvalue().splitlines()]

    headings, *lines = printed(is_sorted=False)
    assert headings.split() == ["BLEU", "−", "base", "95", "%", "interval", "verdict"]
    names = [row.name for row in table_3.rows[1:]]
    assert [line.split("  ")[0] for line in lines] == names
    worse, diverged, undecided, better = lines
    # The base is in the middle, a verdict's interval on its side.
    assert worse.index("●") < worse.index("┤") < worse.index("│")
    assert "├" in undecided and "○" in undecided and "│" not in undecided
    assert better.index("│") < better.index("├") < better.index("●")
    assert worse.endswith("  worse") and better.endswith("  better")
    assert diverged.endswith("diverged in 1 of 3 runs")
    size = lambda line: float(re.search(r"[+-][\d.]+", line)[0])
    assert printed(is_sorted=True)[1:] == sorted(lines, key=size)


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_gets_a_drawn_table_that_fits(table_3, width):
    drawn = shown(table_3.table, width, terminal=True)
    assert "───" in drawn and max(map(len, drawn.splitlines())) <= width
    for i, heading in enumerate(table_3.table.results.headings[1:-1], 1):
        cell = table_3.table.results.rows[1][i]
        assert (cell in drawn) == (heading not in ("parameters", "chrF"))
    diverged = "diverged: (B) d_k=16, seed 2: loss is NaN"
    for word in ("learned", "worse", "better", "undecided", diverged):
        assert word in drawn


def test_labels_are_no_markup_in_a_terminal():
    results = Grid("", ("", *"abcdef"), (("x=[red]", *"123456"),))
    table = Table(results, ("[bold]",), {}, (), (("[a]", "failed", "[b]"),))
    assert all(
        text in shown(table, 100, terminal=True)
        for text in ("x=[red]", "[bold]", "failed: [a]: [b]")
    )


def test_a_row_that_varies_more_than_the_rest_is_named(tmp_path, undrawn):
    rng = np.random.default_rng(0)
    trials = []
    for h in (4, 2, 1, 8):
        wild = 12 if h == 8 else 1
        for seed in range(3):
            noise = wild * rng.standard_normal(4)
            noise *= (0.005, 0.2, 0.2, 0.005)
            scores = np.array([1.2, 80.0, 85.0, 0.8]) + noise
            trials.append(({"model.h": h, "seed": seed}, fakes.finished(*scores), {}))
    written = write_report(fakes.sweep(tmp_path, trials), fakes.REPORTED)
    (note,) = [n for n in written.table.notes if n.startswith("more variable")]
    named = re.fullmatch(r"more variable .*, and judged so: h=8 \((\d+) times\)", note)
    assert 5 < float(named[1]) < 60
    assert {row.name for row in written.rows if row.times_as_variable} == {"h=8"}
