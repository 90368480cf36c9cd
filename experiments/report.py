"""The report of a workdir: its table, report.md, report.csv and report.html, all from its files alone.

The same files give the same bytes, so a report can be made again at any time, while the sweep runs or years later.
"""

import csv
import dataclasses
import io
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import rich.box
import rich.console
import rich.table
import rich.text

from experiments import figures, ledger, statistics
from experiments.files import write_text
from experiments.ledger import Ledger, Trial

HEADINGS = ("", "seeds", "parameters", "perplexity", "BLEU", "chrF", "exact match, %")
METRICS = ("parameters", "perplexity", "bleu", "chrf", "exact_match", "steps", "seconds")
"""What report.csv takes from a result, one column each; exact_match is a fraction there."""


@dataclasses.dataclass(frozen=True)
class Table:
    """The ablation table in text: a row a point of the sweep, and what its cells mean."""

    rows: tuple[tuple[str, ...], ...]
    """Cells as HEADINGS names them: what the point changes against the base, then numbers, mean ± spread."""
    notes: tuple[str, ...]
    problems: tuple[tuple[str, str, str], ...]
    """(name, status, one line why) of each trial without a result."""


@dataclasses.dataclass(frozen=True)
class Report:
    """What `write` wrote."""

    table: Table
    markdown: Path
    csv: Path
    html: Path


def write(workdir: str | Path) -> Report:
    """Writes report.md, report.csv and report.html into `workdir`, each whole or not at all.

    Raises LedgerError if `workdir` holds neither a sweep nor a single run.
    """
    book = ledger.read(workdir)
    rows = table(book)
    report = Report(rows, *(book.workdir / f"report.{ending}" for ending in ("md", "csv", "html")))
    write_text(report.markdown, markdown(book, rows))
    write_text(report.csv, trials_csv(book))
    write_text(report.html, html(book, rows))
    return report


def table(book: Ledger) -> Table:
    """The ablation table of `book`: trials grouped over their seeds, in the order of the sweep."""
    groups = _groups(book)
    notes = [note for note in (_base_note(book, groups), _metrics_note(book)) if note]
    problems = tuple((t.name, t.status, t.error) for status in ("failed", "unfinished") for t in book.of(status))
    labels = _labels(book, groups)
    return Table(tuple((label, *_cells(group)) for label, group in zip(labels, groups, strict=True)),
                 tuple(notes), problems)


def show(rows: Table, console: rich.console.Console | None = None) -> None:
    """Prints the table: drawn in a terminal, without chrF in a narrow one, in plain aligned columns elsewhere."""
    console = console or rich.console.Console()
    drawn = console.is_terminal
    lines = [rich.text.Text(note, style="dim") for note in rows.notes]
    lines += [rich.text.Text(f"{status}: {name}: {why}", style="red" if status == "failed" else "yellow")
              for name, status, why in rows.problems]
    for part in [_drawn(rows, console.width) if drawn else _plain(rows), *lines]:
        console.print(part, soft_wrap=not drawn)


def markdown(book: Ledger, rows: Table) -> str:
    """report.md: the table, the trials without a result, and where it all ran."""
    lines = [f"# {_markdown_text(_title(book))}", "", _markdown_row(HEADINGS),
             _markdown_row(["---", *["---:"] * (len(HEADINGS) - 1)]), *map(_markdown_row, rows.rows), ""]
    for note in rows.notes:
        lines += [_markdown_text(note), ""]
    if rows.problems:
        lines += ["## Trials without a result", "", _markdown_row(("trial", "status", "why")),
                  _markdown_row(["---"] * 3), *map(_markdown_row, rows.problems), ""]
    lines += ["## What ran", ""]
    lines += [f"- {_markdown_text(term)}: {_markdown_text(value)}" for term, value in _provenance(book)]
    return "\n".join([*lines, "", "Curves, position encodings and attention maps: report.html; a line a trial: "
                                  "report.csv.", ""])


