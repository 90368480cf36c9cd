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

from experiments import figures, files, ledger, report
from tests.experiments import fakes

EVIL = "--></script><script>alert(1)</script><img src=x onerror=alert(2)> |*`[red]&amp;"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """A written report over two points, one of them with one seed, a failed and an unfinished trial."""
    failed = {"status": "failed", "error": "loss is NaN\nat step 125", "traceback": "..."}
    workdir = fakes.sweep(tmp_path_factory.mktemp("sweep"), [
        ({"seed": 0}, fakes.finished(1.10, 96.0, 97.5, 0.92, seconds=20.5), {"pairs": fakes.PAIRS}),
        ({"seed": 1}, fakes.finished(1.20, 98.0, 98.5, 0.95), {"started": "2026-11-22T01:00:00"}),
        ({"model.h": 2, "model.positions": "learned", "seed": 0},
         fakes.finished(200_000.0, 5.04, 12.0, 0.004, parameters=1000), {"pairs": fakes.PAIRS[:1]}),
        ({"model.h": 2, "model.positions": "learned", "seed": 1}, failed, {}),
        ({"model.h": 1, "seed": 0}, None, {}), ({"model.h": 1, "seed": 1}, None, None)])
    return report.write(workdir)


def test_markdown(sweep):
    assert sweep.markdown.read_text(encoding="utf-8") == """\
# quick: table × seed

|  | seeds | parameters | perplexity | BLEU | chrF | exact match, % |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
| base | 2 | 241,664 | 1.150 ± 0.071 | 97.0 ± 1.4 | 98.0 ± 0.7 | 93.5 ± 2.1 |
| h=2, positions=learned | 1 of 2 | 1,000 | 2e+05 | 5.0 | 12.0 | 0.4 |
| h=1 | 0 of 2 | – | – | – | – | – |

base: h=4, positions=sinusoidal (experiments/configs/quick.py)

perplexity: validation, per word piece; BLEU, chrF and exact match: 500 test sentences; ±: sample standard \
deviation over seeds

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

Curves, position encodings and attention maps: report.html; a line a trial: report.csv.
"""


def test_csv_has_a_line_a_trial_and_a_column_a_varied_key(sweep):
    lines = list(csv.DictReader(io.StringIO(sweep.csv.read_text(encoding="utf-8"))))
    assert list(lines[0]) == ["name", "model.h", "model.positions", "seed", "status", "parameters", "perplexity",
                              "bleu", "chrf", "exact_match", "steps", "seconds"]
    assert [line["name"] for line in lines] == [
        "seed=0", "seed=1", "h=2 positions=learned seed=0", "h=2 positions=learned seed=1", "h=1 seed=0", "h=1 seed=1"]
    assert [line["model.h"] for line in lines] == ["4", "4", "2", "2", "1", "1"]
    assert [line["status"] for line in lines] == ["finished"] * 3 + ["failed"] + ["unfinished"] * 2
    assert list(lines[0].values())[3:] == ["0", "finished", "241664", "1.1", "96.0", "97.5", "0.92", "750", "20.5"]
    assert set(list(lines[3].values())[5:]) == {""}


