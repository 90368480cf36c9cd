"""Builds a report's words and numbers: the table, the differences to base, what ran where."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.errors import one_line
from experiments.evaluation.metrics import (
    ALIGNMENT_ERROR,
    FIRST_TOKEN_MASS,
    METRICS,
    OF_ATTENTION,
    PERPLEXITY,
    Metric,
)
from experiments.report import comparison
from experiments.report.comparison import Difference, Row, seeds_text
from experiments.report.convergence import improving_note, steps_made
from experiments.report.costs import COSTS, NOTE
from experiments.report.results import Results, flatten_settings, look_up_setting
from experiments.report.statistics import Group, Summary

MISSING = "–"

VERDICTS = "against base"
"""The heading of the column of verdicts."""

STEPS = "steps"


@dataclasses.dataclass(frozen=True)
class Grid:
    """Holds cells under headings; the first column names the rows."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclasses.dataclass(frozen=True)
class Table:
    """Holds the ablation table as text: a row for each point of the sweep, and notes."""

    results: Grid
    """Means ± spread over seeds, and how the rows stand to base if there is one."""
    notes: tuple[str, ...]
    differences: Mapping[str, Grid]
    """{metric key: differences to base and the paper's numbers}; all grids have all rows."""
    difference_notes: tuple[str, ...]
    problems: tuple[tuple[str, str, str], ...]
    """(name, status, one line why) of each trial without a result."""
    tuning: Grid | None = None
    """What --tune chose for each row, and the rows without it."""
    caution: str = ""
    """What a reader must know before the table; "" for nothing."""
    finding: str = ""
    """What the table shows, in a sentence or two, after what it cautions of."""

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(row[0] for row in self.results.rows)


def result_table(
    results: Results,
    rows: Sequence[Row],
    metrics: Sequence[Metric] = METRICS,
    cost: bool = False,
) -> Table:
    """Builds the ablation table of `results`, with a column for each metric.

    `rows` hold its trials grouped over their seeds, in the order of the sweep. With `cost`
    it has those of `experiments.report.costs` too.
    """
    labels = row_labels(results, rows)
    notes = (
        _base_note(results),
        _metrics_note(results, rows, metrics),
        *_score_notes(results, metrics),
        improving_note(labels, [row.group for row in rows]),
        NOTE if cost else "",
    )
    grids = {metric.key: _differences(metric, labels, rows) for metric in metrics}
    differences = {key: grid for key, grid in grids.items() if grid}
    problems = []
    for status in ("failed", "diverged", "unfinished"):
        for trial in results.with_status(status):
            names = filter(None, (trial.label, one_line(trial.name)))
            problems.append((", ".join(names), trial.status, trial.error))
    return Table(
        results=_results(labels, rows, metrics, cost),
        notes=tuple(filter(None, notes)),
        differences=differences,
        difference_notes=_difference_notes(rows) if differences else (),
        problems=tuple(problems),
    )


def verdict(row: Row, metrics: Sequence[Metric] = METRICS) -> str:
    """Says in a few words how `row` stands to base.

    "worse", or where metrics disagree "worse (BLEU); undecided (perplexity): about 2 more
    seeds".
    """
    # By verdict, so that metrics which agree are said in one.
    names: dict[str, list[str]] = {}
    for metric in metrics:
        if verdict := row.verdicts.get(metric.key):
            names.setdefault(verdict.words, []).append(metric.name)
    seeds = [
        verdict.more_seeds for verdict in row.verdicts.values() if verdict.more_seeds
    ]
    parts = []
    for words, listed in names.items():
        part = words if len(names) == 1 else f"{words} ({', '.join(listed)})"
        # The fewest, because the first metric that decides is news.
        if words == "undecided" and seeds:
            part += f": {seeds_text(min(seeds))}"
        parts.append(part)
    return "; ".join(parts)


