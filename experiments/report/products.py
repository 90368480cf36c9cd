"""Finds the products among a table's rows: a metric over one setting, or over two."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.evaluation.metrics import METRICS, Metric
from experiments.report.comparison import Row
from experiments.report.figures import products as drawn
from experiments.report.figures.products import Point
from experiments.report.figures.style import Picture
from experiments.report.results import (
    LARGEST_DRAWN,
    Results,
    flatten_settings,
    look_up_setting,
)
from experiments.report.table import short_names, varied

MOST_LINES = 12
"""Lines of a figure; more cannot be told apart."""

FEWEST = 3
"""Values of a setting below which a line over it says no more than the table does."""


class Product(NamedTuple):
    """Holds rows as lines along one numeric setting."""

    key: str
    """The setting along the lines, dotted."""
    along: tuple[str, ...]
    """The settings that change with it one to one, as d_k with h where h·d_k is constant."""
    others: tuple[str, ...]
    """The settings that differ between lines."""
    lines: Mapping[tuple, Mapping[float, int]]
    """{values of the others: {value of `key`: place of the row}}."""


def product_pictures(
    results: Results, rows: Sequence[Row], metrics: Sequence[Metric] = METRICS
) -> list[Picture]:
    """Draws metrics over the settings of the sweep; [] where it has no such lines."""
    product = find_product(results, rows)
    if product is None:
        return []
    names = short_names(varied(results), flatten_settings(results.base))
    shown = _nearest_lines(product, results)
    pictures = [_lines_picture(product, shown, rows, metrics, names)]
    if len(product.others) == 1:
        pictures.append(_map_picture(product, rows, metrics, names))
    return [picture for picture in pictures if picture]


def find_product(results: Results, rows: Sequence[Row]) -> Product | None:
    """Returns the lines that have most of the rows; None where no line has FEWEST.

    Two lines of two rows are a product too.
    """
    keys = varied(results)
    settings = []
    for row in rows:
        values = {}
        for key in keys:
            values[key] = row.group.point.get(key, look_up_setting(results.base, key))
        settings.append(values)
    found = [_along(key, keys, settings) for key in keys if _is_numeric(key, settings)]
    found = [product for product in found if product]
    # A line that goes on is worth more than many short ones.
    size = lambda product: (_rows_of(product), max(map(len, product.lines.values())))
    return max(found, key=size, default=None)


def _rows_of(product):
    return sum(map(len, product.lines.values()))


def _is_numeric(key, settings):
    values = [values[key] for values in settings]
    return all(type(value) in (int, float) for value in values)


def _along(key, keys, settings):
    """Returns the Product along one setting; None where it says too little."""
    along = [
        other for other in keys if other != key and _go_together(other, key, settings)
    ]
    others = [other for other in keys if other not in (key, *along)]
    lines: dict[tuple, dict[float, int]] = {}
    for i, values in enumerate(settings):
        line = lines.setdefault(tuple(_text(values[other]) for other in others), {})
        # Of two rows at one place, as base and one that repeats it, the first counts.
        line.setdefault(float(values[key]), i)
    lines = {name: dict(sorted(line.items())) for name, line in lines.items()}
    lines = {name: line for name, line in lines.items() if len(line) > 1}
    longest = max(map(len, lines.values()), default=0)
    if longest < FEWEST and len(lines) < 2:
        return None
    different = [
        other for i, other in enumerate(others) if len({name[i] for name in lines}) > 1
    ]
    places = [others.index(other) for other in different]
    named = {tuple(name[i] for i in places): line for name, line in lines.items()}
    return Product(key, tuple(along), tuple(different), named)


def _go_together(other, key, settings):
    """Whether two numbers say each other, in all rows."""
    if not _is_numeric(other, settings):
        return False
    pairs = {(values[key], values[other]) for values in settings}
    return len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _lines_picture(product, shown, rows, metrics, names):
    panels = {}
    for metric in metrics:
        lines = []
        for name in shown:
            pairs = zip(product.others, name, strict=True)
            label = ", ".join(f"{names[key]}={value}" for key, value in pairs)
            lines.append((label, _points(product.lines[name], rows, metric)))
        if any(points for _, points in lines):
            panels[metric] = lines
    setting = names[product.key]
    along = ", ".join(names[key] for key in product.along)
    title = f"{setting} (with {along})" if along else setting
    return drawn.over_setting(panels, setting, title, f"over {setting}")


def _nearest_lines(product, results):
    """Returns at most MOST_LINES lines, those that change least of the base's settings."""
    base = [_text(look_up_setting(results.base, key)) for key in product.others]
    changes = lambda name: sum(a != b for a, b in zip(name, base, strict=True))
    nearest = sorted(product.lines, key=changes)[:MOST_LINES]
    return [name for name in product.lines if name in nearest]


def _points(line, rows, metric):
    points = []
    for x, i in line.items():
        mean = rows[i].group.summary(metric.key)
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


def _map_picture(product, rows, metrics, names):
    """Draws the product of two numeric settings as a map; None for any other."""
    try:
        numbers = {name: float(name[0]) for name in product.lines}
    except ValueError:
        return None
    down = sorted(numbers, key=numbers.get)
    across = sorted({x for line in product.lines.values() for x in line})
    maps = {}
    for metric in metrics:
        values = np.full((len(down), len(across)), np.nan)
        for i, name in enumerate(down):
            for x, place in product.lines[name].items():
                mean = rows[place].group.summary(metric.key)
                if mean is not None and abs(mean.mean) < LARGEST_DRAWN:
                    values[i, across.index(x)] = mean.mean
        if np.isfinite(values).any():
            maps[metric] = values
    rows_of, columns_of = names[product.others[0]], names[product.key]
    return drawn.map_of_two(
        maps,
        (rows_of, [name[0] for name in down]),
        (columns_of, [f"{x:g}" for x in across]),
        f"{rows_of} by {columns_of}",
    )
