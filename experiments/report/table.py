"""Builds a report's words and numbers: the table, the differences to base, what ran where."""

import dataclasses
from collections.abc import Mapping, Sequence

from experiments.errors import one_line
from experiments.evaluation.metrics import (
    ALIGNMENT_ERROR,
    FIRST_TOKEN_MASS,
    OF_ATTENTION,
    Metric,
)
from experiments.report.cells import (
    MISSING,
    Grid,
    listed,
    mean_and_interval,
    measured,
    number,
    p_value,
    verdict_text,
)
from experiments.report.convergence import ADVICE, improving_note, steps_made
from experiments.report.costs import COSTS, NOTE
from experiments.report.factors import compared_in, factors_of
from experiments.report.finding import finding
from experiments.report.questions import USUAL, Question
from experiments.report.rows import (
    Row,
    base_of,
    name_of_base,
    short_names,
    value_text,
    varied,
)
from experiments.report.trial_files import Results, flatten_settings, look_up_setting
from experiments.settings.derived import leaders
from experiments.stats.summary import LEVEL

VERDICTS = "against base"
"""The heading of the column of verdicts."""

STEPS = "steps"


@dataclasses.dataclass(frozen=True)
class Table:
    """Holds the ablation table as text: a row for each point of the sweep, and notes."""

    results: Grid
    """Means ± spread over seeds, and how the rows compare with base if there is one."""
    notes: tuple[str, ...]
    differences: Mapping[str, Grid]
    """{metric key: differences to base and the paper's numbers}; all grids have all rows."""
    difference_notes: tuple[str, ...]
    problems: tuple[tuple[str, str, str], ...]
    """(name, status, reason on one line) of each trial without a result."""
    tuning: Grid | None = None
    """What --tune chose for each row, and the rows without it."""
    caption: tuple[str, ...] = ()
    """The notes as a paper has them: without paths and advice."""
    caution: str = ""
    """What a reader must know before the table; "" for nothing."""
    finding: str = ""
    """What the table shows, in a sentence or two, behind its caution."""


def result_table(
    results: Results,
    rows: Sequence[Row],
    cost: bool = False,
    caution: str = "",
    question: Question = USUAL,
    pairs: Sequence[Row] = (),
) -> Table:
    """Builds the ablation table of compared `rows`, with a column for each metric.

    With `cost` it has the columns of `experiments.report.costs` too. `question` is what was
    asked of the rows, and `pairs` are what was compared where that are not the rows.
    """
    metrics = results.metrics
    compared = pairs or rows
    own_base = name_of_base(rows)
    base = _base_note(results, own_base)
    improving = improving_note(rows)
    caption = (
        _derived_note(results, rows),
        _question_note(question),
        _metrics_note(results, rows),
        *_score_notes(results),
        _odd_note(compared),
        improving,
    )
    notes = (
        f"{base} ({results.config})" if base and results.config else base,
        *caption[:-1],
        f"{improving}; {ADVICE}" if improving else "",
        NOTE if cost else "",
    )
    # The paper's differences are to its base, and not of pairs.
    has_papers = not pairs and has_published(rows)
    known = compared, has_papers, "base" if pairs else own_base
    grids = {metric.key: _differences(metric, *known) for metric in metrics}
    differences = {key: grid for key, grid in grids.items() if grid}
    return Table(
        results=_results(rows, metrics, cost),
        notes=tuple(filter(None, notes)),
        caption=tuple(filter(None, (base, *caption))),
        differences=differences,
        difference_notes=_difference_notes(compared, has_papers) if differences else (),
        problems=tuple(_problems(results)),
        caution=caution,
        finding=" ".join(
            filter(None, (caution, finding(compared, metrics, bool(pairs))))
        ),
    )


def _problems(results):
    """Yields (name, status, why) of each trial without a result."""
    for status in ("failed", "diverged", "unfinished"):
        for trial in results.with_status(status):
            named = f"{trial.label}, seed {trial.seed}" if trial.label else ""
            yield named or one_line(trial.name), trial.status, trial.error


