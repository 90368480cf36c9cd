"""Finds the rows that make lines along a setting of the sweep, and draws metrics over it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from experiments.report.figures import heat_maps, lines
from experiments.report.figures.lines import Point
from experiments.report.figures.style import Picture
from experiments.report.rows import Row, settings_of, short_names, varied
from experiments.report.trial_files import (
    LARGEST_DRAWN,
    Results,
    flatten_settings,
    look_up_setting,
)

MOST_LINES = 12
"""Lines of a figure; more cannot be told apart."""

FEWEST = 3
"""Values of a setting below which a line over it shows no more than the table does."""


class Lines(NamedTuple):
    """Holds rows as lines along one numeric setting."""

    key: str
    """The setting along the lines, dotted."""
    along: tuple[str, ...]
    """The settings that change with it one to one, as d_k with h where h·d_k is constant."""
    others: tuple[str, ...]
    """The settings that differ between lines."""
    rows: Mapping[tuple, Mapping[float, int]]
    """{values of the others: {value of `key`: place of the row}}."""


def pictures_over_settings(results: Results, rows: Sequence[Row]) -> list[Picture]:
    """Draws metrics over the settings of the sweep; [] where it has no such lines."""
    found = find_lines(results, rows)
    if found is None:
        return []
    names = short_names(varied(results), flatten_settings(results.base))
    pictures = [_lines_picture(found, results, rows, names)]
    if len(found.others) == 1:
        pictures.append(_map_picture(found, results, rows, names))
    return [picture for picture in pictures if picture]


def find_lines(results: Results, rows: Sequence[Row]) -> Lines | None:
    """Returns the lines that have most of the rows; None where no line has FEWEST.

    Two lines of two rows are lines too.
    """
    keys = varied(results)
    settings = [settings_of(results, row, keys) for row in rows]
    found = [_along(key, keys, settings) for key in keys if _is_numeric(key, settings)]

    def size(found):
        # A line that goes on is worth more than many short ones.
        lengths = list(map(len, found.rows.values()))
        return sum(lengths), max(lengths)

    return max(filter(None, found), key=size, default=None)


def _is_numeric(key, settings):
    return all(type(values[key]) in (int, float) for values in settings)


def _along(key, keys, settings):
    """Returns the Lines along one setting; None where they show too little."""
    along = [
        other for other in keys if other != key and _go_together(other, key, settings)
    ]
    others = [other for other in keys if other not in (key, *along)]
    rows: dict[tuple, dict[float, int]] = {}
    for i, values in enumerate(settings):
        line = rows.setdefault(tuple(_text(values[other]) for other in others), {})
        # Of two rows at one place, as base and one that repeats it, the first counts.
        line.setdefault(float(values[key]), i)
    rows = {n: dict(sorted(line.items())) for n, line in rows.items() if len(line) > 1}
    longest = max(map(len, rows.values()), default=0)
    if longest < FEWEST and len(rows) < 2:
        return None
    places = [i for i in range(len(others)) if len({name[i] for name in rows}) > 1]
    named = {tuple(name[i] for i in places): line for name, line in rows.items()}
    return Lines(key, tuple(along), tuple(others[i] for i in places), named)


def _go_together(other, key, settings):
    """Returns whether each of two numbers determines the other, in all rows."""
    if not _is_numeric(other, settings):
        return False
    pairs = {(values[key], values[other]) for values in settings}
    return len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


def _text(value):
    return f"{value:g}" if isinstance(value, float) else str(value)


def _lines_picture(found, results, rows, names):
    # At most MOST_LINES lines, those that change least of the base's settings.
    base = [_text(look_up_setting(results.base, key)) for key in found.others]
    changes = lambda name: sum(a != b for a, b in zip(name, base, strict=True))
    nearest = sorted(found.rows, key=changes)[:MOST_LINES]
    panels = {}
    for metric in results.metrics:
        drawn = []
        for name in (name for name in found.rows if name in nearest):
            pairs = zip(found.others, name, strict=True)
            label = ", ".join(f"{names[key]}={value}" for key, value in pairs)
            drawn.append((label, _points(found.rows[name], rows, metric)))
        if any(points for _, points in drawn):
            panels[metric] = drawn
    setting = names[found.key]
    along = ", ".join(names[key] for key in found.along)
    title = f"{setting} (with {along})" if along else setting
    return lines.over_setting(panels, setting, title, f"over {setting}")


def _points(line, rows, metric):
    points = []
    for x, i in line.items():
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
        points.append(Point(x, mean.mean, low, high))
    return points


def _map_picture(found, results, rows, names):
    """Draws lines of a second numeric setting as a map; None for any other."""
    try:
        numbers = {name: float(name[0]) for name in found.rows}
    except ValueError:
        return None
    down = sorted(numbers, key=numbers.get)
    across = sorted({x for line in found.rows.values() for x in line})
    maps = {}
    for metric in results.metrics:
        values = np.full((len(down), len(across)), np.nan)
        for i, name in enumerate(down):
            for x, place in found.rows[name].items():
                mean = rows[place].summary(metric.key)
                if mean is not None and abs(mean.mean) < LARGEST_DRAWN:
                    values[i, across.index(x)] = mean.mean
        if np.isfinite(values).any():
            maps[metric] = values
    rows_of, columns_of = names[found.others[0]], names[found.key]
    return heat_maps.map_of_two(
        maps,
        (rows_of, [name[0] for name in down]),
        (columns_of, [f"{x:g}" for x in across]),
        f"{rows_of} by {columns_of}",
    )
