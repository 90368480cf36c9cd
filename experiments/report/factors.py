"""Finds the factors that rows are a product of, and puts such a product into a pivot table."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from experiments.report.rows import Row, short_names, value_text
from experiments.settings.derived import leaders

FULL = 0.6
"""Rows are a product where they are at least this share of its cells."""

MOST_COLUMNS = 8
"""Columns of a pivot table, beside those that name its lines."""


def factors_of(rows: Sequence[Row]) -> dict[str, tuple[str, ...]]:
    """Returns {heading: the text of each row} of a product of two factors or more, else {}.

    A factor is what a sweep of the product says of its rows, else a setting that varies.
    """
    for factors in (_parts(rows), settings_of_rows(rows)):
        if is_product(factors):
            return factors
    return {}


def is_product(factors: Mapping[str, Sequence[str]]) -> bool:
    """Tells whether the texts of rows are those of a product, or of most of one."""
    cells = [*zip(*factors.values(), strict=True)]
    if len(factors) < 2 or len(set(cells)) < len(cells):
        return False
    sizes = [len(set(texts)) for texts in factors.values()]
    # A base, and rows that each change one setting of it, are no product.
    alone = 1 + sum(size - 1 for size in sizes)
    return len(cells) > alone and len(cells) >= FULL * math.prod(sizes)


def _parts(rows):
    """Returns what the sweeps say, as far as rows differ in it; {} where some say nothing."""
    headings = {tuple(row.parts) for row in rows}
    if len(headings) != 1:
        return {}
    texts = {h: tuple(row.parts[h] for row in rows) for h in headings.pop()}
    return {heading: of for heading, of in texts.items() if len(set(of)) > 1}


def settings_of_rows(rows: Sequence[Row]) -> dict[str, tuple[str, ...]]:
    """Returns {short name: the value in each row} of the settings that vary by themselves.

    What follows from another setting is left out.
    """
    keys = dict.fromkeys(key for row in rows for key in row.settings)
    derived = leaders([row.point for row in rows])
    names = short_names(key for key in keys if key not in derived)
    found = {}
    for key, name in names.items():
        texts = tuple(value_text(row.settings[key]) for row in rows)
        if len(set(texts)) > 1:
            found[name] = texts
    return found


def numbers(texts: Sequence[str]) -> list[float] | None:
    """Returns the numbers that texts are; None where one is none."""
    try:
        values = list(map(float, texts))
    except ValueError:
        return None
    return values if all(map(math.isfinite, values)) else None


def in_order(texts: Sequence[str]) -> list[str]:
    """Returns each text once: numbers rising, others as they first come."""
    once = list(dict.fromkeys(texts))
    return once if numbers(once) is None else sorted(once, key=float)


class Pivot(NamedTuple):
    """Holds a product as a table: a line for each value of some factors, a column for the rest."""

    headings: tuple[str, ...]
    """The factors that name the lines."""
    across: str
    """The factor whose values are the columns."""
    columns: tuple[str, ...]
    lines: tuple[tuple[tuple[str, ...], tuple[int | None, ...]], ...]
    """The names of each line, and its rows by their places; None for a row there is not."""


def compared_in(rows: Sequence[Row], factors: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns the factors in which rows and their bases differ; the others they share."""
    pairs = [(i, row.base) for i, row in enumerate(rows) if row.base not in (None, i)]
    return [
        h for h, texts in factors.items() if any(texts[i] != texts[j] for i, j in pairs)
    ]


def pivot_of(
    factors: Mapping[str, Sequence[str]], compared: Sequence[str] = ()
) -> Pivot | None:
    """Returns the pivot table of `factors_of`; None for no product.

    Where one factor is `compared`, it is across, so that a line has what is to be compared.
    """
    if not factors:
        return None
    values = {heading: in_order(texts) for heading, texts in factors.items()}
    # The last that has most columns within the limit, else the one with fewest.
    fitting = [h for h in values if len(values[h]) <= MOST_COLUMNS]
    if len(compared) == 1 and compared[0] in fitting:
        fitting = [*compared]
    across = max(reversed(fitting), key=lambda h: len(values[h]), default=None)
    across = across or min(values, key=lambda h: len(values[h]))
    others = [heading for heading in values if heading != across]
    places = {}
    for i, texts in enumerate(zip(*factors.values(), strict=True)):
        named = dict(zip(factors, texts, strict=True))
        places[tuple(named[h] for h in others), named[across]] = i
    lines = []
    for names in itertools.product(*(values[heading] for heading in others)):
        line = tuple(places.get((names, column)) for column in values[across])
        if set(line) != {None}:
            lines.append((names, line))
    return Pivot(tuple(others), across, tuple(values[across]), tuple(lines))