def trials_csv(book: Ledger) -> str:
    """report.csv: a line a trial, with a column for each setting that the sweep varies."""
    keys = _varied(book)
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, ["name", *keys, "seed", "status", *METRICS], lineterminator="\n")
    writer.writeheader()
    for trial in book.trials:
        result = trial.result if trial.status == "finished" else {}
        writer.writerow({"name": trial.name, "seed": trial.seed, "status": trial.status}
                        | {key: trial.point.get(key, ledger.look_up(book.base, key)) for key in keys}
                        | {metric: result.get(metric) for metric in METRICS})
    return buffer.getvalue()


def html(book: Ledger, rows: Table) -> str:
    """report.html: one page that needs no network, with curves, position encodings and attention maps."""
    groups, labels = _groups(book), [row[0] for row in rows.rows]
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True,
                                     undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("report.html.j2").render(
        title=_title(book), table=rows, headings=HEADINGS, provenance=_provenance(book),
        counts={status: len(book.of(status)) for status in ("finished", "failed", "unfinished")},
        settings=json.dumps(_base(book), indent=2),
        styles=[figures.line_style(row) for row in range(len(labels))],
        curves=figures.training_curves([(label, group.trials) for label, group in zip(labels, groups, strict=True)]),
        positions=_position_figures(book),
        attention=[_attention(f"{label}, seed {trial.seed}", kept)
                   for label, group in zip(labels, groups, strict=True)
                   for trial in group.finished if (kept := ledger.examples(trial))])


def _groups(book) -> list[statistics.Group]:
    return statistics.groups(book.trials, book.changes)


def _base(book) -> Mapping[str, Any]:
    """The settings that rows are compared with; a single run's own."""
    return book.base or next((trial.config for trial in book.trials if trial.config), {})


def _varied(book) -> list[str]:
    return list(dict.fromkeys(key for trial in book.trials for key in book.changes(trial)))


def _labels(book, groups) -> list[str]:
    names = short_names(_varied(book), _flat(_base(book)))
    unchanged = "base" if book.base else _title(book)
    return [", ".join(f"{names[key]}={_value(value)}" for key, value in group.point.items()) or unchanged
            for group in groups]


def short_names(keys: Iterable[str], known: Iterable[str] = ()) -> dict[str, str]:
    """{dotted key: its last component, or the whole key where another of `keys` or `known` ends the same}."""
    keys = list(keys)
    last = [key.rpartition(".")[2] for key in {*keys, *known}]
    return {key: key if last.count(name := key.rpartition(".")[2]) > 1 else name for key in keys}


def _flat(settings, path="") -> dict[str, Any]:
    """Nested settings as {dotted key: value}."""
    flat = {}
    for name, value in settings.items():
        flat |= _flat(value, f"{path}{name}.") if isinstance(value, Mapping) else {f"{path}{name}": value}
    return flat


def _value(value) -> str:
    return f"{value:g}" if isinstance(value, float) else ledger.one_line(str(value))


def _cells(group) -> tuple[str, ...]:
    done, total = len(group.finished), len(group.trials)
    parameters = group.summary("parameters")
    return (str(total) if done == total else f"{done} of {total}",
            f"{parameters.mean:,.0f}" if parameters else "–",
            _measured(group.summary("perplexity"), 3), _measured(group.summary("bleu"), 1),
            _measured(group.summary("chrf"), 1), _measured(group.summary("exact_match"), 1, percent=True))


def _measured(summary, decimals, percent=False) -> str:
    if summary is None:
        return "–"
    scale = 100 if percent else 1
    numbers = [scale * number for number in (summary.mean, summary.spread) if number is not None]
    # A diverged trial's perplexity has more digits than a cell: 1.2e+17.
    return " ± ".join(f"{x:.3g}" if math.isfinite(x) and abs(x) >= 1e5 else f"{x:.{decimals}f}" for x in numbers)


def _base_note(book, groups) -> str:
    keys = _varied(book)
    if not (book.base and keys):
        return ""
    names = short_names(keys, _flat(book.base))
    values = ", ".join(f"{names[key]}={_value(ledger.look_up(book.base, key))}" for key in keys)
    return f"base: {values}" + (f" ({book.config})" if book.config else "")


def _metrics_note(book) -> str:
    finished = book.of("finished")
    if not finished:
        return ""
    sentences = _distinct(trial.result.get("test_sentences") for trial in finished)
    note = "perplexity: validation, per word piece; BLEU, chrF and exact match: "
    note += f"{sentences} test sentences" if sentences else "test sentences"
    if any(len(group.finished) > 1 for group in _groups(book)):
        note += "; ±: sample standard deviation over seeds"
    return note