def _results(rows, metrics, cost):
    """Returns the grid of means, with columns of attention, cost and verdicts if any."""
    columns = {
        "seeds": [_seeds(row) for row in rows],
        "parameters": [_parameters(row) for row in rows],
    }
    # Only where runs ended when they were flat does a table need it.
    if steps := steps_made(rows):
        columns[STEPS] = [made or MISSING for made in steps]
    # Only corpora with known alignments have an alignment error, for instance.
    having = [m for m in OF_ATTENTION if any(row.summary(m.key) for row in rows)]
    for metric in (*metrics, *having):
        columns[metric.heading] = _means(metric, rows)
    for measure in COSTS if cost else ():
        # Runs of earlier versions have fewer of these numbers.
        if any(row.summary(measure.key) for row in rows):
            texts = [measure.text_of_row(row) or MISSING for row in rows]
            columns[measure.heading] = texts
    verdicts = []
    # Of a product the factors say which row it is, and what its base is.
    factors = factors_of(rows)
    is_told = len(compared_in(rows, factors)) == 1
    for row in rows:
        against = f" (against {row.against})" if row.against and not is_told else ""
        verdicts.append(verdict_text(row, metrics) + against)
    if any(verdicts):
        columns[VERDICTS] = verdicts
    names: dict[str, Sequence[str]] = {}
    for heading, texts in factors.items():
        # A sweep may have the name of another column.
        names[f"by {heading}" if heading in columns else heading] = texts
    names = names or {"": [row.name for row in rows]}
    return Grid.of("Results", names | columns, len(names))


def _seeds(row):
    finished = len(row.finished)
    total = len(row.trials)
    return str(total) if finished == total else f"{finished} of {total}"


def _parameters(row):
    summary = row.summary("parameters")
    return f"{summary.mean:,.0f}" if summary else MISSING


def _means(metric, rows):
    return [measured(row.summary(metric.key), metric) for row in rows]


def has_published(rows: Sequence[Row]) -> bool:
    """Returns whether the paper has numbers for any row other than the base."""
    base = base_of(rows)
    return any(row.published for i, row in enumerate(rows) if i != base)


def _differences(metric, rows, has_papers, base):
    """Returns the grid of one metric's differences to `base` and the paper's numbers.

    None where there are neither.
    """
    has_ours = any(metric.key in row.differences for row in rows)
    has_papers = has_papers and metric.published
    if not (has_ours or has_papers):
        return None
    headings = ["", metric.heading]
    columns = [[row.title for row in rows], _means(metric, rows)]
    if has_ours:
        headings += ["difference", "95 % interval", "p", "d", "runs", "verdict"]
        columns += zip(*(difference_cells(metric, row) for row in rows), strict=True)
    if has_papers:
        headings += ["paper", "paper’s difference", "paper’s order"]
        columns += zip(*(_paper_cells(metric, rows, row) for row in rows), strict=True)
    heading = metric.heading
    if metric.name.islower():
        # Names with capitals, as chrF, stay as they are.
        heading = heading[0].upper() + heading[1:]
    return Grid.of(
        f"{heading}: differences to {base}", dict(zip(headings, columns, strict=True))
    )


def difference_cells(metric: Metric, row: Row) -> tuple[str, ...]:
    """Returns a row's difference, interval, p, d, runs and verdict in one metric, as text."""
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


def _paper_cells(metric, rows, row):
    """Returns the paper's number for a row, its difference to base, and whether ours has
    the same sign."""
    if row.published is None:
        return (MISSING,) * 3
    value = getattr(row.published, metric.key)
    base = base_of(rows)
    # The paper printed single runs: its differences have no interval.
    difference = MISSING
    if base is not None and rows[base].published and row is not rows[base]:
        difference = f"{value - getattr(rows[base].published, metric.key):+.2f}"
    return f"{value:g}", difference, paper_order(metric, rows, row) or MISSING


def paper_order(metric: Metric, rows: Sequence[Row], row: Row) -> str:
    """Returns whether our difference has the sign of the paper's row − base.

    "supported", "contradicted" or "cannot tell"; "" where the paper has no such row, or one
    number for row and base, or where there is no difference of ours.
    """
    difference = row.differences.get(metric.key)
    of_base = rows[row.base].published if row.base is not None else None
    if difference is None or not (row.published and of_base):
        return ""
    gap = getattr(row.published, metric.key) - getattr(of_base, metric.key)
    # Where the paper printed the same number twice, it has no ordering.
    if gap == 0:
        return ""
    if difference.p >= LEVEL:
        return "cannot tell"
    return "supported" if (gap > 0) == (difference.mean > 0) else "contradicted"


