"""What a report says in words and numbers: the table of a workdir, its differences to base, and where it ran."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.errors import one_line
from experiments.report import comparison
from experiments.report.comparison import Row
from experiments.report.results import Results, flatten_settings, look_up_setting
from experiments.report.statistics import Difference, Summary

MISSING = "–"


class Metric(NamedTuple):
    """A score that rows are compared by: shown times `scale`, means with `decimals` and differences with `fine`."""

    key: str
    heading: str
    decimals: int
    fine: int
    scale: int = 1


METRICS = (
    Metric("perplexity", "perplexity", 3, 3),
    Metric("bleu", "BLEU", 1, 2),
    Metric("exact_match", "exact match, %", 1, 2, 100),
)


ALIGNMENT = Metric("alignment_error", "alignment error, %", 1, 2, 100)


@dataclasses.dataclass(frozen=True)
class Grid:
    """Cells under headings; the first column names the rows."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclasses.dataclass(frozen=True)
class Table:
    """The ablation table in text: a row a point of the sweep, and what its cells mean."""

    results: Grid
    """Means ± spread over seeds, and where there is a base to compare with, what the differences amount to."""
    notes: tuple[str, ...]
    differences: Mapping[str, Grid]
    """For each metric that has any: the differences to base and the paper's numbers; all grids have all rows."""
    difference_notes: tuple[str, ...]
    problems: tuple[tuple[str, str, str], ...]
    """(name, status, one line why) of each trial without a result."""

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(row[0] for row in self.results.rows)


def result_table(book: Results, rows: Sequence[Row]) -> Table:
    """The ablation table of `book`, whose trials `rows` hold grouped over their seeds, in the order of the sweep."""
    labels = _labels(book, rows)
    notes = [note for note in (_base_note(book), _metrics_note(book, rows)) if note]
    found = {metric.key: _differences(metric, labels, rows) for metric in METRICS}
    differences = {key: grid for key, grid in found.items() if grid}
    problems = tuple(
        (
            ", ".join(filter(None, (trial.label, one_line(trial.name)))),
            trial.status,
            trial.error,
        )
        for status in ("failed", "diverged", "unfinished")
        for trial in book.of(status)
    )
    return Table(
        _results(labels, rows),
        tuple(notes),
        differences,
        _difference_notes(rows) if differences else (),
        problems,
    )


def verdict(row: Row) -> str:
    """In a few words, how `row` stands to base: "worse", or "worse (BLEU); no difference shown (perplexity)"."""
    said: dict[str, list[str]] = {}
    for metric in METRICS:
        if words := row.verdicts.get(metric.key):
            said.setdefault(words.partition(";")[0], []).append(
                metric.heading.partition(",")[0]
            )
    if len(said) == 1:
        return next(iter(said))
    return "; ".join(
        f"{words} ({', '.join(metrics)})" for words, metrics in said.items()
    )


def beside_paper(rows: Sequence[Row]) -> bool:
    """Whether any row has numbers of the paper's to compare with, the base alone not counted."""
    base = comparison.base_of([row.group for row in rows])
    return any(row.published and row.group is not base for row in rows)


def varied(book: Results) -> list[str]:
    """The dotted keys that the sweep changes, apart from the seed."""
    return list(
        dict.fromkeys(key for trial in book.trials for key in book.changes(trial))
    )


def short_names(keys: Iterable[str], known: Iterable[str] = ()) -> dict[str, str]:
    """{dotted key: its last component, or the whole key where another of `keys` or `known` ends the same}."""
    keys = list(keys)
    last = [key.rpartition(".")[2] for key in {*keys, *known}]
    return {
        key: key if last.count(name := key.rpartition(".")[2]) > 1 else name
        for key in keys
    }


def base_settings(book: Results) -> Mapping[str, Any]:
    """The settings that rows are compared with; a single run's own."""
    return book.base or next(
        (trial.config for trial in book.trials if trial.config), {}
    )


def report_title(book: Results) -> str:
    if not book.config:
        return one_line(book.trials[0].name)
    name = Path(book.config).stem
    return f"{name}: {' × '.join(book.sweeps)}" if book.sweeps else name


