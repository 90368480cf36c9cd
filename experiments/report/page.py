"""Renders report.html: one page that needs no network, with tables, figures and maps."""

import base64
import functools
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from experiments.errors import one_line
from experiments.evaluation.metrics import METRICS, Metric
from experiments.report.comparison import Row
from experiments.report.figures import curves, differences, heat_maps, lengths, sizes
from experiments.report.figures import style as line_styles
from experiments.report.heads import grids, head_tables, pictures
from experiments.report.results import (
    Example,
    Results,
    TrialResult,
    look_up_setting,
    read_examples,
    read_positions,
    read_sentences,
)
from experiments.report.table import (
    Table,
    base_settings,
    mean_and_interval,
    provenance,
    report_title,
)

MAX_POINTS = 40
"""Rows of a forest plot and points of a scatter plot."""

MAX_HEAT_MAPS = 12
"""Rows whose heads' entropies are drawn."""

MAX_MAPS = 40
"""Rows whose attention maps the page holds, as long as they take less than MAPS_SIZE."""

MAPS_SIZE = 16_000_000
"""Characters of packed attention maps in the page."""


class Figure(NamedTuple):
    """Holds a picture that stands under its own heading."""

    title: str
    svg: str
    caption: str


class Maps(NamedTuple):
    """Holds the examples of one run that stands for its row."""

    label: str
    trial: TrialResult
    examples: Sequence[Example]


def render_page(
    results: Results,
    rows: Sequence[Row],
    table: Table,
    metrics: Sequence[Metric] = METRICS,
) -> str:
    """Returns report.html."""
    maps = _maps(table, rows)
    shown_maps = attention_maps(maps)
    # Maps come from finished trials, so other rows are not left out of them.
    finished = sum(bool(row.group.finished) for row in rows)
    heads = head_tables(table, rows)
    # Later rows would repeat the first ones' lines.
    styled = min(len(rows), line_styles.LINES)
    # The script is within the page, which so needs no other file and no network.
    script = (Path(__file__).parent / "page.js").read_text(encoding="utf-8")
    digest = hashlib.sha256(script.encode()).digest()
    figures = [
        *_row_figures(table, rows, metrics),
        *_entropies(maps, finished),
        *(Figure(*picture) for picture in pictures(heads)),
    ]
    return _template().render(
        # The browser runs this script and no other, whatever the page may come to hold.
        script=script,
        script_digest=base64.b64encode(digest).decode(),
        title=report_title(results),
        table=table,
        provenance=provenance(results),
        settings=json.dumps(base_settings(results), indent=2),
        styles=[line_styles.line_style(row) for row in range(styled)],
        forests={metric.key: _forest(table, rows, metric) for metric in metrics},
        most_rows=MAX_POINTS,
        figures=figures,
        heads=grids(heads),
        positions=_position_figures(results),
        attention=shown_maps,
        maps_note="One run of each row." + _first(len(shown_maps), finished),
    )


def attention_maps(rows: Sequence[Maps]) -> list[dict[str, Any]]:
    """Returns what the page's script draws, for as many rows as fit in MAPS_SIZE.

    The first row is always among them.
    """
    shown = []
    size = 0
    for row in rows:
        shown.append(_attention(row))
        for example in shown[-1]["examples"]:
            size += sum(len(maps["weights"]) for maps in example["maps"].values())
        if size > MAPS_SIZE:
            # The row that was too much is left out, unless it is the only one.
            return shown[:-1] or shown
    return shown


@functools.cache
def _template():
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        # What files say is text, never markup.
        autoescape=True,
        # A misspelt name in the template is an error, and not an empty place in the
        # page.
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2")


def _forest(table, rows, metric) -> tuple[str | None, str]:
    """Returns a metric's forest plot, and what of the table it leaves out."""
    lines = []
    for label, row in zip(table.labels, rows, strict=True):
        if difference := row.differences.get(metric.key):
            text = " ".join(mean_and_interval(difference, metric))
            lines.append((label, difference, row.verdicts[metric.key].words, text))
    shown = lines[:MAX_POINTS]
    svg = differences.forest(shown, metric.heading, metric.scale)
    return svg, _first(MAX_POINTS, len(lines))


