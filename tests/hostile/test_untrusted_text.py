"""Strangers' text in reports: nothing that is shown runs or is computed."""

import base64
import csv
import hashlib
import html.parser
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest

from experiments.report import formats
from experiments.report import page as report_page
from experiments.report.results import read_results
from experiments.report.sql import QueryError, run_query
from experiments.report.write import write_report
from experiments.settings import resolve
from tests.experiments import fakes
from tests.hostile.garbage import EVIL, FORMULA
from tests.hostile.sweep_files import replaced, trials


class Page(html.parser.HTMLParser):
    """Every tag of a page with its attributes; the texts of its scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.raw = {"script": [], "style": [], "title": []}
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.inside = tag
        if tag in self.raw:
            self.raw[tag].append("")

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside in self.raw:
            self.raw[self.inside][-1] += data


@pytest.fixture(scope="module")
def evil(tmp_path_factory):
    """A written report in which every text that a stranger's files can have is hostile."""
    workdir = tmp_path_factory.mktemp("evil")
    base = resolve(
        fakes.QUICK, {"data.corpus": "files", "data.directory": "x"}
    ).to_dict()
    kept = fakes.sentences(np.random.default_rng(0), 8, 0.0)
    options = {
        "pairs": ((EVIL, EVIL),),
        "started": EVIL,
        "name": EVIL,
        "sentences": kept,
    }
    fakes.sweep(
        workdir,
        [
            ({"label": "base", "data.directory": "x"}, fakes.finished(), options),
            ({"label": "base", "seed": 1}, fakes.finished(), options),
            *(
                ({"label": EVIL, "model.h": 2, "seed": seed}, fakes.finished(), options)
                for seed in (0, 1)
            ),
            (
                {"label": FORMULA, "model.h": 1},
                {"status": "failed", "error": EVIL, "traceback": EVIL},
                options,
            ),
        ],
        base=base,
        config=f"{EVIL}.py",
        sweeps=(EVIL,),
    )
    changed = {
        "sweep.json": [
            ("trials.0.name", EVIL),
            ("trials.2.point", {"model.h": 2, EVIL: FORMULA}),
            ("trials.3.point", {"model.h": 2, EVIL: FORMULA, "seed": 1}),
            ("base.model.score", EVIL),
        ],
        "trials/00/config.json": [("model.positions", EVIL), (EVIL, EVIL)],
        "trials/00/result.json": [
            (
                "beside",
                {EVIL: {"test": {"bleu": EVIL}}, "raw": {"test": {"bleu": FORMULA}}},
            )
        ],
        "trials/00/record.json": [
            (key, EVIL) for key in ("git", "device", "corpus", "vocabulary", "python")
        ]
        + [("versions", {EVIL: EVIL}), ("corpus_counts", {EVIL: EVIL})],
    }
    for name, places in changed.items():
        value = json.loads((workdir / name).read_text())
        for place, new in places:
            value = (
                value | {EVIL: new} if place == EVIL else replaced(value, place, new)
            )
        (workdir / name).write_text(json.dumps(value))
    return write_report(workdir)


TAGS = set(
    "html head meta title style body main header nav a h1 h2 h3 p dl dt dd div section table "
    "thead tbody tr th td strong details summary pre figure figcaption noscript form label span "
    "select option fieldset legend input output ol ul li canvas script svg line g path text "
    "tspan use defs clippath rect circle image".split()
)


def test_no_markup_of_files_runs_in_the_page(evil):
    text = evil.html.read_text(encoding="utf-8")
    page = Page(text)
    folder = Path(report_page.__file__).parent
    ours = "\n".join((folder / name).read_text("utf-8") for name in report_page.SCRIPTS)
    assert [
        attributes.get("type") for tag, attributes in page.tags if tag == "script"
    ] == ["application/json", None]
    assert page.raw["script"][1] == ours and "alert" not in ours
    assert (
        json.loads(page.raw["script"][0])["attention"][0]["examples"][0]["source"]
        == EVIL
    )
    assert (
        not any("alert" in style for style in page.raw["style"])
        and len(page.raw["title"]) == 1
    )
    for tag, attributes in page.tags:
        assert tag in TAGS
        for name, value in attributes.items():
            assert not name.startswith("on") and "alert" not in f"{name}{value}", (
                tag,
                name,
            )
            if name in ("href", "xlink:href", "src", "action", "style"):
                assert (value or "").startswith(
                    ("#", "./trials/", "data:image/png;base64,")
                ) or name == "style", (tag, name, value)
    assert "alert" in text and "49" not in re.sub(r"\d{3,}|[\d.]+", "", text)