def row_labels(results: Results, rows: Sequence[Row]) -> tuple[str, ...]:
    """Returns the names of rows: their labels, else what they change."""
    return group_labels(results, [row.group for row in rows])


def group_labels(results: Results, groups: Iterable[Group]) -> tuple[str, ...]:
    """Returns the names of the rows of some groups of trials."""
    # A short name must not be that of a setting which does not vary, either.
    names = short_names(varied(results), flatten_settings(base_settings(results)))
    unchanged = "base" if results.base else report_title(results)
    labels = []
    for group in groups:
        changes = [f"{names[key]}={_value(v)}" for key, v in group.point.items()]
        labels.append(group.label or ", ".join(changes) or unchanged)
    return tuple(labels)


def has_published(rows: Sequence[Row]) -> bool:
    """Returns whether the paper has numbers for any row other than the base."""
    base = comparison.base_of(row.group for row in rows)
    return any(row.published and row.group is not base for row in rows)


def varied(results: Results) -> list[str]:
    """Returns the dotted keys that the sweep changes, apart from the seed."""
    keys = {}
    for trial in results.trials:
        keys |= dict.fromkeys(results.changes(trial))
    return list(keys)


def short_names(keys: Iterable[str], known: Iterable[str] = ()) -> dict[str, str]:
    """Returns {dotted key: its last component}.

    The whole key is kept where another of `keys` or `known` ends the same.
    """
    keys = list(keys)
    # A set, because a key of both would count as its own double.
    last = {key: key.rpartition(".")[2] for key in {*keys, *known}}
    endings = list(last.values())
    return {key: key if endings.count(last[key]) > 1 else last[key] for key in keys}


def base_settings(results: Results) -> Mapping[str, Any]:
    """Returns the settings that rows are compared with; those of a single run itself."""
    configs = (trial.config for trial in results.trials if trial.config)
    # A single run has no sweep, and so no base but itself.
    return results.base or next(configs, {})


def report_title(results: Results) -> str:
    if not results.config:
        return one_line(results.trials[0].name)
    name = Path(results.config).stem
    return f"{name}: {' × '.join(results.sweeps)}" if results.sweeps else name


def provenance(results: Results) -> list[tuple[str, str]]:
    """Returns (term, value) of what ran where; all values where trials differ in one."""
    records = [trial.record for trial in results.trials if trial.record]
    # The first and the last start stand for all between.
    started = sorted(str(r["started"]) for r in records if r.get("started"))
    devices = [
        f"{r.get('devices', 1)} × {r['device']}" for r in records if r.get("device")
    ]
    versions = {}
    counts = []
    for record in records:
        for package, version in (record.get("versions") or {}).items():
            versions[f"{package} {version}"] = None
        flat = flatten_settings(record.get("corpus_counts") or {})
        counts.append(", ".join(f"{name} {count}" for name, count in flat.items()))
    finished = len(results.with_status("finished"))
    terms = [
        ("config", results.config),
        ("sweeps", ", ".join(results.sweeps)),
        ("trials", f"{finished} finished of {len(results.trials)}"),
        ("started", " to ".join(dict.fromkeys(started[:1] + started[-1:]))),
        ("git", _distinct(record.get("git") for record in records)),
        ("device", _distinct(devices)),
        ("corpus", _distinct(record.get("corpus") for record in records)),
        ("corpus counts", _distinct(counts)),
        ("vocabulary", _distinct(record.get("vocabulary") for record in records)),
        ("python", _distinct(record.get("python") for record in records)),
        ("versions", ", ".join(versions)),
    ]
    return [(term, one_line(value)) for term, value in terms if value]


def number(value: float, decimals: int, sign: str = "-") -> str:
    """Formats `value` for a cell; with many digits, as of a diverged trial, as 1.2e+17."""
    if math.isfinite(value) and abs(value) >= 1e5:
        return f"{value:{sign}.3g}"
    return f"{value:{sign}.{decimals}f}"