def provenance(book: Results) -> list[tuple[str, str]]:
    """(term, value) of what ran where; trials that differ in one give all its values."""
    records = [trial.record for trial in book.trials if trial.record]
    started = sorted(
        str(record["started"]) for record in records if record.get("started")
    )
    versions = dict.fromkeys(
        f"{name} {version}"
        for record in records
        for name, version in (record.get("versions") or {}).items()
    )
    found = [
        ("config", book.config),
        ("sweeps", ", ".join(book.sweeps)),
        ("trials", f"{len(book.of('finished'))} finished of {len(book.trials)}"),
        ("started", " to ".join(dict.fromkeys(started[:1] + started[-1:]))),
        ("git", _distinct(record.get("git") for record in records)),
        (
            "device",
            _distinct(
                f"{r.get('devices', 1)} × {r['device']}"
                for r in records
                if r.get("device")
            ),
        ),
        ("corpus", _distinct(record.get("corpus") for record in records)),
        (
            "corpus counts",
            _distinct(
                ", ".join(
                    f"{name} {count}"
                    for name, count in flatten_settings(
                        record.get("corpus_counts") or {}
                    ).items()
                )
                for record in records
            ),
        ),
        ("vocabulary", _distinct(record.get("vocabulary") for record in records)),
        ("python", _distinct(record.get("python") for record in records)),
        ("versions", ", ".join(versions)),
    ]
    return [(term, one_line(value)) for term, value in found if value]


def number(value: float, decimals: int, sign: str = "-") -> str:
    """`value` as a cell holds it; of one with many digits, such as a diverged trial's perplexity: 1.2e+17."""
    if math.isfinite(value) and abs(value) >= 1e5:
        return f"{value:{sign}.3g}"
    return f"{value:{sign}.{decimals}f}"


def measured(summary: Summary | None, metric: Metric) -> str:
    """Mean ± spread."""
    if summary is None:
        return MISSING
    numbers = [
        metric.scale * value
        for value in (summary.mean, summary.spread)
        if value is not None
    ]
    return " ± ".join(number(value, metric.decimals) for value in numbers)


def mean_and_interval(difference: Difference, metric: Metric) -> tuple[str, str]:
    """A difference and its 95 % interval: ("+0.31", "[+0.10, +0.52]")."""
    mean, low, high = (
        number(metric.scale * value, metric.fine, "+")
        for value in (difference.mean, difference.low, difference.high)
    )
    return mean, f"[{low}, {high}]"