def test_the_browser_is_told_to_run_our_script_alone(evil):
    page = Page(evil.html.read_text(encoding="utf-8"))
    policy = next(
        attributes["content"]
        for tag, attributes in page.tags
        if attributes.get("http-equiv")
    )
    digest = base64.b64encode(
        hashlib.sha256(page.raw["script"][1].encode()).digest()
    ).decode()
    assert (
        policy.endswith(f"script-src 'sha256-{digest}'")
        and "default-src 'none'" in policy
    )


def test_no_markup_of_files_is_any_in_markdown_and_latex(evil):
    markdown = evil.markdown.read_text(encoding="utf-8")
    assert (
        not re.search(r"<|(?<!\\)\]\(|\x1b|&(?!amp;|lt;|gt;)", markdown)
        and "alert" in markdown
    )
    rows = [line for line in markdown.splitlines() if line.startswith("|")]
    widths = [len(re.findall(r"(?<!\\)\|", line)) for line in rows]
    assert set(widths) <= {4, 9, 10} and len(widths) > 12
    latex = evil.latex.read_text(encoding="utf-8")
    assert latex.count(r"\input") == 1 and latex.startswith(
        "% \\usepackage{booktabs,graphicx}"
    )  # in our own comment
    body = latex.split(r"\midrule")[1].split(r"\bottomrule")[0]
    plain = re.sub(r"\\(text\w+\{\}|[&%$#_{}])|\{\[\}|\{\]\}|\$(\\\w+|-)\$", "", body)
    assert not re.search(r"[#%^~]", plain.replace("^{*}", "")), plain
    assert plain.count("{") == plain.count("}")


def test_no_control_character_is_written(evil):
    for path in (evil.markdown, evil.csv, evil.latex, evil.html):
        assert not re.search(r"[^\n\x20-\U0010ffff]", path.read_text(encoding="utf-8"))


def test_no_cell_of_the_csv_is_a_formula(evil):
    text = evil.csv.read_text(encoding="utf-8")
    cells = [cell for line in csv.reader(io.StringIO(text)) for cell in line]
    assert f"'{FORMULA}" in cells and EVIL.startswith("-") and cells.count(FORMULA) == 0
    for cell in cells:
        assert not cell.startswith(("=", "+", "-", "@", "\t", "\r")), cell


def test_numbers_stay_numbers_in_the_csv(tmp_path):
    (trials(tmp_path) / "trials/00/result.json").write_text(
        json.dumps(fakes.finished(perplexity=-1.5, parameters=-7))
    )
    assert ",-7,-1.5," in formats.to_csv(read_results(tmp_path))


def test_sql_reads_the_tables_and_nothing_else(tmp_path):
    """Neither does a name in the files become a part of the query that makes the tables."""
    secret = tmp_path / "secret.csv"
    workdir = tmp_path / "sweep"
    secret.write_text("a,b\n1,2\n")
    hostile = {
        f"x\" VARCHAR); create table y as select * from read_text('{secret}'); --": 1,
        "X": 1,
        "x": 2,
        "": 3,
    }

    (trials(workdir) / "trials/00/result.json").write_text(
        json.dumps(fakes.finished() | hostile)
    )
    assert run_query(
        [workdir], "select table_name from information_schema.tables order by all"
    ).rows == [("metrics",), ("trials",)]
    assert run_query(
        [workdir], "select x, x_, _ from trials where label = 'base' and seed = 0"
    ).rows == [(1, 2, 3)]
    for sql in (
        "select * from read_text('/etc/passwd')",
        f"select * from read_csv('{secret}')",
        f"select * from '{secret}'",
        f"copy trials to '{tmp_path}/new.csv'",
        "set enable_external_access=true",
    ):
        with pytest.raises(
            QueryError, match=r"Permission Error|Invalid Input Error|disabled"
        ):
            run_query([workdir], sql)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret.csv", "sweep"]


@pytest.mark.parametrize("mark", "=+-@＝＋－＠")
def test_a_spreadsheet_computes_no_cell(tmp_path, mark):
    """Excel computes what begins with a full-width mark too, in some languages."""
    label = f"{mark}1+1"
    workdir = fakes.sweep(tmp_path, [({"label": label}, fakes.finished(), {})])
    text = formats.to_csv(read_results(workdir))
    _, row = csv.reader(io.StringIO(text))
    assert row[1] == f"'{label}"
