"""Draws the figures of a report, each with its title and caption."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from experiments.errors import one_line
from experiments.evaluation.metrics import PERPLEXITY
from experiments.report.costs import COSTS, Cost
from experiments.report.factors import compared_in, factors_of
from experiments.report.figures import heat_maps, lines, points
from experiments.report.figures import style as line_styles
from experiments.report.figures.points import Compared, Forest, Panel
from experiments.report.figures.style import Picture
from experiments.report.head_measures import Measured, head_tables, pictures
from experiments.report.notable_rows import notable
from experiments.report.over_settings import MOST_LINES, pictures_over_settings
from experiments.report.packed_attention import MAX_MAPS, Maps, read_maps
from experiments.report.rows import Row, base_of
from experiments.report.trial_files import Results, TrialResult, look_up_setting
from experiments.report.trial_outputs import (
    ANSWERS_BY,
    read_accuracies,
    read_positions,
    read_sentences,
)

MAX_LINES = 40
"""Rows of a forest plot."""

MAX_HEAT_MAPS = 12
"""Rows whose heads' entropies are drawn."""


class Figure(NamedTuple):
    """Holds a picture with its heading and caption."""

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

    answer: Sequence[Figure]
    """What answers the question of the table: of a product metrics over its settings, else
    the differences of all metrics."""
    figures: Sequence[Figure]
    positions: Sequence[Figure]
    lined: Sequence[int]
    """The places of the rows that have a line style."""
    maps: Sequence[Maps]
    maps_note: str
    heads: Sequence[tuple[str, Measured]]
    alone: Sequence[Figure] = ()
    """The differences of single metrics, for files: a page has them together."""

    def all(self) -> Iterator[Figure]:
        """Returns every figure once."""
        yield from self.answer
        yield from self.alone
        yield from self.figures
        yield from self.positions


def draw_figures(
    results: Results, rows: Sequence[Row], pairs: Sequence[Row] = ()
) -> PageFigures:
    """Draws the figures of a report.

    `pairs` are what was compared where that are not the rows.

    Where there are many rows, a figure has those whose differences are decided or largest.
    """
    metrics = results.metrics
    maps = read_maps(rows, metrics)
    # Maps come from finished trials, so other rows are not left out of them.
    finished = sum(bool(row.finished) for row in rows)
    heads = head_tables(rows)
    base = base_of(rows)
    # The base has the first style, which is black.
    lined = notable(rows, line_styles.LINES, metrics)
    lined.sort(key=lambda i: i != base)
    over = _over_settings(rows, metrics)
    together, *alone = _forests(rows, pairs or rows, metrics) or [None]
    # The first says what was asked; what it leaves out stands with the others.
    asked = [figure for figure in (together, *over) if figure]
    if factors_of(rows) and not pairs:
        asked.sort(key=lambda figure: figure is together)
    figures = [
        *asked[1:],
        *_row_figures(results, [rows[i] for i in lined], len(rows)),
        *_entropies(maps, rows, finished),
        *[Figure(*picture) for picture in pictures(heads)],
    ]
    return PageFigures(
        answer=asked[:1],
        figures=figures,
        positions=_position_figures(results),
        lined=lined,
        maps=maps,
        maps_note="One run of each row." + _chosen(min(finished, MAX_MAPS), finished),
        heads=heads,
        alone=alone,
    )


def file_name(name: str) -> str:
    """Returns a picture's name as that of a file: letters, digits and hyphens."""
    letters = [letter if letter.isalnum() else "-" for letter in name.lower()]
    return "-".join(filter(None, "".join(letters).split("-")))[:80] or "figure"


def _chosen(shown, total) -> str:
    """Returns which rows a figure has, where it has not all."""
    if shown >= total:
        return ""
    return (
        f" Shown are {shown} of {total} rows: those whose differences are decided or "
        "largest."
    )


