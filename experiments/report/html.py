"""The report of a workdir: its table, report.md, .csv, .tex and .html, all from its files alone.

The same files give the same bytes, so a report can be made again at any time, while the sweep runs or years later.
"""

import base64
import dataclasses
import functools
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import rich.text

from experiments.errors import one_line
from experiments.report import comparison, figures, statistics
from experiments.report.comparison import Row
from experiments.report.heads import grids, head_tables, pictures
from experiments.report.results import (
    Example,
    Results,
    Trial,
    look_up_setting,
    read_examples,
    read_positions,
    read_results,
    read_sentences,
)
from experiments.report.table import (
    METRICS,
    Table,
    base_settings,
    mean_and_interval,
    provenance,
    report_title,
    result_table,
)
from experiments.report.text import to_csv, to_latex, to_markdown
from experiments.system.files import write_text

MOST_POINTS = 40
"""Rows of a forest plot and points of a scatter plot."""


MOST_HEAT_MAPS = 12
"""Rows whose heads' entropies are drawn."""


MOST_MAPS = 40
"""Rows whose attention maps the page holds, as long as they take less than MAPS_SIZE."""


MAPS_SIZE = 16_000_000
"""Characters of packed attention maps in the page."""


_COLOURS = {"failed": "red", "diverged": "red", "unfinished": "yellow"}


_WIDE_ONLY = ("parameters", "chrF", "alignment error, %")


@dataclasses.dataclass(frozen=True)
class Report:
    """What `write` wrote."""

    table: Table
    markdown: Path
    csv: Path
    latex: Path
    html: Path


def write_report(workdir: str | Path) -> Report:
    """Writes report.md, report.csv, report.tex and report.html into `workdir`, each whole or not at all.

    Raises LedgerError if `workdir` holds neither a sweep nor a single run.
    """
    book = read_results(workdir)
    rows = compare_rows(book)
    table = result_table(book, rows)
    report = Report(
        table,
        *(book.workdir / f"report.{ending}" for ending in ("md", "csv", "tex", "html")),
    )
    write_text(report.markdown, to_markdown(book, table))
    write_text(report.csv, to_csv(book))
    write_text(report.latex, to_latex(book, rows, table))
    write_text(report.html, render_page(book, rows, table))
    return report


def compare_rows(book: Results) -> list[Row]:
    """The trials of `book` grouped over their seeds, in the order of its sweep, each row compared with its base."""
    return comparison.compare(
        statistics.groups(book.trials, book.changes), read_sentences
    )


def print_table(table: Table, console: rich.console.Console | None = None) -> None:
    """Prints the results: drawn in a terminal, in plain aligned columns elsewhere."""
    console = console or rich.console.Console()
    drawn = console.is_terminal
    lines = [rich.text.Text(note, style="dim") for note in table.notes]
    lines += [
        rich.text.Text(f"{status}: {name}: {why}", style=_COLOURS[status])
        for name, status, why in table.problems
    ]
    for part in [_drawn(table) if drawn else _plain(table), *lines]:
        console.print(part, soft_wrap=not drawn)


class Figure(NamedTuple):
    """A picture under its own heading."""

    title: str
    svg: str
    caption: str


def render_page(book: Results, rows: Sequence[Row], table: Table) -> str:
    """report.html: one page that needs no network, with the tables, figures and attention maps."""
    examples = _examples(table, rows)
    maps, there = (
        attention_maps(examples),
        sum(bool(row.group.finished) for row in rows),
    )
    measured = head_tables(table, rows)
    script = (Path(__file__).parent / "page.js").read_text(encoding="utf-8")
    return _template().render(
        # The browser runs this script and no other, whatever the page should come to hold.
        script=script,
        script_digest=base64.b64encode(
            hashlib.sha256(script.encode()).digest()
        ).decode(),
        title=report_title(book),
        table=table,
        provenance=provenance(book),
        settings=json.dumps(base_settings(book), indent=2),
        styles=[
            figures.line_style(row) for row in range(min(len(rows), figures.LINES))
        ],
        forests=_forests(table, rows),
        most_rows=MOST_POINTS,
        figures=[
            *_row_figures(table, rows),
            *_entropies(examples, there),
            *(Figure(*drawn) for drawn in pictures(measured)),
        ],
        heads=grids(measured),
        positions=_position_figures(book),
        attention=maps,
        maps_note="One run of each row." + _first(len(maps), there),
    )


@functools.cache
def _template():
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2")


def _forests(table, rows) -> dict[str, tuple[str | None, str]]:
    """For each metric with differences: its forest plot, and what of the table it leaves out."""
    found = {}
    for metric in METRICS:
        shown = [
            (
                label,
                difference,
                row.verdicts[metric.key],
                " ".join(mean_and_interval(difference, metric)),
            )
            for label, row in zip(table.labels, rows, strict=True)
            if (difference := getattr(row, metric.key))
        ]
        found[metric.key] = (
            figures.forest(shown[:MOST_POINTS], metric.heading, metric.scale),
            _first(MOST_POINTS, len(shown)),
        )
    return found


