"""Reports of strangers' files: what no run writes is one line, and nothing that is
shown runs or is computed."""

import base64
import csv
import hashlib
import html.parser
import io
import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest

from experiments.report import formats
from experiments.report import page as report_page
from experiments.report.figures import curves, differences, heat_maps, lengths, sizes
from experiments.report.results import ResultsError, read_results
from experiments.report.sql import QueryError, run_query
from experiments.report.write import write_report
from experiments.settings import resolve
from tests.experiments import fakes
from tests.hostile.garbage import EVIL, FORMULA, GARBAGE, pickled


@pytest.fixture
def bomb(tmp_path):
    """Where a file will be if anything unpickles it."""
    path = tmp_path / "executed"
    yield path
    assert not path.exists()


def trials(workdir, kept=None) -> Path:
    """A sweep of three trials."""
    return fakes.sweep(
        workdir,
        [
            (
                {"label": "base"},
                fakes.finished(),
                {"pairs": fakes.PAIRS[:1], "sentences": kept},
            ),
            ({"label": "base", "seed": 1}, fakes.finished(), {"sentences": kept}),
            ({"label": "a", "model.h": 2}, fakes.finished(), {"sentences": kept}),
        ],
    )


@pytest.fixture
def undrawn(monkeypatch):
    """Figures take a second each; what they draw is checked before."""
    for module, name in (
        (differences, "forest"),
        (curves, "training_curves"),
        (sizes, "size_and_perplexity"),
        (lengths, "by_length"),
        (heat_maps, "head_entropies"),
    ):
        monkeypatch.setattr(module, name, lambda *_: None)
    monkeypatch.setattr(heat_maps, "position_table", lambda *_: "")


FILES = (
    "config.json",
    "record.json",
    "result.json",
    "metrics.jsonl",
    "examples.json",
    "examples.npz",
    "sentences.npz",
)


@pytest.mark.parametrize("name", FILES)
def test_a_report_of_garbage(name, tmp_path, bomb, undrawn):
    """A file that is cut short, or of nothing at all, counts as not there."""
    workdir = trials(tmp_path / "sweep")
    garbage = [*GARBAGE, pickled(tmp_path / "x.npz", bomb)]
    for content in garbage:
        if (name, content) != ("examples.json", b"[1, 2]"):
            (workdir / "trials/00" / name).write_bytes(content)
            report = write_report(workdir)
            assert report.table.results.rows[0][1] == (
                "1 of 2" if name == "result.json" else "2"
            )
    run_query([workdir], "select * from trials, metrics")


VALUES = (
    None,
    True,
    -1,
    0.5,
    2**63,
    10**400,
    float("nan"),
    float("-inf"),
    "",
    "x",
    EVIL,
    FORMULA,
    "\ud800",
    "a\0b",
    [],
    [1],
    {},
    {"a": {"b": 1}},
    {"": {"": None}},
)
PLACES = {
    "sweep.json": (
        "config",
        "base",
        "base.model",
        "base.model.h",
        "base.seed",
        "sweeps",
        "sweeps.0",
        "trials.0.name",
        "trials.0.point",
        "trials.0.point.seed",
        "trials.0.point.model.h",
        "trials.0.label",
        "trials.0",
        "x",
    ),
    "config.json": (
        "model",
        "model.positions",
        "training.steps",
        "seed",
        "data.directory",
        "x",
        "MODEL",
        "model.H",
    ),
    "record.json": (
        "name",
        "point",
        "started",
        "versions",
        "versions.jax",
        "git",
        "device",
        "devices",
        "corpus",
        "corpus_counts",
        "corpus_counts.train",
        "vocabulary",
        "python",
        "x",
    ),
    "result.json": (
        "status",
        "error",
        "parameters",
        "perplexity",
        "bleu",
        "chrf",
        "exact_match",
        "test_sentences",
        "seconds",
        "beside",
        "beside.raw",
        "beside.raw.test",
        "beside.raw.test.bleu",
        "NAME",
        "x",
    ),
    "examples.json": (
        "0",
        "0.source",
        "0.translation",
        "0.source_tokens",
        "0.source_tokens.0",
        "0.target_tokens",
        "x",
    ),
}


def replaced(value, place, new):
    """A JSON value with another at the dotted `place`, which is made where it is not there."""
    name, _, rest = place.partition(".")
    if isinstance(value, list):
        i = int(name) if name.isdigit() else len(value)
        return [
            *value[:i],
            replaced(value[i] if i < len(value) else {}, rest, new) if rest else new,
            *value[i + 1 :],
        ]
    value = value if isinstance(value, dict) else {}
    name, rest = (
        (place, "") if place.startswith("model.") and place in value else (name, rest)
    )
    return value | {name: replaced(value.get(name, {}), rest, new) if rest else new}


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.ci) for part in range(1, 8))]
)
@pytest.mark.parametrize("name", PLACES)
def test_a_report_of_wrong_types(name, part, tmp_path, undrawn):
    """It is written, or a line names the file; the same of SQL over it."""
    path = trials(tmp_path) / ("" if name == "sweep.json" else "trials/00") / name
    whole = json.loads(path.read_text())
    said = []
    for place, value in list(itertools.product(PLACES[name], VALUES))[part::8]:
        path.write_text(json.dumps(replaced(whole, place, value)))
        try:
            write_report(tmp_path)
            run_query([tmp_path], "select * from trials, metrics")
        except ResultsError as error:
            said.append(str(error))
            assert str(path) in said[-1] or str(path.parent) in said[-1]
    assert (
        0 < len(said) < len(PLACES[name]) * len(VALUES) / 8
        and max(map(len, said)) < 600
    )