def measured(summary: Summary | None, metric: Metric) -> str:
    """Formats mean ± spread; MISSING where there is no summary."""
    if summary is None:
        return MISSING
    values = [summary.mean, summary.spread]
    # One seed has no spread.
    values = [metric.scale * value for value in values if value is not None]
    return " ± ".join(number(value, metric.decimals) for value in values)


def mean_and_interval(difference: Difference, metric: Metric) -> tuple[str, str]:
    """Formats a difference and its 95 % interval: ("+0.31", "[+0.10, +0.52]")."""
    mean, low, high = (
        number(metric.scale * value, metric.difference_decimals, "+")
        for value in (difference.mean, difference.low, difference.high)
    )
    return mean, f"[{low}, {high}]"


def listed(names: Sequence[str]) -> str:
    """Returns "a, b and c"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def p_value(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def _results(labels, rows, metrics, cost):
    """Returns the grid of means, with columns of alignment error, cost and verdicts if any."""
    columns = {
        "": labels,
        "seeds": [_seeds(row.group) for row in rows],
        "parameters": [_parameters(row.group) for row in rows],
    }
    # Only where runs ended when they were flat does a table need it.
    if steps := steps_made([row.group for row in rows]):
        columns[STEPS] = [made or MISSING for made in steps]
    for metric in metrics:
        columns[metric.heading] = _means(metric, rows)
    # Only corpora with known alignments have an alignment error, for instance.
    for metric in OF_ATTENTION:
        if any(row.group.summary(metric.key) for row in rows):
            columns[metric.heading] = _means(metric, rows)
    for measure in COSTS if cost else ():
        # Runs of earlier versions know less of their cost.
        if any(row.group.summary(measure.key) for row in rows):
            texts = [measure.text_of_row(row.group) or MISSING for row in rows]
            columns[measure.heading] = texts
    verdicts = _verdicts(labels, rows, metrics)
    if any(verdicts):
        columns[VERDICTS] = verdicts
    return Grid("Results", tuple(columns), tuple(zip(*columns.values(), strict=True)))


def _verdicts(labels, rows, metrics):
    """Returns the verdict of each row, with its base where that is not the table's."""
    base = comparison.base_of(row.group for row in rows)
    label_of = {id(row.group): label for label, row in zip(labels, rows, strict=True)}
    cells = []
    for row in rows:
        text = verdict(row, metrics)
        if text and row.base is not base:
            text += f" (against {label_of[id(row.base)]})"
        cells.append(text)
    return cells


def _seeds(group):
    finished = len(group.finished)
    total = len(group.trials)
    return str(total) if finished == total else f"{finished} of {total}"


def _parameters(group):
    summary = group.summary("parameters")
    return f"{summary.mean:,.0f}" if summary else MISSING


def _means(metric, rows):
    return [measured(row.group.summary(metric.key), metric) for row in rows]


def _differences(metric, labels, rows):
    """Returns the grid of one metric's differences to base and the paper's numbers.

    None where there are neither.
    """
    has_ours = any(metric.key in row.differences for row in rows)
    has_papers = metric.published and has_published(rows)
    if not (has_ours or has_papers):
        return None
    headings = ["", metric.heading]
    columns = [labels, _means(metric, rows)]
    if has_ours:
        headings += ["difference", "95 % interval", "p", "d", "runs", "verdict"]
        columns += zip(*(_difference_cells(metric, row) for row in rows), strict=True)
    if has_papers:
        headings += ["paper", "paper’s difference", "paper’s order"]
        columns += zip(*_paper_cells(metric, rows), strict=True)
    heading = metric.heading
    if metric.name.islower():
        # Names with capitals, as chrF, stay as they are.
        heading = heading[0].upper() + heading[1:]
    cells = tuple(zip(*columns, strict=True))
    return Grid(f"{heading}: differences to base", tuple(headings), cells)


