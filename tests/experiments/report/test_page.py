import base64
import csv
import html.parser
import io
import json
import re
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import rich.console

from experiments.report import page as report_page
from experiments.report.figures import (
    curves,
    differences,
    heat_maps,
    lengths,
    sizes,
    style,
)
from experiments.report.formats import csv_scores, to_markdown
from experiments.report.page import Maps, attention_maps, render_page
from experiments.report.results import read_examples, read_results
from experiments.report.table import Grid, Table, result_table, short_names
from experiments.report.terminal import print_table
from experiments.report.write import compare_rows, write_report
from experiments.system import files
from tests.experiments import fakes

EVIL = "--></script><script>alert(1)</script><img src=x onerror=alert(2)> |*`[red]&amp;"
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """A written report over two points, one of them with one seed, a failed and an
    unfinished trial."""
    failed = {
        "status": "failed",
        "error": "loss is NaN\nat step 125",
        "traceback": "...",
    }
    workdir = fakes.sweep(
        tmp_path_factory.mktemp("sweep"),
        [
            (
                {"seed": 0},
                fakes.finished(
                    1.10,
                    96.0,
                    97.5,
                    0.92,
                    seconds=20.5,
                    beside={"raw": {"test": {"bleu": 96.0}}},
                ),
                {"pairs": fakes.PAIRS},
            ),
            (
                {"seed": 1},
                fakes.finished(1.20, 98.0, 98.5, 0.95),
                {"started": "2026-11-22T01:00:00"},
            ),
            (
                {"model.h": 2, "model.positions": "learned", "seed": 0},
                fakes.finished(200_000.0, 5.04, 12.0, 0.004, parameters=1000),
                {"pairs": fakes.PAIRS[:1]},
            ),
            ({"model.h": 2, "model.positions": "learned", "seed": 1}, failed, {}),
            ({"model.h": 1, "seed": 0}, None, {}),
            ({"model.h": 1, "seed": 1}, None, None),
        ],
    )
    return write_report(workdir)


