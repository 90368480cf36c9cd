"""report.html, and the report's files as a whole."""

import base64
import dataclasses
import html.parser
import json
import re
import zlib

import numpy as np
import pytest

from experiments.report import packed_attention, page_figures
from experiments.report.figures import heat_maps, lines, points, style
from experiments.report.formats import csv_scores
from experiments.report.html import verdict_parts
from experiments.report.packed_attention import Maps, attention_maps
from experiments.report.page import render_page
from experiments.report.page_figures import draw_figures
from experiments.report.trial_files import read_results
from experiments.report.trial_outputs import read_examples
from experiments.report.write import compare_rows, write_report
from experiments.system import files
from tests.experiments import fakes

EVIL = "--></script><script>alert(1)</script><img src=x onerror=alert(2)> |*`[red]&amp;"


class Page(html.parser.HTMLParser):
    """Tags with their attributes, and the text of each <script> and of everything else."""

    def __init__(self, path):
        super().__init__()
        self.tags = []
        self.scripts = []
        self.text = ""
        self.inside = None
        self.feed(path.read_text(encoding="utf-8"))

    @property
    def figures(self):
        """The class of each figure."""
        return [attributes["class"] for tag, attributes in self.tags if tag == "figure"]

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
    within = ("#", "./trials/", "data:image/png;base64,")
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "object", "base", "img")
        for name in ("src", "href", "xlink:href", "action"):
            assert attributes.get(name, "#").startswith(within)
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
        "2026-11-22",
        "validation perplexity",
        "training loss",
        "sinusoidal",
        "learned (h=2 positions=learned seed=0)",
    ):
        assert text in page.text
    # Size, training, entropy; two position encodings.
    assert page.figures == ["plot wide"] * 3 + ["plot"] * 2
    drawn = ("clippath", "path", "image")
    ids = [attributes.get("id") for tag, attributes in page.tags if tag in drawn]
    ids = list(filter(None, ids))
    # Else a figure would borrow its shapes from another.
    assert len(ids) == len(set(ids)) > 2


def test_html_shows_differences_and_figures(table_3):
    page = Page(table_3.html)
    for text in (
        "worse (perplexity, BLEU)",
        "paper’s order",
        "supported",
        "BLEU: differences to base",
        "Differences in numbers",
        "Quality and cost",
        "By length",
        "Entropy of attention",
        "(B) d_k=16, seed 2",
    ):
        assert text in page.text
    assert page.figures == ["plot wide"] * 5 + ["plot"] * 2
    assert "Shown are" not in page.text


def test_the_page_opens_with_its_finding_and_ends_with_what_ran(table_3):
    page = table_3.html.read_text(encoding="utf-8")
    finding = table_3.table.finding
    assert finding.startswith("big is better: perplexity is 1.2")
    places = [page.index(text) for text in (finding, 'id="results"', "c0ffee12")]
    assert places == sorted(places)
    assert page.index('id="runs"') < page.index("c0ffee12")


def test_every_link_of_the_page_leads_somewhere(table_3):
    page = Page(table_3.html)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    within = {link for link in links if link.startswith("#")}
    assert {"#results", "#answer", "#differences", "#row-4", "#sentences"} <= within
    assert {link[1:] for link in within} <= set(ids)
    files = [link for link in links if not link.startswith("#")]
    assert "./trials/00/metrics.jsonl" in files
    assert all((table_3.html.parent / link).exists() for link in files)


def test_tables_have_headings_their_best_and_verdicts_in_words(table_3):
    text = table_3.html.read_text(encoding="utf-8")
    assert "<th></th>" not in re.sub(r"<th [^>]*>", "<th>", text)
    results = text[text.index('id="results"') : text.index('id="differences"')]
    best = re.findall(r"<strong>([^<]+)</strong>", results)
    big = table_3.table.results.rows[-1]
    assert best == list(big[3:7])
    assert '<span class="worse">worse (perplexity, BLEU)</span>' in results
    assert verdict_parts("worse (BLEU); undecided: about 2 more seeds") == [
        ("worse", "worse (BLEU)"),
        ("undecided", "undecided: about 2 more seeds"),
    ]


def test_a_row_leads_to_its_runs_and_sentences(table_3):
    page = Page(table_3.html)
    for text in (
        "model.h: 4 → 1",
        "trials/03",
        "translations.txt",
        "Sentences in which rows differ most",
    ):
        assert text in page.text
    assert re.search(r"source \d+ of 200", page.text)


def test_a_long_table_is_cut_to_what_matters_where_a_figure_could_not_be_read(
    table_3, monkeypatch
):
    book = read_results(table_3.html.parent, fakes.REPORTED)
    drawn = {}
    named = lambda row: row if isinstance(row, str) else row[0]
    monkeypatch.setattr(page_figures, "MAX_LINES", 2)
    monkeypatch.setattr(page_figures, "MAX_HEAT_MAPS", 1)
    monkeypatch.setattr(packed_attention, "MAX_MAPS", 2)
    monkeypatch.setattr(page_figures, "MAX_MAPS", 2)
    monkeypatch.setattr(style, "LINES", 3)
    for module, name in (
        (points, "forests"),
        (lines, "training_curves"),
        (lines, "by_length"),
        (heat_maps, "head_entropies"),
    ):
        draw = getattr(module, name)
        monkeypatch.setattr(
            module,
            name,
            lambda rows, *rest, draw=draw, name=name: (
                drawn.update({name: [named(row) for row in rows]}) or draw(rows, *rest)
            ),
        )
    rows = compare_rows(book)
    figures = draw_figures(book, rows)
    page = render_page(book, rows, table_3.table, figures)
    # h=1 is far worse, big far better, and the two between them undecided or diverged.
    assert drawn == {
        "forests": ["(A) h=1", "big"],
        "training_curves": ["base", "(A) h=1", "big"],
        "by_length": ["base", "(A) h=1", "big"],
        "head_entropies": ["base"],
    }
    assert page.count("Shown are 2 of 4 rows") == 1
    assert page.count("Shown are 3 of 5 rows") == 3
    assert page.count('class="swatch"') == 3
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
        monkeypatch.setattr(packed_attention, "MAPS_SIZE", size)
        assert len(attention_maps(rows)) == names