def p_value(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def _results(labels, rows):
    """The grid of means, with a column of verdicts where any row has one."""
    verdicts = [verdict(row) for row in rows]
    headings = (
        "",
        "seeds",
        "parameters",
        "perplexity",
        "BLEU",
        "chrF",
        "exact match, %",
    )
    cells = [_cells(row.group) for row in rows]
    errors = [row.group.summary("alignment_error") for row in rows]
    if any(errors):
        headings += ("alignment error, %",)
        cells = [
            (*own, measured(error, ALIGNMENT))
            for own, error in zip(cells, errors, strict=True)
        ]
    if any(verdicts):
        headings += ("against base",)
        cells = [(*own, words) for own, words in zip(cells, verdicts, strict=True)]
    return Grid(
        "Results",
        headings,
        tuple((label, *own) for label, own in zip(labels, cells, strict=True)),
    )


def _cells(group):
    done, total = len(group.finished), len(group.trials)
    parameters = group.summary("parameters")
    perplexity, bleu, exact = (
        measured(group.summary(metric.key), metric) for metric in METRICS
    )
    return (
        str(total) if done == total else f"{done} of {total}",
        f"{parameters.mean:,.0f}" if parameters else MISSING,
        perplexity,
        bleu,
        measured(group.summary("chrf"), Metric("chrf", "chrF", 1, 2)),
        exact,
    )


def _differences(metric, labels, rows):
    """The grid of one metric's differences to base; None where there are none and the paper has no numbers either."""
    ours = any(getattr(row, metric.key) for row in rows)
    paper = metric.key != "exact_match" and beside_paper(rows)
    if not (ours or paper):
        return None
    headings, columns = (
        ["", metric.heading],
        [labels, [measured(r.group.summary(metric.key), metric) for r in rows]],
    )
    if ours:
        headings += ["difference", "95 % interval", "p", "d", "pairs", "verdict"]
        columns += zip(*(_difference_cells(metric, row) for row in rows), strict=True)
    if paper:
        headings += ["paper", "paper’s difference", "paper’s order"]
        columns += zip(*_paper_cells(metric, rows), strict=True)
    return Grid(
        f"{metric.heading[0].upper()}{metric.heading[1:]}: differences to base",
        tuple(headings),
        tuple(zip(*columns, strict=True)),
    )


def _difference_cells(metric, row):
    difference = getattr(row, metric.key)
    if difference is None:
        return (MISSING,) * 6
    return (
        *mean_and_interval(difference, metric),
        p_value(row.adjusted[metric.key]),
        number(difference.d, 2, "+"),
        str(difference.n),
        row.verdicts[metric.key],
    )


def _paper_cells(metric, rows):
    """For each row what the paper has, its difference to the paper's base, and whether ours has the same sign."""
    base = comparison.base_of([row.group for row in rows])
    beside = next((row.published for row in rows if row.group is base), None)
    cells = []
    for row in rows:
        if row.published is None:
            cells.append((MISSING,) * 3)
            continue
        value = getattr(row.published, metric.key)
        difference = (
            f"{value - getattr(beside, metric.key):+.2f}"
            if beside and row.group is not base
            else MISSING
        )
        cells.append((f"{value:g}", difference, row.ordering[metric.key] or MISSING))
    return cells


def _labels(book, rows):
    names = short_names(varied(book), flatten_settings(base_settings(book)))
    unchanged = "base" if book.base else report_title(book)
    return tuple(
        row.group.label
        or ", ".join(
            f"{names[key]}={_value(value)}" for key, value in row.group.point.items()
        )
        or unchanged
        for row in rows
    )


def _value(value):
    return f"{value:g}" if isinstance(value, float) else one_line(str(value))


def _base_note(book):
    keys = varied(book)
    if not (book.base and keys):
        return ""
    names = short_names(keys, flatten_settings(book.base))
    values = ", ".join(
        f"{names[key]}={_value(look_up_setting(book.base, key))}" for key in keys
    )
    return f"base: {values}" + (f" ({book.config})" if book.config else "")


def _metrics_note(book, rows):
    finished = book.of("finished")
    if not finished:
        return ""
    sentences = _distinct(trial.result.get("test_sentences") for trial in finished)
    note = "perplexity: validation, per token; BLEU, chrF and exact match: "
    note += f"{sentences} test sentences" if sentences else "test sentences"
    if any(trial.result.get("alignment_error") is not None for trial in finished):
        note += (
            "; alignment error: how often the last layer’s attention to the source, in the mean over heads, is "
            "most on another word than the one translated (Och and Ney 2003)"
        )
    if any(len(row.group.finished) > 1 for row in rows):
        note += "; ±: sample standard deviation over seeds"
    return note


def _difference_notes(rows):
    notes = ()
    if any(getattr(row, metric.key) for row in rows for metric in METRICS):
        notes += (
            "difference: row − base, over pairs of runs with the same seed; 95 % interval and p: over seeds and "
            "sentences together where the trials kept their sentences, else over seeds; p: two-sided, after "
            "Holm’s correction over the rows; d: mean of the pairs’ differences over their standard deviation; "
            "would have shown: with probability 0.8 or more",
        )
    if beside_paper(rows):
        notes += (
            "paper: Table 3 of “Attention Is All You Need”, newstest2013, single runs; paper’s order: whether "
            "our difference has the sign of the paper’s",
        )
    return notes


def _distinct(values):
    return " / ".join(dict.fromkeys(str(value) for value in values if value))