def _row_figures(table, rows, metrics) -> list[Figure]:
    """Draws perplexity over parameters, training curves, and metrics by length.

    Figures without anything to show are left out.
    """
    groups = [row.group for row in rows]
    named = list(zip(table.labels, groups, strict=True))
    points = [
        (label, group.summary("parameters"), group.summary("perplexity"))
        for label, group in named[:MAX_POINTS]
    ]
    lined = named[: line_styles.LINES]
    trials = [(label, group.trials) for label, group in lined]
    sentences = []
    for label, group in lined:
        arrays = [read_sentences(trial, metrics) for trial in group.finished]
        sentences.append((label, arrays))
    trained = _trained_length([group for _, group in lined])
    more_lines = _first(line_styles.LINES, len(rows))
    figures = [
        Figure(
            "Perplexity and size",
            sizes.size_and_perplexity(points),
            "Mean over seeds, ± their standard deviation."
            + _first(MAX_POINTS, len(rows)),
        ),
        Figure(
            "Training",
            curves.training_curves(trials),
            "A colour for each row of the table: the mean over the seeds that logged a "
            "step, and a band from their lowest to their highest value." + more_lines,
        ),
        Figure(
            "By length",
            lengths.by_length(sentences, trained, metrics),
            "Sentences by the length of their source, mean over seeds; right of the dotted "
            "line, where there is one, are lengths that training did not have."
            + more_lines,
        ),
    ]
    return [figure for figure in figures if figure.svg]


def _trained_length(groups) -> int | None:
    """Returns the longest sentence that training could have, if all rows have the same."""
    # Rows that were trained on other lengths have no common border.
    longest = set()
    for group in groups:
        for trial in group.finished:
            longest.add(look_up_setting(trial.config, "data.max_length"))
    length = longest.pop() if len(longest) == 1 else None
    # A stranger's config.json may have anything here.
    return length if type(length) is int else None


def _entropies(maps, finished) -> list[Figure]:
    rows = [(row.label, row.examples) for row in maps[:MAX_HEAT_MAPS]]
    svg = heat_maps.head_entropies(rows)
    if not svg:
        return []
    caption = (
        "How widely each head looks: −Σ w ln w, the mean over queries and over the kept "
        "test sentences, in one run of each row (the heads of two runs do not "
        "correspond). 0 is one token."
    )
    caption += _first(MAX_HEAT_MAPS, finished)
    return [Figure("Entropy of attention", svg, caption)]


def _first(most, total) -> str:
    return f" Shown are the first {most} of {total} rows." if total > most else ""


def _maps(table, rows) -> list[Maps]:
    """Reads the first finished trial of each row that kept any examples.

    At most MAX_MAPS rows are read: the files are large.
    """
    maps = []
    for label, row in zip(table.labels, rows, strict=True):
        if len(maps) == MAX_MAPS:
            break
        for trial in row.group.finished:
            if examples := read_examples(trial):
                maps.append(Maps(label, trial, examples))
                break
    return maps


def _attention(row: Maps) -> dict[str, Any]:
    """Returns texts, tokens, and for each kind the weights of all layers and heads."""
    examples = []
    for example in row.examples:
        maps = {}
        for kind, weights in example.attention.items():
            queries, keys = example.axes(kind)
            layers, heads = weights.shape[:2]
            maps[kind] = {
                "layers": layers,
                "heads": heads,
                "queries": queries,
                "keys": keys,
                "weights": heat_maps.packed_weights(weights),
            }
        texts = {
            "source": example.source,
            "reference": example.reference,
            "translation": example.translation,
        }
        examples.append({**texts, "maps": maps})
    return {"name": f"{row.label}, seed {row.trial.seed}", "examples": examples}


def _position_figures(results) -> list[str]:
    """Draws a heat map for each kind of position encoding.

    It is that of the first finished trial that kept its table.
    """
    kinds: dict[str, TrialResult] = {}
    for trial in results.with_status("finished"):
        # The setting may name a user's own encoding, and be any text.
        kind = one_line(look_up_setting(trial.config, "model.positions", "positions"))
        if kind not in kinds and read_positions(trial) is not None:
            kinds[kind] = trial
    figures = []
    for kind, trial in kinds.items():
        # Only learned tables differ from one trial to the next.
        title = f"{kind} ({trial.name})" if kind == "learned" else kind
        figures.append(heat_maps.position_table(read_positions(trial), title))
    return figures
