"""Keeps what the pages of experiments/results say equal to their data.

    python .ci/results.py keep WORKDIR experiments/results/hard/cldr "FLAGS OF launch.sweep"
    make findings

A page P.md has its data beside it: P.csv, the comparisons of a report; P.trials.csv, a line a
trial; P.answers.csv, accuracies by distance and number, of tasks; P.lengths.csv, metrics by
length of the source, where some are beyond training; P.json, what ran. A page of
several sweeps has P.NAME.csv and so on. `keep` writes these from a workdir. `make findings`
writes anew what stands between the marks of a page,

    <!-- about: P -->                  its finding, command, date, commit and machine
    <!-- table: P more=parameters -->  means ± spread, differences and verdicts
    <!-- pivot: P perplexity d_k -->   one metric of a product, d_k across
    <!-- answers: P distance -->       accuracies by distance
    <!-- lengths: P perplexity -->     one metric by length of the source

each ended by <!-- / -->, and experiments/results/README.md, a line for each claim of
claims.toml. `check` says where a page is not what it writes, where a number with ± or an
interval, anywhere on a page, is none of its data, and where a claim's verdict is not that of
its comparison; tests run it.
"""

import csv
import json
import re
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.evaluation.metrics import METRICS, OF_ATTENTION, Metric
from experiments.report.cells import MISSING, mean_and_interval, measured
from experiments.report.comparisons import comparison_records
from experiments.report.factors import factors_of, in_order
from experiments.report.figures.lines import bucket_values, length_buckets
from experiments.report.formats import comparisons_csv
from experiments.report.page_figures import longest_in_training
from experiments.report.questions import Question, fitting
from experiments.report.rows import Row, of_one_code
from experiments.report.trial_files import Results, read_results
from experiments.report.trial_outputs import read_accuracies, read_sentences
from experiments.report.tuned_rows import compared_rows
from experiments.report.write import compare_rows, write_results
from experiments.stats.differences import Difference
from experiments.stats.summary import summarise

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "experiments/results"
SHOWN = {metric.key: metric for metric in (*METRICS, *OF_ATTENTION)}
MARK = re.compile(
    r"<!-- (about|table|pivot|answers|lengths): ([^\n]*?) -->\n(.*?)<!-- / -->", re.S
)
DIGITS = 7
"""Of numbers that are kept."""

SPREAD = re.compile(r"(\d[\d.,]*) ± (\d[\d.]*)")
SIGNED = r"([+−-]?\d[\d.]*)"
INTERVAL = re.compile(rf"{SIGNED}(?: %| points)? \\?\[{SIGNED}, {SIGNED}\\?\]")
"""As Markdown has them, whose brackets may be escaped."""