LINES = (
    {"step": "x"},
    {"step": None},
    {"step": [1]},
    {"step": True},
    {"step": -1},
    {"step": 10**300},
    {"step": 1.5},
    {"step": 2**62},
    {"split": 3},
    {"split": ["train"]},
    {"loss": EVIL},
    {"loss": [1]},
    {"loss": 1e308},
    {"perplexity": "1"},
    {"perplexity": -1.0},
    {"perplexity": 1e300},
    {"perplexity": float("inf")},
    {"perplexity": 0},
    {"LOSS": 1},
    {"": 1},
    {"a\0b": 2},
    {"workdir": "x"},
)


def test_metrics_of_wrong_types_and_sizes(tmp_path):
    """Drawn, too."""
    lines = [
        {"step": 75, "split": split, "loss": 2.0, "perplexity": 9.0} | line
        for split in ("train", "validation")
        for line in LINES
    ]
    with open(
        trials(tmp_path) / "trials/00/metrics.jsonl", "a", encoding="utf-8"
    ) as file:
        file.write("".join(f"{line}\n" for line in map(json.dumps, lines)))
    assert write_report(tmp_path).html.stat().st_size > 10_000
    ((workdir, count),) = run_query(
        [tmp_path], "select workdir, count(*) from metrics group by all"
    ).rows
    assert workdir == str(tmp_path) and count > 6


@pytest.mark.parametrize(
    ("name", "arrays", "message"),
    [
        (
            "sentences.npz",
            {"validation_nll": np.ones(3)},
            "arrays of validation have the shapes",
        ),
        (
            "sentences.npz",
            {
                "test_bleu": np.ones((3, 9)),
                "test_exact": np.ones(3),
                "test_source": np.ones(3),
            },
            "of test",
        ),
        (
            "sentences.npz",
            {
                "test_bleu": np.ones(()),
                "test_exact": np.ones(()),
                "test_source": np.ones(()),
            },
            "of test",
        ),
        (
            "sentences.npz",
            {
                "validation_nll": np.ones(3),
                "validation_tokens": np.ones(3, int),
                "validation_source": np.full(3, np.nan),
            },
            "what is counted is of int64, float64",
        ),
        (
            "examples.npz",
            {"positions": np.ones(3)},
            r"positions has shape \(3,\), not \(L, d_model\)",
        ),
        ("examples.npz", {"positions": np.ones((4, 4, 3))}, "positions has shape"),
        ("examples.npz", {"0/encoder": np.ones((2, 4, 3))}, "0/encoder has shape"),
    ],
)
def test_arrays_of_other_shapes_are_named(name, arrays, message, tmp_path, undrawn):
    np.savez(
        trials(tmp_path, fakes.sentences(np.random.default_rng(0), 8, 0.0))
        / "trials/00"
        / name,
        **arrays,
    )
    with pytest.raises(ResultsError, match=f"{name}: .*{message}"):
        write_report(tmp_path)


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
    "html head meta title style body header h1 h2 h3 p dl dt dd div section table thead tbody "
    "tr th td details summary pre figure figcaption noscript form label span select fieldset "
    "legend input ol canvas script svg line g path text tspan use defs clippath rect image".split()
)


def test_no_markup_of_files_runs_in_the_page(evil):
    text = evil.html.read_text(encoding="utf-8")
    page = Page(text)
    ours = (Path(report_page.__file__).parent / "page.js").read_text(encoding="utf-8")
    assert [
        attributes.get("type") for tag, attributes in page.tags if tag == "script"
    ] == ["application/json", None]
    assert page.raw["script"][1] == ours and "alert" not in ours
    assert (
        json.loads(page.raw["script"][0])["trials"][0]["examples"][0]["source"] == EVIL
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
                    ("#", "data:image/png;base64,")
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


def test_numbers_stay_numbers_in_the_csv(tmp_path, undrawn):
    (trials(tmp_path) / "trials/00/result.json").write_text(
        json.dumps(fakes.finished(perplexity=-1.5, parameters=-7))
    )
    assert ",-7,-1.5," in write_report(tmp_path).csv.read_text()


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


def test_a_directory_with_a_name_that_none_can_have(tmp_path):
    workdir = trials(tmp_path)
    path = workdir / "sweep.json"
    sweep = json.loads(path.read_text())
    sweep["trials"][0]["directory"] = "x" * 5000
    path.write_text(json.dumps(sweep))
    with pytest.raises(ResultsError, match="a name of 5000 bytes") as refused:
        read_results(workdir)
    assert len(str(refused.value)) < 500