class Page(html.parser.HTMLParser):
    """Tags with their attributes, and the text of each <script> and of everything else."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.scripts, self.text, self.inside = [], [], "", None
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
            assert (attributes.get(name) or "").startswith(("#", "data:image/png;base64,")) or name not in attributes
    assert not re.search(r"@import|url\((?!#)", sweep.html.read_text(encoding="utf-8"))


def test_html_shows_the_table_the_provenance_and_the_pictures(sweep):
    page = Page(sweep.html)
    for text in ("h=2, positions=learned", "1.150 ± 0.071", "1 of 2", "loss is NaN at step 125", "not started",
                 "0a1b2c3d", "c0ffee12", "5eed5eed", "2026-11-22", "validation perplexity", "training loss",
                 "sinusoidal", "learned (h=2 positions=learned seed=0)"):
        assert text in page.text
    figures_drawn = [attributes["class"] for tag, attributes in page.tags if tag == "figure"]
    assert figures_drawn == ["plot curves", "plot", "plot"]
    ids = [attributes["id"] for tag, attributes in page.tags
           if tag in ("clippath", "path", "image") and "id" in attributes]
    assert len(ids) > 2
    assert len(ids) == len(set(ids))  # else a figure would borrow its shapes from another


def test_html_holds_the_attention_of_every_layer_and_head(sweep):
    trials = json.loads(Page(sweep.html).scripts[0])["trials"]
    assert [trial["name"] for trial in trials] == ["base, seed 0", "h=2, positions=learned, seed 0"]
    assert [len(trial["examples"]) for trial in trials] == [3, 1]
    first = ledger.read(sweep.html.parent).trials[0]
    for example, shown in zip(ledger.examples(first), trials[0]["examples"], strict=True):
        assert (shown["source"], shown["translation"]) == (example.source, example.translation)
        for kind in ("encoder", "decoder", "cross"):
            drawn, weights = shown["maps"][kind], example.attention[kind]
            assert [tuple(drawn["queries"]), tuple(drawn["keys"])] == list(example.axes(kind))
            assert (drawn["layers"], drawn["heads"]) == weights.shape[:2] == (2, 4)
            levels = np.frombuffer(zlib.decompress(base64.b64decode(drawn["weights"])), np.uint8)
            np.testing.assert_allclose(levels.reshape(weights.shape) / 255, weights, atol=0.51 / 255)


def test_markup_in_what_trials_say_stays_text(tmp_path):
    failed = {"status": "failed", "error": EVIL, "traceback": EVIL}
    base = fakes.settings.resolve(fakes.QUICK, {"data.corpus": "files", "data.directory": "x"}).to_dict()
    written = report.write(fakes.sweep(tmp_path, [
        ({"data.directory": EVIL}, fakes.finished(), {"pairs": ((EVIL, EVIL),), "started": EVIL}),
        ({"data.directory": EVIL, "seed": 1}, failed, {"name": EVIL})], base=base, config=EVIL))
    page = Page(written.html)
    assert [attributes.get("type") for tag, attributes in page.tags if tag == "script"] == ["application/json", None]
    assert not [tag for tag, attributes in page.tags if tag == "img" or "onerror" in attributes]
    assert json.loads(page.scripts[0])["trials"][0]["examples"][0]["source"] == EVIL
    assert EVIL in page.text
    markdown = written.markdown.read_text(encoding="utf-8")
    assert "<" not in markdown
    assert all(len(re.findall(r"(?<!\\)\|", line)) in (0, 4, 8) for line in markdown.splitlines())


def test_the_same_files_give_the_same_bytes(sweep):
    paths = (sweep.markdown, sweep.csv, sweep.html)
    before = [path.read_bytes() for path in paths]
    again = report.write(sweep.html.parent)
    assert again == sweep
    assert [path.read_bytes() for path in paths] == before
    assert not list(sweep.html.parent.glob(".report*"))


def test_a_failed_write_leaves_the_old_report(sweep, monkeypatch):
    before = sweep.markdown.read_bytes()
    monkeypatch.setattr(files.os, "replace", lambda *paths: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        report.write(sweep.html.parent)
    assert sweep.markdown.read_bytes() == before
    assert not list(sweep.html.parent.glob(".report*"))


def test_a_single_run(tmp_path):
    config = fakes.settings.resolve(fakes.QUICK).to_dict()
    fakes.trial(tmp_path, config, fakes.finished(bleu=float("nan")), name="quick", pairs=fakes.PAIRS[:1])
    written = report.write(tmp_path)
    assert written.table.rows == (("quick", "1", "241,664", "1.250", "nan", "95.0", "90.0"),)
    assert written.table.notes == (
        "perplexity: validation, per word piece; BLEU, chrF and exact match: 500 test sentences",)
    assert written.csv.read_text().splitlines()[0] == "name,seed,status," + ",".join(report.METRICS)


@pytest.mark.parametrize("trials", [[], [({}, None, None)], [({}, None, {"logged": ()})]])
def test_a_sweep_that_has_nothing_yet(tmp_path, trials):
    written = report.write(fakes.sweep(tmp_path, trials))
    assert [row[:2] for row in written.table.rows] == [("base", "0 of 1")] * len(trials)
    assert "<figure" not in written.html.read_text()


def test_short_names():
    assert report.short_names(["model.h", "seed"]) == {"model.h": "h", "seed": "seed"}
    known = ["evaluation.rows", "training.rows", "training.steps"]
    assert report.short_names(["training.rows", "training.steps"], known) == {
        "training.rows": "training.rows", "training.steps": "steps"}


def shown(table, width, terminal):
    console = rich.console.Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)
    report.show(table, console)
    return console.file.getvalue()


def test_a_pipe_gets_plain_columns_that_never_wrap(sweep):
    plain = shown(sweep.table, 40, terminal=False).splitlines()
    assert plain[1].split("  ", 1) == [
        "base", "                       2     241,664  1.150 ± 0.071  97.0 ± 1.4  98.0 ± 0.7      93.5 ± 2.1"]
    assert plain[-3] == "failed: h=2 positions=learned seed=1: loss is NaN at step 125"
    assert len(plain) == 1 + 3 + 2 + 3


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_gets_a_drawn_table_that_fits(sweep, width):
    drawn = shown(sweep.table, width, terminal=True)
    assert "───" in drawn
    assert ("98.0 ± 0.7" in drawn) == (width == 120)  # chrF
    for cell in ("positions=learned", "241,664", "1.150 ± 0.071", "97.0 ± 1.4", "93.5 ± 2.1"):
        assert cell in drawn


def test_labels_are_no_markup_in_a_terminal():
    table = report.Table((("x=[red]", *"123456"),), ("[bold]",), (("[a]", "failed", "[b]"),))
    assert all(text in shown(table, 100, terminal=True) for text in ("x=[red]", "[bold]", "failed: [a]: [b]"))


def test_line_styles_are_all_different_and_begin_with_ink():
    styles = [figures.line_style(row) for row in range(28)]
    assert styles[0] == ("#000000", ())
    assert len(set(styles)) == 28


def test_sixteen_trials_take_little_space(tmp_path):
    written = report.write(fakes.plausible(tmp_path))
    assert written.html.stat().st_size < 5e6


def test_launch_prints_the_table_and_the_paths(sweep):
    done = subprocess.run([sys.executable, "-m", "launch.report", f"--workdir={sweep.html.parent}"], cwd=ROOT,
                          capture_output=True, text=True, encoding="utf-8")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1].startswith("base  ")
    assert done.stdout.splitlines()[-3:] == [str(path) for path in (sweep.markdown, sweep.csv, sweep.html)]
