"""Draws the figures of a report, each with its title and caption."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from experiments.errors import one_line
from experiments.evaluation.metrics import METRICS, PERPLEXITY, Metric
from experiments.report import answers
from experiments.report.choice import notable
from experiments.report.comparison import Row, base_of
from experiments.report.costs import quality_and_cost
from experiments.report.figures import curves, differences, heat_maps, lengths
from experiments.report.figures import style as line_styles
from experiments.report.figures.answers import accuracy_by
from experiments.report.figures.scatter import Panel, scatter
from experiments.report.figures.style import Picture
from experiments.report.heads import Measured, head_tables, pictures
from experiments.report.maps import MAX_MAPS, Maps, read_maps
from experiments.report.products import MOST_LINES, product_pictures
from experiments.report.results import (
    Results,
    TrialResult,
    look_up_setting,
    read_positions,
    read_sentences,
)
from experiments.report.table import Table, mean_and_interval

MAX_LINES = 40
"""Rows of a forest plot."""

MAX_HEAT_MAPS = 12
"""Rows whose heads' entropies are drawn."""


class Figure(NamedTuple):
    """Holds a picture that stands under its own heading."""

    title: str
    picture: Picture
    caption: str

    @property
    def id(self) -> str:
        """The picture's name on the page and as a file."""
        return file_name(self.picture.name)


@dataclasses.dataclass(frozen=True)
class PageFigures:
    """Holds all figures of a report, and what they were drawn from."""

    forests: Mapping[str, Figure]
    """{metric key: differences to base}."""
    figures: Sequence[Figure]
    positions: Sequence[Figure]
    lined: Sequence[int]
    """The places of the rows that have a line style."""
    maps: Sequence[Maps]
    maps_note: str
    heads: Sequence[tuple[str, Measured]]

    def all(self) -> Iterator[Figure]:
        """Returns every figure once."""
        yield from self.forests.values()
        yield from self.figures
        yield from self.positions


def draw_figures(
    results: Results,
    rows: Sequence[Row],
    table: Table,
    metrics: Sequence[Metric] = METRICS,
    cost: bool = False,
) -> PageFigures:
    """Draws the figures of a report, with `cost` that of quality against cost too.

    Where there are many rows, a figure has those whose differences are decided or largest.
    """
    maps = read_maps(table.labels, rows, metrics)
    # Maps come from finished trials, so other rows are not left out of them.
    finished = sum(bool(row.group.finished) for row in rows)
    heads = head_tables(table, rows)
    base = base_of(row.group for row in rows)
    # The base has the first style, which is black.
    lined = notable(rows, line_styles.LINES, metrics)
    lined.sort(key=lambda i: rows[i].group is not base)
    figures = [
        *_products(results, rows, metrics),
        *_row_figures(table, rows, lined, metrics, cost),
        *_entropies(maps, rows, finished),
        *_of_heads(heads),
    ]
    forests = {metric.key: _forest(table, rows, metric, metrics) for metric in metrics}
    return PageFigures(
        forests={key: figure for key, figure in forests.items() if figure},
        figures=figures,
        positions=_position_figures(results),
        lined=lined,
        maps=maps,
        maps_note="One run of each row." + _chosen(min(finished, MAX_MAPS), finished),
        heads=heads,
    )


def file_name(name: str) -> str:
    """Returns a picture's name as that of a file: letters, digits and hyphens."""
    letters = [letter if letter.isalnum() else "-" for letter in name.lower()]
    return "-".join(filter(None, "".join(letters).split("-")))[:80] or "figure"


def _chosen(shown, total) -> str:
    """Says which rows a figure has, where it has not all."""
    if shown >= total:
        return ""
    return (
        f" Shown are {shown} of {total} rows: those whose differences are decided or "
        "largest."
    )


def _forest(table, rows, metric, metrics) -> Figure | None:
    """Draws a metric's forest plot; None where nothing is compared."""
    having = [i for i, row in enumerate(rows) if metric.key in row.differences]
    chosen = notable([rows[i] for i in having], MAX_LINES, metrics)
    lines = []
    for i in (having[place] for place in chosen):
        difference = rows[i].differences[metric.key]
        text = " ".join(mean_and_interval(difference, metric))
        words = rows[i].verdicts[metric.key].words
        lines.append((table.labels[i], difference, words, text))
    picture = differences.forest(lines, metric.heading, metric.scale)
    if picture is None:
        return None
    caption = (
        "Row − base with its interval; all intervals of the report hold at once with 95 % "
        "probability. A filled dot is better or worse."
    )
    caption += _chosen(len(lines), len(having))
    return Figure(f"{metric.name}: differences to base", picture, caption)