def keep(workdir: Path, stem: Path, flags: str) -> None:
    """Writes the data of a page, P.csv and so on for a `stem` P, from a sweep's workdir."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    results, _ = of_one_code(read_results(workdir))
    question, _ = fitting(compared_rows(results), Question.of(results.question))
    compared = compare_rows(results, question=question)
    rows = compared_rows(results) if question.pairs else compared
    given = [m for m in METRICS if any(row.summary(m.key) for row in rows)]
    records = comparison_records(rows, given, question, compared)
    _write_csv(stem, "csv", [_rounded(record) for record in records])
    _write_csv(stem, "trials.csv", list(_trials(rows)))
    answers = list(_answers(rows))
    if answers:
        _write_csv(stem, "answers.csv", answers)
    if of_lengths := list(_lengths(rows, given)):
        _write_csv(stem, "lengths.csv", of_lengths)
    about = _about(results, rows, flags, question)
    _beside(stem, "json").write_text(json.dumps(about, indent=1) + "\n", "utf-8")


def _trials(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    factors = factors_of(rows)
    for i, row in enumerate(rows):
        named = {f"by {heading}": texts[i] for heading, texts in factors.items()}
        for trial in row.finished:
            scores = {key: trial.result.get(key) for key in ("parameters", *SHOWN)}
            yield _rounded(dict(row=row.name, **named, seed=trial.seed, **scores))


def _answers(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    for row in rows:
        for trial in row.finished:
            for kind, buckets in read_accuracies(trial).items():
                for name, accuracy in buckets.values():
                    yield _rounded(
                        dict(
                            row=row.name,
                            seed=trial.seed,
                            kind=kind,
                            bucket=name,
                            accuracy=accuracy,
                        )
                    )


def _lengths(rows: Sequence[Row], metrics) -> Iterator[dict[str, Any]]:
    """Gives metrics by length of the source, where some sources are longer than in training."""
    trained = longest_in_training(rows)
    trials = [(row.name, trial) for row in rows for trial in row.finished]
    sentences = [read_sentences(trial, metrics) for _, trial in trials]
    lengths = [of["validation_source"] for of in sentences if of]
    if not (trained and lengths and max(of.max() for of in lengths) > trained):
        return
    buckets = length_buckets(lengths[0], trained=trained)
    for (name, trial), of in zip(trials, sentences, strict=True):
        for metric in metrics:
            if metric.columns and metric.statistics(of) is not None:
                values = bucket_values(metric, of, buckets) / metric.scale
                for (first, last), value in zip(buckets, values, strict=True):
                    bucket = f"{first}-{last}"
                    named = dict(row=name, seed=trial.seed, metric=metric.key)
                    yield _rounded(named | dict(bucket=bucket, value=float(value)))


def _about(results: Results, rows, flags, question) -> dict[str, Any]:
    records = [trial.record for trial in results.trials if trial.record]
    first = records[0]
    started = sorted(str(record.get("started")) for record in records)
    versions = first.get("versions") or {}
    # The finding is the report's, with its cautions.
    with tempfile.TemporaryDirectory() as folder:
        finding = write_results(results, folder, question=question).table.finding
    return dict(
        command=f"python -m launch.sweep {flags}",
        date=started[-1][:10],
        commit=first.get("git"),
        device=first.get("device"),
        versions={name: versions[name] for name in ("jax", "flax") if name in versions},
        python=first.get("python"),
        steps=sorted({t.result.get("steps") for row in rows for t in row.finished}),
        trials=len(results.with_status("finished")),
        finding=finding,
    )


def _rounded(record):
    """Returns a record with DIGITS of each number."""
    short = lambda x: float(f"{x:.{DIGITS}g}") if isinstance(x, float) else x
    return {
        key: [short(x) for x in value] if isinstance(value, list) else short(value)
        for key, value in record.items()
    }


def _write_csv(stem, ending, records):
    # Columns that no line has are left out.
    names = [n for n in records[0] if any(r.get(n) not in (None, "") for r in records)]
    lines = [{name: record.get(name) for name in names} for record in records]
    _beside(stem, ending).write_text(comparisons_csv(lines), "utf-8")


class Data:
    """Holds the kept data of one sweep."""

    def __init__(self, stem: Path):
        self.comparisons = _read_csv(_beside(stem, "csv"))
        self.trials = _read_csv(_beside(stem, "trials.csv"))
        self.answers = _read_csv(_beside(stem, "answers.csv"))
        self.lengths = _read_csv(_beside(stem, "lengths.csv"))
        self.about = json.loads(_beside(stem, "json").read_text("utf-8"))
        self.rows = list(dict.fromkeys(trial["row"] for trial in self.trials))
        self.factors = [
            n.removeprefix("by ") for n in self.trials[0] if n.startswith("by ")
        ]

    def of_row(self, row: str) -> list[dict[str, str]]:
        return [trial for trial in self.trials if trial["row"] == row]

    def measured(self, row: str, key: str) -> str:
        """Returns "mean ± spread" as a report has it."""
        texts = [trial.get(key, "") for trial in self.of_row(row)]
        values = [float(text) for text in texts if text]
        if not values:
            return MISSING
        if key == "parameters":
            return f"{sum(values) / len(values):,.0f}"
        return measured(summarise(values), SHOWN[key])

    def accuracies(self, row: str, kind: str = "") -> list[tuple[str, str]]:
        """Returns (bucket, "mean ± spread") of the answers of a row, of a kind or of all."""
        seeds: dict[tuple[str, str], list[float]] = {}
        for line in self.answers:
            if line["row"] == row and kind in ("", line["kind"]):
                values = seeds.setdefault((line["kind"], line["bucket"]), [])
                values.append(float(line["accuracy"]) / 100)
        accuracy = SHOWN["accuracy"]
        return [(n, measured(summarise(of), accuracy)) for (_, n), of in seeds.items()]

    def by_length(self, row: str, key: str) -> dict[str, str]:
        """Returns {lengths: "mean ± spread"} of a metric of a row."""
        seeds: dict[str, list[float]] = {}
        for line in self.lengths:
            if (line["row"], line["metric"]) == (row, key):
                seeds.setdefault(line["bucket"], []).append(float(line["value"]))
        metric = SHOWN[key]
        return {name: measured(summarise(of), metric) for name, of in seeds.items()}

    def metrics(self) -> list[Metric]:
        keys = dict.fromkeys(line["metric"] for line in self.comparisons)
        return [SHOWN[key] for key in keys]

    def comparison(self, row: str, key: str, base: str = "") -> dict[str, str] | None:
        for line in self.comparisons:
            if (
                line["row"] == row
                and line["metric"] == key
                and base in ("", line["base"])
            ):
                return line
        return None

    def difference(self, line: Mapping[str, str] | None) -> str:
        """Returns "+0.019 [+0.006, +0.035]" of a comparison, as a report has it."""
        if line is None or not line.get("difference"):
            return ""
        metric = SHOWN[line["metric"]]
        # They are kept in the unit that is shown, and not where they are infinite.
        ends = {"difference": "nan", "low": "-inf", "high": "inf"}
        mean, low, high = (float(line[n] or ends[n]) / metric.scale for n in ends)
        known = Difference(mean, low, high, 0.0, 0.0, 0, 0.0, None)
        return " ".join(mean_and_interval(known, metric))


def _read_csv(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _beside(stem: Path, ending: str) -> Path:
    return stem.parent / f"{stem.name}.{ending}"


def _data_of(page: Path) -> dict[str, Data]:
    """Returns the data of a page by the names that its marks use."""
    found = {}
    for path in sorted(page.parent.glob(f"{page.stem}*.trials.csv")):
        name = path.name.removesuffix(".trials.csv")
        if name == page.stem or name.startswith(f"{page.stem}."):
            found[name] = Data(page.parent / name)
    return found


def written(page: Path) -> str:
    """Returns a page with what stands between its marks made from its data."""
    data = _data_of(page)

    def anew(match):
        kind, text, _ = match.groups()
        name, *words = text.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        if name not in data:
            sys.exit(f"{page}: <!-- {kind}: {text} --> names no data beside the page")
        body = WRITERS[kind](data[name], *plain, **options)
        return f"<!-- {kind}: {text} -->\n\n{body}\n\n<!-- / -->"

    return MARK.sub(anew, page.read_text("utf-8"))


def _written_about(data: Data) -> str:
    about = data.about
    versions = ", ".join(f"{name} {v}" for name, v in about["versions"].items())
    # The fewest and the most, where they differ.
    ends = dict.fromkeys((about["steps"][0], about["steps"][-1]))
    steps = " to ".join(f"{count:,}" for count in ends)
    where = f"{about['device']}, {versions}, Python {about['python']}"
    what = f"{about['trials']} trials of {steps} steps"
    return (
        f"> {_escaped(about['finding'])}\n\n"
        f"`{about['command']}`, {about['date']}, commit {about['commit'][:7]}, {where}; {what}. "
        "Mean ± sample standard deviation over seeds; the intervals of all rows and metrics "
        "hold at once with 95 %."
    )


def _written_table(data: Data, more: str = "parameters", differences: str = "") -> str:
    chosen = data.metrics()
    differing = differences.split(",") if differences else [chosen[0].key]
    keys = [key for key in more.split(",") if key]
    headings = ["", "seeds", *(_heading(key) for key in keys)]
    for metric in chosen:
        headings.append(metric.heading)
        headings += ["difference"] if metric.key in differing else []
    lines = []
    for row in data.rows:
        cells = [row, str(len(data.of_row(row)))]
        cells += [data.measured(row, key) for key in keys]
        for metric in chosen:
            cells.append(data.measured(row, metric.key))
            if metric.key in differing:
                cells.append(data.difference(data.comparison(row, metric.key)))
        lines.append([*cells, _verdicts(data, row, chosen)])
    return _grid([*headings, "verdict"], lines)


def _verdicts(data, row, metrics):
    by_words: dict[str, list[str]] = {}
    for metric in metrics:
        if line := data.comparison(row, metric.key):
            by_words.setdefault(line["verdict"], []).append(metric.name)
    if len(by_words) == 1:
        return next(iter(by_words))
    return "; ".join(
        f"{words} ({', '.join(names)})" for words, names in by_words.items()
    )


def _written_pivot(data: Data, key: str, across: str) -> str:
    metric = SHOWN[key]
    others = [factor for factor in data.factors if factor != across]
    columns = in_order([trial[f"by {across}"] for trial in data.trials])
    lines: dict[tuple, dict[str, str]] = {}
    for row in data.rows:
        first = data.of_row(row)[0]
        names = tuple(first[f"by {factor}"] for factor in others)
        line = data.comparison(row, key)
        verdict = {"better": " ▲", "worse": " ▼"}.get(
            line["verdict"] if line else "", ""
        )
        text = data.measured(row, key) + verdict
        lines.setdefault(names, {})[first[f"by {across}"]] = text
    cells = [
        [*names, *(of.get(c, MISSING) for c in columns)] for names, of in lines.items()
    ]
    head = [*others, *(f"{across}={column}" for column in columns)]
    return f"{metric.heading}; ▲ better, ▼ worse than its base:\n\n{_grid(head, cells)}"


def _written_answers(data: Data, kind: str) -> str:
    buckets = {n: None for row in data.rows for n, _ in data.accuracies(row, kind)}
    buckets = sorted(buckets, key=lambda name: int(re.match(r"\d+", name)[0]))
    cells = []
    for row in data.rows:
        of_row = dict(data.accuracies(row, kind))
        cells.append([row, *(of_row.get(bucket, MISSING) for bucket in buckets)])
    return _grid(["", *(f"{kind} {bucket}" for bucket in buckets)], cells)


def _written_lengths(data: Data, key: str) -> str:
    buckets = list(dict.fromkeys(line["bucket"] for line in data.lengths))
    cells = []
    for row in data.rows:
        of_row = data.by_length(row, key)
        cells.append([row, *(of_row.get(bucket, MISSING) for bucket in buckets)])
    return _grid(["", *(f"{bucket} tokens" for bucket in buckets)], cells)


WRITERS = {
    "about": _written_about,
    "table": _written_table,
    "pivot": _written_pivot,
    "answers": _written_answers,
    "lengths": _written_lengths,
}


def _heading(key):
    return SHOWN[key].heading if key in SHOWN else key


def _grid(headings, lines) -> str:
    rule = ["---", *["---:"] * (len(headings) - 1)]
    rows = (headings, rule, *lines)
    return "\n".join(f"| {' | '.join(map(_escaped, row))} |" for row in rows)


def _escaped(text: str) -> str:
    return re.sub(r"([|\[\]])", r"\\\1", text)


HEAD = (
    "# What was found",
    "",
    "<!-- made by `make findings` from claims.toml and the data of the pages -->",
    "",
    "A line for each claim of a paper that was put to the test here, on models of the size that",
    "stands beside it: what a small model shows on a small task says little of large ones. A",
    "difference is that of two rows; its interval holds together with all others of its table",
    "with 95 %. *Supported* and *contradicted* are said where it leaves 0 out, or where a claim",
    "says that there is no difference and the interval leaves little room.",
    "",
    "| claim | here | by | models | page |",
    "| --- | --- | --- | --- | --- |",
)


def findings() -> str:
    """Returns experiments/results/README.md."""
    lines = []
    for claim in _claims():
        data = Data(PAGES / claim["data"])
        line = _evidence(data, claim)
        row = claim["row"]
        metric = SHOWN[claim["metric"]]
        size = data.measured(row, "parameters")
        steps = data.about["steps"][-1]
        against = f"{_escaped(row)} against {_escaped(line['base'])}, {metric.heading}"
        effect = f"{against}: {_escaped(data.difference(line))}, {line['verdict']}"
        page = claim.get("page") or f"{claim['data']}.md"
        lines.append(
            f"| {claim['claim']} ({claim['paper']}) | **{claim['verdict']}** | {effect} | "
            f"{size}, {steps:,} steps, {line['runs']} seeds | [{page.partition('/')[0]}]({page}) |"
        )
    return "\n".join([*HEAD, *lines, "", *_unkept()])


def _claims() -> list[dict[str, str]]:
    return tomllib.loads((PAGES / "claims.toml").read_text("utf-8"))["claim"]


def _evidence(data: Data, claim: Mapping[str, str]) -> dict[str, str]:
    line = data.comparison(claim["row"], claim["metric"], claim.get("base", ""))
    if line is None:
        sys.exit(
            f"claims.toml: {claim['data']} compares no {claim['row']!r} in {claim['metric']}"
        )
    return line


def _unkept() -> list[str]:
    """Names the pages without kept data."""
    pages = [page for page in _pages() if not _data_of(page)]
    if not pages:
        return []
    names = [page.relative_to(PAGES).as_posix() for page in pages]
    links = ", ".join(f"[{name}]({name})" for name in names)
    return [f"Pages of benchmarks, and of sweeps before data were kept: {links}.", ""]


def _pages() -> list[Path]:
    return sorted(PAGES.glob("*/*.md"))


def faults() -> list[str]:
    """Returns what on the pages is not as their data have it; [] where all is."""
    found = []
    for page in _pages():
        if data := _data_of(page):
            name = page.relative_to(PAGES)
            found += [f"{name}: {fault}" for fault in _faults_of(page, data)]
    for claim in _claims():
        line = _evidence(Data(PAGES / claim["data"]), claim)
        if line["verdict"] != claim["shows"]:
            verdicts = f"{line['verdict']}, not {claim['shows']}"
            found.append(f"claims.toml: {claim['claim']}: {verdicts}")
    if (PAGES / "README.md").read_text("utf-8") != findings():
        found.append("README.md: claims.toml and the data make another: make findings")
    return found


def _faults_of(page, data) -> Iterator[str]:
    text = page.read_text("utf-8")
    if text != written(page):
        yield "its data make another page: make findings"
    for number in _unknown_numbers(text, data):
        yield f"{number} is none of its data"
    title, _, rest = text.partition("\n\n")
    if not (title.startswith("# ") and rest.startswith("<!-- about: ")):
        yield "it does not begin with its finding, <!-- about: NAME -->"


def _unknown_numbers(text: str, data: Mapping[str, Data]) -> list[str]:
    """Returns the numbers with ± and the intervals of a page that are none of its data."""
    spreads = set()
    intervals = set()
    for each in data.values():
        for row in each.rows:
            spreads |= {each.measured(row, key) for key in SHOWN}
            spreads |= {text for _, text in each.accuracies(row)}
            for key in SHOWN:
                spreads |= {*each.by_length(row, key).values()}
        intervals |= {each.difference(line) for line in each.comparisons}
    known = _numbers(SPREAD, spreads)
    unknown = [m[0] for m in SPREAD.finditer(text) if _of(m) not in known]
    known = _numbers(INTERVAL, intervals)
    # A finding says sizes without their sign.
    known |= {(abs(mean), low, high) for mean, low, high in known}
    unknown += [m[0] for m in INTERVAL.finditer(text) if _of(m) not in known]
    return unknown


def _numbers(pattern, texts):
    return {_of(match) for match in map(pattern.match, texts) if match}


def _of(match):
    """Returns the numbers of a match, whatever signs and commas they are written with."""
    texts = (text.replace("−", "-").replace(",", "") for text in match.groups())
    return tuple(float(text.rstrip(".")) for text in texts)


def main(arguments: Sequence[str]) -> None:
    match arguments:
        case ["keep", workdir, stem, flags]:
            keep(Path(workdir), Path(stem), flags)
        case ["write"]:
            for page in _pages():
                if _data_of(page):
                    page.write_text(written(page), "utf-8")
            (PAGES / "README.md").write_text(findings(), "utf-8")
        case ["check"]:
            sys.exit("\n".join(faults()) or 0)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