def _title(book) -> str:
    if not book.config:
        return ledger.one_line(book.trials[0].name)
    return f"{Path(book.config).stem}: {' × '.join(book.sweeps)}" if book.sweeps else Path(book.config).stem


def _provenance(book) -> list[tuple[str, str]]:
    """(term, value) of what ran where; trials that differ in one give all its values."""
    records = [trial.record for trial in book.trials if trial.record]
    started = sorted(str(record["started"]) for record in records if record.get("started"))
    versions = dict.fromkeys(f"{name} {version}" for r in records for name, version in r.get("versions", {}).items())
    found = [("config", book.config), ("sweeps", ", ".join(book.sweeps)),
             ("trials", f"{len(book.of('finished'))} finished of {len(book.trials)}"),
             ("started", " to ".join(dict.fromkeys(started[:1] + started[-1:]))),
             ("git", _distinct(record.get("git") for record in records)),
             ("device", _distinct(f"{r.get('devices', 1)} × {r['device']}" for r in records if r.get("device"))),
             ("corpus", _distinct(record.get("corpus") for record in records)),
             ("corpus counts", _distinct(", ".join(f"{name} {count}" for name, count in
                                                   _flat(record.get("corpus_counts") or {}).items())
                                         for record in records)),
             ("vocabulary", _distinct(record.get("vocabulary") for record in records)),
             ("python", _distinct(record.get("python") for record in records)),
             ("versions", ", ".join(versions))]
    return [(term, ledger.one_line(value)) for term, value in found if value]


def _distinct(values) -> str:
    return " / ".join(dict.fromkeys(str(value) for value in values if value))


def _position_figures(book) -> list[str]:
    """A heat map for each kind of position encoding, from the first finished trial that kept its table."""
    kinds: dict[str, Trial] = {}
    for trial in book.of("finished"):
        kind = str(ledger.look_up(trial.config, "model.positions", "positions"))
        if kind not in kinds and ledger.positions(trial) is not None:
            kinds[kind] = trial
    return [figures.position_table(ledger.positions(trial), f"{kind} ({trial.name})" if kind == "learned" else kind)
            for kind, trial in kinds.items()]


def _attention(name: str, kept: Sequence[ledger.Example]) -> dict[str, Any]:
    """What the page's script draws: texts, word pieces, and for each kind the weights of all layers and heads."""
    return {"name": name, "examples": [
        {"source": example.source, "reference": example.reference, "translation": example.translation,
         "maps": {kind: {"layers": weights.shape[0], "heads": weights.shape[1],
                         "queries": example.axes(kind)[0], "keys": example.axes(kind)[1],
                         "weights": figures.packed_weights(weights)}
                  for kind, weights in example.attention.items()}}
        for example in kept]}


def _drawn(rows, width) -> rich.table.Table:
    fits = sum(_widths(rows)) + 2 * len(HEADINGS) <= width
    kept = [i for i, heading in enumerate(HEADINGS) if fits or heading != "chrF"]
    drawn = rich.table.Table(box=rich.box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for i in kept:
        heading = HEADINGS[i].replace("exact match", "exact\nmatch")
        drawn.add_column(heading, justify="right" if i else "left", no_wrap=i > 0, min_width=0 if i else 10)
    for row in rows.rows:
        drawn.add_row(*(rich.text.Text(row[i]) for i in kept))  # Text: a label such as [red] is no markup
    return drawn


def _plain(rows) -> rich.text.Text:
    widths = _widths(rows)
    return rich.text.Text("\n".join(
        "  ".join(cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in
                  enumerate(zip(row, widths, strict=True))).rstrip() for row in (HEADINGS, *rows.rows)))


def _widths(rows) -> list[int]:
    return [max(map(len, column)) for column in zip(HEADINGS, *rows.rows, strict=True)]


def _markdown_row(cells) -> str:
    return "| " + " | ".join(map(_markdown_text, cells)) + " |"


def _markdown_text(text) -> str:
    """`text` as itself in Markdown: no tag, table bar, emphasis, code or link comes of it."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\|*`\[\]])", r"\\\1", text)