def _products(results, rows, metrics) -> list[Figure]:
    captions = (
        "Means over seeds. Bars are the intervals of the differences to base, about each "
        f"row’s own mean; base has none. Of more than {MOST_LINES} lines those that change "
        "least of the base are shown; a bar that ends at the edge goes on.",
        "Means over seeds; light is good.",
    )
    figures = []
    drawn = product_pictures(results, rows, metrics)
    for picture, caption in zip(drawn, captions, strict=False):
        title = picture.name[:1].upper() + picture.name[1:]
        figures.append(Figure(title, picture, caption))
    return figures


def _row_figures(table, rows, lined, metrics, cost) -> list[Figure]:
    """Draws perplexity over parameters, training curves, metrics by length, and answers.

    Figures without anything to show are left out.
    """
    groups = [rows[i].group for i in lined]
    labels = [table.labels[i] for i in lined]
    named = list(zip(labels, groups, strict=True))
    sizes = [
        (label, group.summary("parameters"), group.summary("perplexity"))
        for label, group in named
    ]
    of_size = Panel("validation perplexity, per token", "parameters", sizes, 1.0)
    sentences = []
    for label, group in named:
        arrays = [read_sentences(trial, metrics) for trial in group.finished]
        sentences.append((label, arrays))
    accuracies = [
        (label, list(map(answers.read_accuracies, group.finished)))
        for label, group in named
    ]
    more = _chosen(len(lined), len(rows))
    spread = "Mean over seeds, ± their standard deviation."
    chosen = [rows[i] for i in lined]
    drawn = (
        (
            "Quality and cost",
            quality_and_cost(labels, chosen, metrics) if cost else None,
            spread,
        ),
        (
            "Perplexity and size",
            scatter([of_size], "size and perplexity")
            if PERPLEXITY in metrics
            else None,
            spread,
        ),
        (
            "Training",
            curves.training_curves([(label, group.trials) for label, group in named]),
            "A colour for each row of the table: the mean over the seeds that logged a "
            "step, and a band from their lowest to their highest value.",
        ),
        (
            "By length",
            lengths.by_length(sentences, _trained_length(groups), metrics),
            "Sentences by the length of their source, mean over seeds; right of the dotted "
            "line, where there is one, are lengths that training did not have.",
        ),
        (
            "Accuracy of answers",
            accuracy_by(accuracies, answers.KINDS),
            "Answers of the test, mean over seeds, by how far back the text decides them and "
            "by how many were asked before.",
        ),
    )
    return [Figure(title, svg, caption + more) for title, svg, caption in drawn if svg]


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


def _entropies(maps, rows, finished) -> list[Figure]:
    places = notable([rows[row.place] for row in maps], MAX_HEAT_MAPS)
    shown = [(maps[i].label, maps[i].examples) for i in places]
    picture = heat_maps.head_entropies(shown)
    if not picture:
        return []
    caption = (
        "How widely each head looks: −Σ w ln w, the mean over queries and over the kept "
        "test sentences, in one run of each row (the heads of two runs do not "
        "correspond). 0 is one token."
    )
    caption += _chosen(len(shown), finished)
    return [Figure("Entropy of attention", picture, caption)]


def _of_heads(heads) -> list[Figure]:
    return [Figure(*picture) for picture in pictures(heads)]


def _position_figures(results) -> list[Figure]:
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
    for i, (kind, trial) in enumerate(kinds.items(), 1):
        # Only learned tables differ from one trial to the next.
        title = f"{kind} ({trial.name})" if kind == "learned" else kind
        table = read_positions(trial)
        # Not named by its kind, which may be any text and is no name of a file.
        picture = heat_maps.position_table(table, title, f"positions {i}")
        figures.append(Figure(title, picture, f"Position encoding: {title}"))
    return figures