def _difference_cells(metric, row):
    difference = row.differences.get(metric.key)
    verdict = row.verdicts.get(metric.key)
    if difference is None:
        return *(MISSING,) * 5, str(verdict or MISSING)
    return (
        *mean_and_interval(difference, metric),
        p_value(difference.p),
        number(difference.d, 2, "+"),
        str(difference.runs),
        str(verdict),
    )


def _paper_cells(metric, rows):
    """Returns, for each row, the paper's number, its difference to base, and whether ours
    has the same sign."""
    base = comparison.base_of(row.group for row in rows)
    of_base = next((row.published for row in rows if row.group is base), None)
    cells = []
    for row in rows:
        if row.published is None:
            cells.append((MISSING,) * 3)
            continue
        value = getattr(row.published, metric.key)
        # The paper printed single runs: its differences have no interval.
        difference = MISSING
        if of_base and row.group is not base:
            difference = f"{value - getattr(of_base, metric.key):+.2f}"
        cells.append((f"{value:g}", difference, row.ordering[metric.key] or MISSING))
    return cells


def _value(value):
    return f"{value:g}" if isinstance(value, float) else one_line(str(value))


def _base_note(results):
    keys = varied(results)
    if not (results.base and keys):
        return ""
    names = short_names(keys, flatten_settings(results.base))
    values = {key: look_up_setting(results.base, key) for key in keys}
    listed = ", ".join(f"{names[key]}={_value(values[key])}" for key in keys)
    return f"base: {listed}" + (f" ({results.config})" if results.config else "")


def _metrics_note(results, rows, metrics):
    finished = results.with_status("finished")
    if not finished:
        return ""
    validation = [m.name for m in metrics if m.split == "validation"]
    test = [m.name for m in metrics if m.split == "test"]
    parts = []
    if validation:
        unit = ", per token" if PERPLEXITY in metrics else ""
        parts.append(f"{listed(validation)}: validation{unit}")
    if test:
        # Old runs may lack the number, and runs on several corpora have several.
        count = _distinct(trial.result.get("test_sentences") for trial in finished)
        sentences = f"{count} test sentences" if count else "test sentences"
        parts.append(f"{listed(test)}: {sentences}")
    if any(row.group.summary(ALIGNMENT_ERROR.key) for row in rows):
        parts.append(
            "alignment error: how often the last layer’s attention to the source, in the "
            "mean over heads, is most on another word than the one translated (Och and "
            "Ney 2003)"
        )
    if any(row.group.summary(FIRST_TOKEN_MASS.key) for row in rows):
        parts.append(
            "first-token mass, entropy: of the weights of self-attention, means over "
            "queries, heads and layers"
        )
    if any(len(row.group.finished) > 1 for row in rows):
        parts.append("±: sample standard deviation over seeds")
    return "; ".join(parts)


def _score_notes(results, metrics):
    """Returns what trials say of their scores, each once."""
    found = {}
    for trial in results.with_status("finished"):
        of_trial = trial.result.get("notes")
        if isinstance(of_trial, dict):
            found |= {(m.key, of_trial.get(m.key)): None for m in metrics}
    return [one_line(note) for _, note in found if isinstance(note, str)]


def _difference_notes(rows):
    notes = ()
    if any(row.differences for row in rows):
        notes += (
            "difference: row − base; all intervals of this report hold at once with 95 % "
            "probability, and p is two-sided and corrected for all rows and metrics: one "
            "model of the whole table, over seeds and, where the trials kept them, "
            "sentences; d: difference over the standard deviation of a run; would have "
            "shown: with probability 0.8; more seeds: until a difference of this size is "
            "shown, for this row and base",
        )
    if has_published(rows):
        notes += (
            "paper: Table 3 of “Attention Is All You Need”, newstest2013, single runs; "
            "paper’s order: whether our difference has the sign of the paper’s",
        )
    return notes


def _distinct(values):
    return " / ".join(dict.fromkeys(str(value) for value in values if value))