def test_markdown(sweep):
    assert (
        sweep.markdown.read_text(encoding="utf-8")
        == """\
# quick: table × seed

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
        "(A) h=1": "worse (perplexity, BLEU); undecided (chrF, exact match): about 12 more seeds",
        "(B) d_k=16": "diverged in 1 of 3 runs",
        "(E) learned positions": "undecided",
        "big": "better (perplexity, BLEU); undecided (chrF, exact match): about 8 more seeds",
    }
    assert [row[1] for row in results.rows] == ["3", "3", "2 of 3", "3", "3"]
    assert table_3.table.problems == (
        ("(B) d_k=16, d_k=4 seed=2", "diverged", "loss is NaN at step 75"),
    )


def test_differences_stand_beside_the_papers(table_3):
    perplexity, bleu, chrf, exact = table_3.table.differences.values()
    assert [grid.title for grid in (perplexity, bleu, chrf, exact)] == [
        "Perplexity: differences to base",
        "BLEU: differences to base",
        "chrF: differences to base",
        "Exact match, %: differences to base",
    ]
    ours = ("difference", "95 % interval", "p", "d", "runs", "verdict")
    paper = ("paper", "paper’s difference", "paper’s order")
    assert [grid.headings[2:] for grid in (perplexity, bleu, chrf, exact)] == [
        ours + paper,
        ours + paper,
        ours,
        ours,
    ]
    rows = {row[0]: row[2:] for row in perplexity.rows}
    assert rows["base"] == ("–",) * 6 + ("4.92", "–", "–")
    assert re.fullmatch(r"\+\d\.\d{3}", rows["(A) h=1"][0]) and rows["(A) h=1"][4:] == (
        "3",
        "worse",
        "5.29",
        "+0.37",
        "supported",
    )
    assert re.fullmatch(r"\[-\d\.\d{3}, -\d\.\d{3}\]", rows["big"][1]) and rows["big"][
        -2:
    ] == ("-0.59", "supported")
    assert rows["(B) d_k=16"][4:6] == ("2", "diverged in 1 of 3 runs")
    learned = rows["(E) learned positions"]
    assert re.search(r"undecided.*; differences above \d", learned[5])
    assert rows["(E) learned positions"][-3:] == (
        "4.92",
        "+0.00",
        "–",
    )  # the paper has none there
    assert {row[0]: row[-1] for row in bleu.rows}["(A) h=1"] == "supported"


def test_differences_are_near_those_of_means(table_3):
    book = read_results(table_3.html.parent)
    base = book.trials[:3]
    row = book.trials[3:6]
    assert {trial.label for trial in row} == {"(A) h=1"}
    for metric, scale in (("bleu", 1), ("exact_match", 100)):
        pairs = zip(row, base, strict=True)
        gaps = [ours.result[metric] - theirs.result[metric] for ours, theirs in pairs]
        shown = float(table_3.table.differences[metric].rows[1][2])
        # Means are of logits, which are shown as what they stand for.
        assert shown == pytest.approx(scale * np.mean(gaps), rel=0.05)


def test_markdown_has_every_difference(table_3):
    text = table_3.markdown.read_text(encoding="utf-8")
    for grid in table_3.table.differences.values():
        assert f"## {grid.title}\n" in text
    assert (
        text.count("| supported |") == 5
        and "“Attention Is All You Need”" in text
        and "corrected for all rows and metrics" in text
    )


def test_rows_of_one_seed_beside_the_paper(tmp_path):
    book = read_results(fakes.table_3(tmp_path, seeds=1))
    table = result_table(book, compare_rows(book))
    assert [grid.headings[2:] for grid in table.differences.values()] == [
        ("paper", "paper’s difference", "paper’s order")
    ] * 2
    assert [row[-2] for row in table.differences["bleu"].rows] == [
        "–",
        "-0.90",
        "-0.70",
        "-0.10",
        "+0.60",
    ]
    assert [row[-1] for row in table.results.rows] == [
        "",
        "",
        "diverged in 1 of 1 runs",
        "",
        "",
    ]
    assert "corrected for" not in to_markdown(book, table)


def test_a_base_alone_does_not_stand_beside_the_paper(tmp_path):
    book = read_results(
        fakes.sweep(
            tmp_path,
            [
                ({"label": "base"}, fakes.finished(), {}),
                ({"label": "mine", "model.h": 2}, fakes.finished(), {}),
            ],
        )
    )
    rows = compare_rows(book)
    assert rows[0].published and result_table(book, rows).differences == {}


def test_csv_has_a_line_a_trial_and_a_column_a_varied_key(sweep):
    lines = list(csv.DictReader(io.StringIO(sweep.csv.read_text(encoding="utf-8"))))
    assert list(lines[0]) == [
        "name",
        "label",
        "model.h",
        "model.positions",
        "seed",
        "status",
        "parameters",
        "perplexity",
        "bleu",
        "bleu_detokenized",
        "chrf",
        "exact_match",
        "alignment_error",
        "test_perplexity",
        "steps",
        "seconds",
    ]
    assert [line["name"] for line in lines] == [
        "seed=0",
        "seed=1",
        "h=2 positions=learned seed=0",
        "h=2 positions=learned seed=1",
        "h=1 seed=0",
        "h=1 seed=1",
    ]
    assert [line["model.h"] for line in lines] == ["4", "4", "2", "2", "1", "1"]
    assert [line["status"] for line in lines] == ["finished"] * 3 + ["failed"] + [
        "unfinished"
    ] * 2
    assert list(lines[0].values())[4:] == [
        "0",
        "finished",
        "241664",
        "1.1",
        "96.0",
        "",
        "97.5",
        "0.92",
        "",
        "",
        "750",
        "20.5",
    ]
    assert set(list(lines[3].values())[6:]) == {""}


def test_csv_has_labels_and_the_scores_of_all_weights(tmp_path):
    beside = {
        name: {
            "steps": [1],
            "validation": {"perplexity": 1.5 + i, "bleu": 9.0},
            "test": {"bleu": 30.0 + i, "chrf": 40.0, "exact_match": 0.5},
        }
        for i, name in enumerate(("raw", "ema"))
    }
    written = write_report(
        fakes.sweep(
            tmp_path,
            [
                (
                    {"label": "base"},
                    fakes.finished(bleu_detokenized=29.5, beside=beside),
                    {},
                ),
                ({"label": "a, b", "model.h": 2}, fakes.DIVERGED, {}),
            ],
        )
    )
    base, other = csv.DictReader(io.StringIO(written.csv.read_text(encoding="utf-8")))
    assert list(base)[-8:] == [
        "raw.perplexity",
        "raw.bleu",
        "raw.chrf",
        "raw.exact_match",
        "ema.perplexity",
        "ema.bleu",
        "ema.chrf",
        "ema.exact_match",
    ]
    assert [
        base[name]
        for name in (
            "label",
            "bleu_detokenized",
            "raw.perplexity",
            "ema.perplexity",
            "ema.bleu",
        )
    ] == ["base", "29.5", "1.5", "2.5", "31.0"]
    assert (other["label"], other["status"], other["ema.bleu"]) == (
        "a, b",
        "diverged",
        "",
    )


class Page(html.parser.HTMLParser):
    """Tags with their attributes, and the text of each <script> and of everything else."""

    def __init__(self, path):
        super().__init__()
        self.tags = []
        self.scripts = []
        self.text = ""
        self.inside = None
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1] += data
        else:
            self.text += data


def test_html_loads_nothing_from_elsewhere(sweep):
    page = Page(sweep.html)
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "object", "base", "img")
        for name in ("src", "href", "xlink:href", "action"):
            assert (attributes.get(name) or "").startswith(
                ("#", "data:image/png;base64,")
            ) or name not in attributes
    assert not re.search(r"@import|url\((?!#)", sweep.html.read_text(encoding="utf-8"))


def test_html_shows_the_table_the_provenance_and_the_pictures(sweep):
    page = Page(sweep.html)
    for text in (
        "h=2, positions=learned",
        "1.150 ± 0.071",
        "1 of 2",
        "loss is NaN at step 125",
        "not started",
        "0a1b2c3d",
        "c0ffee12",
        "5eed5eed",
        "2026-11-22",
        "validation perplexity",
        "training loss",
        "sinusoidal",
        "learned (h=2 positions=learned seed=0)",
    ):
        assert text in page.text
    figures_drawn = [
        attributes["class"] for tag, attributes in page.tags if tag == "figure"
    ]
    assert (
        figures_drawn == ["plot wide"] * 3 + ["plot"] * 2
    )  # size, training, entropy; two position encodings
    ids = [
        attributes["id"]
        for tag, attributes in page.tags
        if tag in ("clippath", "path", "image") and "id" in attributes
    ]
    assert len(ids) > 2
    assert len(ids) == len(
        set(ids)
    )  # else a figure would borrow its shapes from another


def test_html_shows_differences_and_figures(table_3):
    page = Page(table_3.html)
    for text in (
        "worse (perplexity, BLEU)",
        "paper’s order",
        "supported",
        "BLEU, difference to base",
        "Perplexity and size",
        "By length",
        "Entropy of attention",
        "(B) d_k=16, d_k=4 seed=2",
    ):
        assert text in page.text
    drawn = [attributes["class"] for tag, attributes in page.tags if tag == "figure"]
    assert drawn == ["plot wide"] * 8 + ["plot"] * 2
    assert "Shown are the first" not in page.text


def test_a_long_table_is_cut_short_where_a_figure_could_not_be_read(
    table_3, monkeypatch
):
    book = read_results(table_3.html.parent)
    drawn = {}
    for name, most in (("MAX_POINTS", 3), ("MAX_MAPS", 2), ("MAX_HEAT_MAPS", 1)):
        monkeypatch.setattr(report_page, name, most)
    monkeypatch.setattr(style, "LINES", 4)
    for module, name in (
        (differences, "forest"),
        (curves, "training_curves"),
        (sizes, "size_and_perplexity"),
        (lengths, "by_length"),
        (heat_maps, "head_entropies"),
    ):
        monkeypatch.setattr(
            module,
            name,
            lambda rows, *_, name=name: (
                drawn.update({name: len(rows)}) or "<svg></svg>"
            ),
        )
    page = render_page(book, compare_rows(book), table_3.table)
    assert drawn == {
        "forest": 3,
        "training_curves": 4,
        "size_and_perplexity": 3,
        "by_length": 4,
        "head_entropies": 1,
    }
    assert (
        page.count("Shown are the first 3 of 4 rows") == 4
    )  # a forest for each metric, without base
    assert [page.count(f"Shown are the first {n} of 5 rows") for n in (1, 2, 3, 4)] == [
        1,
        1,
        1,
        2,
    ]
    assert page.count('class="swatch"') == 4
    assert page.count('"translation": "') == 2  # one sentence of one run of two rows


def test_maps_take_a_limited_space(table_3, monkeypatch):
    rows = [
        Maps(trial.label, trial, read_examples(trial))
        for trial in read_results(table_3.html.parent).trials[:9:3]
    ]
    one = sum(
        len(drawn["weights"])
        for drawn in attention_maps(rows)[0]["examples"][0]["maps"].values()
    )
    for size, names in ((0, 1), (one, 1), (2 * one + 100, 2), (10 * one, 3)):
        monkeypatch.setattr(report_page, "MAPS_SIZE", size)
        assert len(attention_maps(rows)) == names


def test_html_holds_the_attention_of_every_layer_and_head(sweep):
    trials = json.loads(Page(sweep.html).scripts[0])["trials"]
    assert [trial["name"] for trial in trials] == [
        "base, seed 0",
        "h=2, positions=learned, seed 0",
    ]
    assert [len(trial["examples"]) for trial in trials] == [3, 1]
    first = read_results(sweep.html.parent).trials[0]
    for example, shown in zip(read_examples(first), trials[0]["examples"], strict=True):
        assert (shown["source"], shown["translation"]) == (
            example.source,
            example.translation,
        )
        for kind in ("encoder", "decoder", "cross"):
            drawn = shown["maps"][kind]
            weights = example.attention[kind]
            assert [tuple(drawn["queries"]), tuple(drawn["keys"])] == list(
                example.axes(kind)
            )
            assert (drawn["layers"], drawn["heads"]) == weights.shape[:2] == (2, 4)
            levels = np.frombuffer(
                zlib.decompress(base64.b64decode(drawn["weights"])), np.uint8
            )
            np.testing.assert_allclose(
                levels.reshape(weights.shape) / 255, weights, atol=0.51 / 255
            )


def test_markup_in_what_trials_say_stays_text(tmp_path):
    failed = {"status": "failed", "error": EVIL, "traceback": EVIL}
    base = fakes.settings.resolve(
        fakes.QUICK, {"data.corpus": "files", "data.directory": "x"}
    ).to_dict()
    written = write_report(
        fakes.sweep(
            tmp_path,
            [
                (
                    {"data.directory": EVIL},
                    fakes.finished(),
                    {"pairs": ((EVIL, EVIL),), "started": EVIL},
                ),
                ({"data.directory": EVIL, "seed": 1}, failed, {"name": EVIL}),
            ],
            base=base,
            config=EVIL,
        )
    )
    page = Page(written.html)
    assert [
        attributes.get("type") for tag, attributes in page.tags if tag == "script"
    ] == ["application/json", None]
    assert not [
        tag for tag, attributes in page.tags if tag == "img" or "onerror" in attributes
    ]
    assert json.loads(page.scripts[0])["trials"][0]["examples"][0]["source"] == EVIL
    assert EVIL in page.text
    markdown = written.markdown.read_text(encoding="utf-8")
    assert "<" not in markdown
    assert all(
        len(re.findall(r"(?<!\\)\|", line)) in (0, 4, 8)
        for line in markdown.splitlines()
    )
    latex = re.sub(
        r"\\(text\w+\{\}|times|[&%$#_{}])",
        "",
        written.latex.read_text(encoding="utf-8"),
    )
    caption = re.search(r"\\caption\{(.*)\}\n", latex)[1]
    assert not re.search(r"[<>|^~#&\\]", caption) and caption.count(
        "{"
    ) == caption.count("}")


def test_the_same_files_give_the_same_bytes(sweep):
    paths = (sweep.markdown, sweep.csv, sweep.latex, sweep.html)
    before = [path.read_bytes() for path in paths]
    again = write_report(sweep.html.parent)
    assert again == sweep
    assert [path.read_bytes() for path in paths] == before
    assert not list(sweep.html.parent.glob(".report*"))


def test_a_failed_write_leaves_the_old_report(sweep, monkeypatch):
    before = sweep.markdown.read_bytes()
    monkeypatch.setattr(
        files.os, "replace", lambda *paths: (_ for _ in ()).throw(OSError("disk full"))
    )
    with pytest.raises(OSError, match="disk full"):
        write_report(sweep.html.parent)
    assert sweep.markdown.read_bytes() == before
    assert not list(sweep.html.parent.glob(".report*"))


def test_a_single_run(tmp_path):
    config = fakes.settings.resolve(fakes.QUICK).to_dict()
    fakes.trial(
        tmp_path,
        config,
        fakes.finished(bleu=float("nan")),
        name="quick",
        pairs=fakes.PAIRS[:1],
    )
    written = write_report(tmp_path)
    assert written.table.results.rows == (
        ("quick", "1", "241,664", "1.250", "nan", "95.0", "90.0"),
    )
    assert written.table.differences == {} and written.table.difference_notes == ()
    assert written.table.notes == (
        "perplexity: validation, per token; BLEU, chrF and exact match: 500 test sentences",
    )
    assert written.csv.read_text().splitlines()[
        0
    ] == "name,label,seed,status," + ",".join(csv_scores())


@pytest.mark.parametrize(
    "trials", [[], [({}, None, None)], [({}, None, {"logged": ()})]]
)
def test_a_sweep_that_has_nothing_yet(tmp_path, trials):
    written = write_report(fakes.sweep(tmp_path, trials))
    assert [row[:2] for row in written.table.results.rows] == [
        ("base", "0 of 1")
    ] * len(trials)
    assert "<figure" not in written.html.read_text()


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
    assert plain[-3] == "failed: h=2 positions=learned seed=1: loss is NaN at step 125"
    assert len(plain) == 1 + 3 + 2 + 3


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_gets_a_drawn_table_that_fits(table_3, width):
    drawn = shown(table_3.table, width, terminal=True)
    assert "───" in drawn and max(map(len, drawn.splitlines())) <= width
    for i, heading in enumerate(table_3.table.results.headings[1:-1], 1):
        cell = table_3.table.results.rows[1][i]
        assert (cell in drawn) == (heading not in ("parameters", "chrF"))
    for word in (
        "learned",
        "worse",
        "better",
        "undecided",
        "diverged: (B) d_k=16, d_k=4 seed=2: loss is NaN",
    ):
        assert word in drawn


def test_labels_are_no_markup_in_a_terminal():
    results = Grid("", ("", *"abcdef"), (("x=[red]", *"123456"),))
    table = Table(results, ("[bold]",), {}, (), (("[a]", "failed", "[b]"),))
    assert all(
        text in shown(table, 100, terminal=True)
        for text in ("x=[red]", "[bold]", "failed: [a]: [b]")
    )


def test_fifteen_trials_take_little_space(table_3):
    assert table_3.html.stat().st_size < 1e6


def test_launch_prints_the_table_and_the_paths(sweep):
    done = subprocess.run(
        [sys.executable, "-m", "launch.report", f"--workdir={sweep.html.parent}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1].startswith("base  ")
    assert done.stdout.splitlines()[-4:] == [
        str(path) for path in (sweep.markdown, sweep.csv, sweep.latex, sweep.html)
    ]