def _row_figures(table, rows) -> list[Figure]:
    """Perplexity over parameters, over steps and, with exact match, by length; those that have anything to show."""
    named = list(zip(table.labels, [row.group for row in rows], strict=True))
    sizes = [
        (label, group.summary("parameters"), group.summary("perplexity"))
        for label, group in named[:MOST_POINTS]
    ]
    lined = named[: figures.LINES]
    curves = figures.training_curves([(label, group.trials) for label, group in lined])
    lengths = figures.by_length(
        [
            (label, [read_sentences(trial) for trial in group.finished])
            for label, group in lined
        ],
        _trained([group for _, group in lined]),
    )
    found = [
        Figure(
            "Perplexity and size",
            figures.size_and_perplexity(sizes),
            "Mean over seeds, ± their standard deviation."
            + _first(MOST_POINTS, len(rows)),
        ),
        Figure(
            "Training",
            curves,
            "A colour for each row of the table: the mean over the seeds that logged a step, "
            "and a band from their lowest to their highest value."
            + _first(figures.LINES, len(rows)),
        ),
        Figure(
            "By length",
            lengths,
            "Sentences by the length of their source, mean over seeds; right of the dotted "
            "line, where there is one, are lengths that training did not have."
            + _first(figures.LINES, len(rows)),
        ),
    ]
    return [figure for figure in found if figure.svg]


def _trained(groups) -> int | None:
    """The longest sentence that training could have, where all rows have the same."""
    longest = {
        look_up_setting(trial.config, "data.max_length")
        for group in groups
        for trial in group.finished
    }
    return (
        longest.pop()
        if len(longest) == 1 and all(type(one) is int for one in longest)
        else None
    )


def _entropies(examples, there) -> list[Figure]:
    svg = figures.head_entropies(
        [(label, kept) for label, _, kept in examples[:MOST_HEAT_MAPS]]
    )
    caption = (
        "How widely each head looks: −Σ w ln w, the mean over queries and over the kept test sentences, in one "
        "run of each row (the heads of two runs do not correspond). 0 is one token."
    )
    return (
        [Figure("Entropy of attention", svg, caption + _first(MOST_HEAT_MAPS, there))]
        if svg
        else []
    )


def _first(most, there) -> str:
    return f" Shown are the first {most} of {there} rows." if there > most else ""


def _examples(table, rows) -> list[tuple[str, Trial, list[Example]]]:
    """(label, trial, examples) of the first finished trial of each row that kept any; for the first MOST_MAPS rows."""
    found = []
    for label, row in zip(table.labels, rows, strict=True):
        if len(found) == MOST_MAPS:
            break
        kept = next(
            (
                (trial, kept)
                for trial in row.group.finished
                if (kept := read_examples(trial))
            ),
            None,
        )
        if kept:
            found.append((label, *kept))
    return found


def attention_maps(
    examples: Sequence[tuple[str, Trial, Sequence[Example]]],
) -> list[dict[str, Any]]:
    """What the page's script draws, of as many rows as MAPS_SIZE has room for, of one at least."""
    maps, size = [], 0
    for label, trial, kept in examples:
        maps.append(_attention(f"{label}, seed {trial.seed}", kept))
        size += sum(
            len(drawn["weights"])
            for example in maps[-1]["examples"]
            for drawn in example["maps"].values()
        )
        if size > MAPS_SIZE:
            return maps[:-1] or maps
    return maps


def _attention(name: str, kept: Sequence[Example]) -> dict[str, Any]:
    """Texts, tokens, and for each kind the weights of all layers and heads."""
    return {
        "name": name,
        "examples": [
            {
                "source": example.source,
                "reference": example.reference,
                "translation": example.translation,
                "maps": {
                    kind: {
                        "layers": weights.shape[0],
                        "heads": weights.shape[1],
                        "queries": example.axes(kind)[0],
                        "keys": example.axes(kind)[1],
                        "weights": figures.packed_weights(weights),
                    }
                    for kind, weights in example.attention.items()
                },
            }
            for example in kept
        ],
    }


def _position_figures(book) -> list[str]:
    """A heat map for each kind of position encoding, from the first finished trial that kept its table."""
    kinds: dict[str, Trial] = {}
    for trial in book.of("finished"):
        kind = one_line(look_up_setting(trial.config, "model.positions", "positions"))
        if kind not in kinds and read_positions(trial) is not None:
            kinds[kind] = trial
    return [
        figures.position_table(
            read_positions(trial),
            f"{kind} ({trial.name})" if kind == "learned" else kind,
        )
        for kind, trial in kinds.items()
    ]


def _drawn(table) -> rich.table.Table:
    drawn = rich.table.Table(
        box=rich.box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0)
    )
    kept = _narrow(table)
    for i in kept:
        heading, text = (
            table.results.headings[i],
            i == 0 or table.results.headings[i] == "against base",
        )
        drawn.add_column(
            heading.replace("exact match", "exact\nmatch"),
            justify="left" if text else "right",
            no_wrap=not text,
            min_width=10 if text else 0,
        )
    for row in table.results.rows:
        drawn.add_row(
            *(rich.text.Text(row[i]) for i in kept)
        )  # Text: a label such as [red] is no markup
    return drawn


def _plain(table) -> rich.text.Text:
    lines = [
        [row[i] for i in _narrow(table)]
        for row in (table.results.headings, *table.results.rows)
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    last = len(widths) - 1 if "against base" in lines[0] else None
    return rich.text.Text(
        "\n".join(
            "  ".join(
                cell.ljust(width) if i in (0, last) else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )
    )


def _narrow(table) -> list[int]:
    return [
        i
        for i, heading in enumerate(table.results.headings)
        if heading not in _WIDE_ONLY
    ]