def _base_note(results, own_base):
    """Says what the row called base has, though the rows may be compared with another."""
    keys = varied(results)
    if not (results.base and keys):
        return ""
    names = short_names(keys, flatten_settings(results.base))
    values = {key: look_up_setting(results.base, key) for key in keys}
    changes = ", ".join(f"{names[key]}={value_text(values[key])}" for key in keys)
    what = "base" if own_base == "base" else f"compared with {own_base}; the row base"
    return f"{what}: {changes}"


def _derived_note(results, rows):
    """Returns a note on the settings that names leave out, as others decide them."""
    names = short_names(varied(results), flatten_settings(results.base))
    following = {}
    for key, leader in leaders([row.point for row in rows]).items():
        following.setdefault(leader, []).append(names[key])
    parts = [
        f"{listed(keys)} with {names[leader]}" for leader, keys in following.items()
    ]
    return f"goes with others: {'; '.join(parts)}" if parts else ""


def _question_note(question):
    if question == USUAL:
        return ""
    of_same = f" of the same {listed(question.within)}" if question.within else ""
    if question.pairs:
        return f"compared: pairs of {listed(question.pairs)}{of_same}"
    return f"compared: each row with {question.base or 'the base'}{of_same}"


def _metrics_note(results, rows):
    finished = results.with_status("finished")
    if not finished:
        return ""
    validation = [m for m in results.metrics if m.split == "validation"]
    test = [m.name for m in results.metrics if m.split == "test"]
    parts = []
    for per_token, unit in ((True, ", per token"), (False, "")):
        names = [m.name for m in validation if m.per_token == per_token]
        if names:
            parts.append(f"{listed(names)}: validation{unit}")
    if test:
        # Old runs may lack the number, and runs on several corpora have several.
        count = _distinct(trial.result.get("test_sentences") for trial in finished)
        sentences = f"{count} test sentences" if count else "test sentences"
        parts.append(f"{listed(test)}: {sentences}")
    if any(row.summary(ALIGNMENT_ERROR.key) for row in rows):
        parts.append(
            "alignment error: how often the last layer’s attention to the source, in the "
            "mean over heads, is most on another word than the one translated (Och and "
            "Ney 2003)"
        )
    if any(row.summary(FIRST_TOKEN_MASS.key) for row in rows):
        parts.append(
            "first-token mass, entropy: of the weights of self-attention, means over "
            "queries, heads and layers"
        )
    if any(len(row.finished) > 1 for row in rows):
        parts.append("±: sample standard deviation over seeds")
    return "; ".join(parts)


def _odd_note(rows):
    """Names the rows that vary over seeds much more than the others."""
    odd = {row.name: row.times_as_variable for row in rows if row.times_as_variable}
    if not odd:
        return ""
    named = [f"{name} ({factor:.2g} times)" for name, factor in odd.items()]
    return (
        f"more variable over seeds than the other rows, and judged so: {listed(named)}"
    )


def _score_notes(results):
    """Returns the notes of trials on their scores, each once."""
    found = {}
    for trial in results.with_status("finished"):
        of_trial = trial.result.get("notes")
        if isinstance(of_trial, dict):
            notes = (note for note in of_trial.values() if isinstance(note, str))
            found |= dict.fromkeys(map(one_line, notes))
    return list(found)


def _difference_notes(rows, has_papers):
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
    if has_papers:
        notes += (
            "paper: Table 3 of “Attention Is All You Need”, newstest2013, single runs; "
            "paper’s order: whether our difference has the sign of the paper’s",
        )
    return notes


def provenance(results: Results) -> list[tuple[str, str]]:
    """Returns (term, value) of what ran where; all values where trials differ in one."""
    records = [trial.record for trial in results.trials if trial.record]
    distinct = lambda key: _distinct(record.get(key) for record in records)
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
        ("git", distinct("git")),
        ("device", _distinct(devices)),
        ("corpus", distinct("corpus")),
        ("corpus counts", _distinct(counts)),
        ("vocabulary", distinct("vocabulary")),
        ("python", distinct("python")),
        ("versions", ", ".join(versions)),
    ]
    return [(term, one_line(value)) for term, value in terms if value]


def _distinct(values):
    return " / ".join(dict.fromkeys(str(value) for value in values if value))
