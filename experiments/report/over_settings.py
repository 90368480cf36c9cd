"""Draws metrics over the settings of a sweep: small multiples of the product of its rows.

Along the axis is a numeric setting where one makes lines, else the factor with most values; of
the other factors one has a panel for each value, and the rest are lines.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from experiments.evaluation.metrics import ACCURACY, Metric
from experiments.report.factors import (
    compared_in,
    factors_of,
    in_order,
    numbers,
    settings_of_rows,
)
from experiments.report.figures import heat_maps, lines
from experiments.report.figures.lines import Level, Panel, Point
from experiments.report.figures.style import Picture
from experiments.report.rows import Row, short_names
from experiments.report.trial_files import LARGEST_DRAWN
from experiments.settings.derived import leaders

MOST_LINES = 12
"""Lines of a panel; more cannot be told apart."""

MOST_PANELS = 9
"""Panels of a metric."""

FEWEST = 3
"""Values of a setting below which a line over it shows no more than the table does."""


class Lines(NamedTuple):
    """Holds rows as lines along one factor."""

    along: str
    """The factor along the lines."""
    values: tuple[str, ...]
    """Its values in their order."""
    is_numeric: bool
    panels: str
    """The factor that has a panel for each value; "" for one panel."""
    others: tuple[str, ...]
    """The factors that differ between lines."""
    rows: Mapping[tuple[str, tuple[str, ...]], Mapping[str, int]]
    """{(value of `panels`, values of the others): {value of `along`: place of the row}}."""


def pictures_over_settings(
    rows: Sequence[Row], metrics: Sequence[Metric]
) -> list[Picture]:
    """Draws metrics over the settings of the sweep; [] where it has no such lines."""
    found = find_lines(rows)
    if found is None:
        return []
    pictures = []
    # With panels for a factor, each metric takes a line of panels.
    for few in [metrics[:2], metrics[2:]] if found.panels else [metrics]:
        pictures.append(_lines_picture(found, rows, few, is_first=not pictures))
    if len(found.others) == 1 and found.is_numeric and not found.panels:
        pictures.append(_map_picture(found, rows, metrics))
    return [picture for picture in pictures if picture]


def find_lines(rows: Sequence[Row]) -> Lines | None:
    """Returns the lines that have most of the rows; None where no line has FEWEST values.

    Two lines of two rows are lines too. Of a product without a numeric factor the one with
    most values is along the axis.
    """
    factors = factors_of(rows)
    texts = factors or settings_of_rows(rows)
    compared = compared_in(rows, factors)
    found = []
    for heading in texts:
        if numbers(texts[heading]) is not None:
            found.append(_along(heading, texts, compared))

    def size(found):
        # A line that goes on is worth more than many short ones.
        lengths = list(map(len, found.rows.values()))
        return sum(lengths), max(lengths)

    best = max(filter(None, found), key=size, default=None)
    if best is None and factors:
        most = max(reversed(factors), key=lambda heading: len(set(factors[heading])))
        best = _along(most, factors, compared)
    return best


def _along(heading, texts, compared):
    """Returns the Lines along one factor; None where they show too little.

    Of several others one has panels, of those that rows share with their bases if any.
    """
    others = [other for other in texts if other != heading]
    cells: dict[tuple, dict[str, int]] = {}
    for i, value in enumerate(texts[heading]):
        line = cells.setdefault(tuple(texts[other][i] for other in others), {})
        # Of two rows at one place, as base and one that repeats it, the first counts.
        line.setdefault(value, i)
    values = in_order(texts[heading])
    cells = {
        name: {value: line[value] for value in values if value in line}
        for name, line in cells.items()
        if len(line) > 1
    }
    longest = max(map(len, cells.values()), default=0)
    if longest < FEWEST and len(cells) < 2:
        return None
    places = [i for i in range(len(others)) if len({name[i] for name in cells}) > 1]
    counts = {n: len({name[i] for name in cells}) for n, i in enumerate(places)}
    panel = _panel_of(
        counts, [n for n, i in enumerate(places) if others[i] in compared]
    )
    named = {}
    for name, line in cells.items():
        rest = tuple(name[i] for n, i in enumerate(places) if n != panel)
        named["" if panel is None else name[places[panel]], rest] = line
    return Lines(
        along=heading,
        values=tuple(values),
        is_numeric=numbers(values) is not None,
        panels="" if panel is None else others[places[panel]],
        others=tuple(others[i] for n, i in enumerate(places) if n != panel),
        rows=named,
    )


def _panel_of(counts, compared):
    """Returns which of two factors or more has panels: the last of the fewest values."""
    if len(counts) < 2:
        return None
    shared = [n for n in counts if n not in compared] or [*counts]
    panel = min(reversed(shared), key=counts.get)
    return panel if counts[panel] <= MOST_PANELS else None


def _lines_picture(found, rows, metrics, is_first):
    names = list(dict.fromkeys(line for _, line in found.rows))[:MOST_LINES]
    labels = [_label(found.others, name) for name in names]
    panels = []
    for metric in metrics:
        for value in in_order([panel for panel, _ in found.rows]):
            of_panel = [found.rows.get((value, name), {}) for name in names]
            drawn = [_points(line, found, rows, metric) for line in of_panel]
            if any(drawn):
                title = f"{found.panels}={value}" if found.panels else ""
                places = [i for line in of_panel for i in line.values()]
                levels = _levels([rows[i] for i in places], metric)
                panels.append(Panel(title, metric, drawn, levels))
    ticks = None if found.is_numeric else found.values
    over = f"over {found.along}" if is_first else f"over {found.along}, other metrics"
    count = len(panels) // len({panel.metric for panel in panels}) if panels else 1
    columns = count if found.panels else 2
    axis = lines.Axis(found.along, _with_derived(found.along, rows), ticks)
    return lines.over_setting(panels, labels, axis, over, min(columns, 3))


def _label(headings, values):
    """Returns the name of a line: its text alone where one factor tells lines apart."""
    if len(headings) == 1 and numbers(values) is None:
        return values[0]
    pairs = zip(headings, values, strict=True)
    return ", ".join(f"{heading}={value}" for heading, value in pairs)


def _with_derived(along, rows):
    """Returns what stands below the axis: a setting with those that follow from it."""
    derived = leaders([row.point for row in rows])
    names = short_names({*derived, *derived.values()})
    following = [names[key] for key, of in derived.items() if names[of] == along]
    return f"{along} (with {', '.join(following)})" if following else along


def _points(line, found, rows, metric):
    points = []
    for value, i in line.items():
        mean = rows[i].summary(metric.key)
        if mean is None or not abs(mean.mean) < LARGEST_DRAWN:
            continue
        low = high = mean.mean
        if difference := rows[i].differences.get(metric.key):
            # The interval of the difference, about the row's own mean.
            low += difference.low - difference.mean
            high += difference.high - difference.mean
            low = max(low, metric.link.lowest)
            high = min(high, metric.link.highest)
        seeds = [trial.result.get(metric.key) for trial in rows[i].finished]
        seeds = [x for x in seeds if x is not None and abs(x) < LARGEST_DRAWN]
        x = float(value) if found.is_numeric else found.values.index(value)
        points.append(Point(x, mean.mean, low, high, tuple(seeds)))
    return points


def _levels(rows, metric) -> list[Level]:
    """Returns chance and the best possible, of a task of which both are known and shared."""
    chances = {trial.result.get("chance") for row in rows for trial in row.finished}
    if metric is not ACCURACY or len(chances) != 1 or chances == {None}:
        return []
    return [Level("chance", chances.pop()), Level("best possible", metric.link.highest)]


def _map_picture(found, rows, metrics):
    """Draws lines of a second numeric setting as a map; None for any other."""
    down = in_order([name for _, (name,) in found.rows])
    if numbers(down) is None:
        return None
    maps = {}
    for metric in metrics:
        values = np.full((len(down), len(found.values)), np.nan)
        for (_, (name,)), line in found.rows.items():
            for value, place in line.items():
                mean = rows[place].summary(metric.key)
                if mean is not None and abs(mean.mean) < LARGEST_DRAWN:
                    values[down.index(name), found.values.index(value)] = mean.mean
        if np.isfinite(values).any():
            maps[metric] = values
    (rows_of,) = found.others
    return heat_maps.map_of_two(
        maps,
        (rows_of, down),
        (found.along, list(found.values)),
        f"{rows_of} by {found.along}",
    )