def _forests(rows, compared, metrics) -> list[Figure]:
    """Draws the differences in all metrics, then in each; [] where nothing is compared."""
    having = [row for row in compared if row.differences]
    # Without their bases, which are places among all rows.
    alone = [dataclasses.replace(row, base=None) for row in having]
    shown = [having[i] for i in notable(alone, MAX_LINES, metrics)]
    panels = {metric: _forest(rows, shown, metric) for metric in metrics}
    # Of a product the factors say what a row's base is.
    is_told = compared is rows and len(compared_in(rows, factors_of(rows))) == 1
    labels = [row.name if is_told else row.title for row in shown]
    caption = (
        "Row − base with its interval; all intervals of the report hold at once with 95 % "
        "probability. A filled dot is better or worse; small dots are seeds, about the "
        "base’s mean; an arrow goes on."
    )
    caption += _chosen(len(shown), len(having))
    drawn = {
        "Differences to base": points.forests(labels, [*panels.values()], "differences")
    }
    for metric, panel in panels.items():
        picture = points.forests(labels, [panel], f"forest {metric.heading}")
        drawn[f"{metric.name}: differences to base"] = picture
    return [Figure(title, of, caption) for title, of in drawn.items() if of]


def _forest(rows, shown, metric) -> Forest:
    """Returns the panel of a metric."""
    compared = []
    for row in shown:
        verdict = row.verdicts.get(metric.key)
        base = rows[row.base].summary(metric.key)
        scores = [trial.result.get(metric.key) for trial in row.finished]
        seeds = [s - base.mean for s in scores if base and s is not None]
        words = verdict.words if verdict else ""
        compared.append(Compared(row.differences.get(metric.key), words, seeds))
    return Forest(metric.heading, metric.scale, compared)


def _over_settings(rows, metrics) -> list[Figure]:
    figures = []
    for picture in pictures_over_settings(rows, metrics):
        caption = "Means over seeds; light is good."
        if picture.name.startswith("over "):
            caption = (
                "Means over seeds, small dots. Bars are the intervals of the differences to "
                "base, about each row’s own mean; base has none, and a bar that ends at the "
                f"edge goes on. Of more than {MOST_LINES} lines the first are shown."
            )
        title = picture.name[:1].upper() + picture.name[1:]
        figures.append(Figure(title, picture, caption))
    return figures


def _row_figures(results, rows, total) -> list[Figure]:
    """Draws quality over cost, training curves, metrics by length, and answers.

    Figures without anything to show are left out.
    """
    metrics = results.metrics
    sentences = [
        (row.name, [read_sentences(trial, metrics) for trial in row.finished])
        for row in rows
    ]
    accuracies = [(row.name, list(map(read_accuracies, row.finished))) for row in rows]
    spread = "Mean over seeds, ± their standard deviation."
    drawn = (
        (
            "Quality and cost",
            points.scatter(_cost_panels(rows, metrics), "quality and cost"),
            spread,
        ),
        (
            "Training",
            lines.training_curves([(row.name, row.trials) for row in rows]),
            "A colour for each row of the table: the mean over the seeds that logged a "
            "step, and a band from their lowest to their highest value.",
        ),
        (
            "By length",
            lines.by_length(sentences, longest_in_training(rows), metrics),
            "Sentences by the length of their source, mean over seeds; right of the dotted "
            "line, where there is one, are lengths that training did not have.",
        ),
        (
            "Accuracy of answers",
            lines.accuracy_by(accuracies, ANSWERS_BY),
            "Answers of the test, mean over seeds, by how far back the text decides them and "
            "by how many were asked before.",
        ),
    )
    more = _chosen(len(rows), total)
    return [Figure(title, svg, caption + more) for title, svg, caption in drawn if svg]


def _cost_panels(rows, metrics) -> list[Panel]:
    """Returns the first metric that rows have over their size and each of COSTS."""
    having = [m for m in metrics if any(row.summary(m.key) for row in rows)]
    panels = []
    for metric in having[:1]:
        for cost in (Cost("parameters", "parameters"), *COSTS):
            drawn = []
            for row in rows:
                x, y = row.summary(cost.key), row.summary(metric.key)
                x = x and x.scaled(cost.scale)
                drawn.append((row.name, x, y and y.scaled(metric.scale)))
            least = 1.0 if metric is PERPLEXITY else 0.0
            panels.append(Panel(metric.heading, cost.heading, drawn, least))
    return panels


def longest_in_training(rows) -> int | None:
    """Returns the longest sentence that training could have, if all rows have the same."""
    # Rows that were trained on other lengths have no common border.
    longest = set()
    for row in rows:
        for trial in row.finished:
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