def test_html_holds_the_attention_of_every_layer_and_head(sweep):
    trials = json.loads(Page(sweep.html).scripts[0])["attention"]
    names = [trial["name"] for trial in trials]
    assert names == ["base, seed 0", "h=2, positions=learned, seed 0"]
    assert [len(trial["examples"]) for trial in trials] == [3, 1]
    first = read_results(sweep.html.parent).trials[0]
    for example, shown in zip(read_examples(first), trials[0]["examples"], strict=True):
        assert shown["source"] == example.source
        assert shown["translation"] == example.translation
        for kind, weights in example.attention.items():
            drawn = shown["maps"][kind]
            axes = (tuple(drawn["queries"]), tuple(drawn["keys"]))
            assert axes == example.axes(kind)
            assert (drawn["layers"], drawn["heads"]) == weights.shape[:2] == (2, 4)
            packed = zlib.decompress(base64.b64decode(drawn["weights"]))
            levels = np.frombuffer(packed, np.uint8).reshape(weights.shape)
            np.testing.assert_allclose(levels / 255, weights, atol=0.51 / 255)


def test_markup_in_the_texts_of_trials_stays_text(tmp_path):
    failed = {"status": "failed", "error": EVIL, "traceback": EVIL}
    data = {"data.corpus": "files", "data.directory": "x"}
    base = fakes.settings.resolve(fakes.QUICK, data).to_dict()
    options = {"pairs": ((EVIL, EVIL),), "started": EVIL}
    trials = [
        ({"data.directory": EVIL}, fakes.finished(), options),
        ({"data.directory": EVIL, "seed": 1}, failed, {"name": EVIL}),
    ]
    written = write_report(fakes.sweep(tmp_path, trials, base=base, config=EVIL))
    page = Page(written.html)
    scripts = [attributes for tag, attributes in page.tags if tag == "script"]
    assert [s.get("type") for s in scripts] == ["application/json", None]
    assert all(tag != "img" and "onerror" not in of_tag for tag, of_tag in page.tags)
    assert json.loads(page.scripts[0])["attention"][0]["examples"][0]["source"] == EVIL
    assert EVIL in page.text
    markdown = written.markdown.read_text(encoding="utf-8")
    assert "<" not in markdown
    for line in markdown.splitlines():
        assert len(re.findall(r"(?<!\\)\|", line)) in (0, 4, 8)
    latex = written.latex.read_text(encoding="utf-8")
    latex = re.sub(r"\\(text\w+\{\}|times|[&%$#_{}])", "", latex)
    caption = re.search(r"\\caption\{(.*)\}\n", latex)[1]
    assert not re.search(r"[<>|^~#&\\]", caption)
    assert caption.count("{") == caption.count("}")


def test_the_same_files_give_the_same_bytes_and_figures_where_they_are_asked_for(sweep):
    paths = (sweep.markdown, sweep.csv, sweep.latex, sweep.html)
    before = [path.read_bytes() for path in paths]
    again = write_report(sweep.html.parent, fakes.REPORTED, figures=True)
    assert dataclasses.replace(again, figures=None) == sweep
    assert [path.read_bytes() for path in paths] == before
    assert not list(sweep.html.parent.glob(".report*"))
    names = {path.name for path in again.figures.iterdir()}
    assert {"training-curves.svg", "training-curves.pdf", "positions-2.pdf"} <= names
    assert (again.figures / "training-curves.svg").read_text().startswith("<svg")
    assert (again.figures / "training-curves.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.usefixtures("undrawn")
def test_a_failed_write_leaves_the_old_report(sweep, monkeypatch):
    before = sweep.markdown.read_bytes()
    monkeypatch.setattr(
        files.os, "replace", lambda *paths: (_ for _ in ()).throw(OSError("disk full"))
    )
    with pytest.raises(OSError, match="disk full"):
        write_report(sweep.html.parent, fakes.REPORTED)
    assert sweep.markdown.read_bytes() == before
    assert not list(sweep.html.parent.glob(".report*"))


def test_a_single_run(tmp_path):
    config = fakes.settings.resolve(fakes.QUICK).to_dict()
    result = fakes.finished(bleu=float("nan"))
    fakes.trial(tmp_path, config, result, name="quick", pairs=fakes.PAIRS[:1])
    written = write_report(tmp_path, fakes.REPORTED)
    cells = ("quick", "1", "241,664", "1.250", "nan", "95.0", "90.0")
    assert written.table.results.rows == (cells,)
    assert written.table.differences == {} and written.table.difference_notes == ()
    test = "BLEU, chrF and exact match: 500 test sentences"
    assert written.table.notes == (f"perplexity: validation, per token; {test}",)
    columns = ["name,label,seed,status", *csv_scores(fakes.REPORTED), "code"]
    assert written.csv.read_text().splitlines()[0] == ",".join(columns)


@pytest.mark.parametrize(
    "trials", [[], [({}, None, None)], [({}, None, {"logged": ()})]]
)
def test_a_sweep_that_has_nothing_yet(tmp_path, trials):
    written = write_report(fakes.sweep(tmp_path, trials), fakes.REPORTED)
    assert [row[:2] for row in written.table.results.rows] == [
        ("base", "0 of 1")
    ] * len(trials)
    assert "<figure" not in written.html.read_text()
