"""Expands the named sweeps of a config file into points.

A point is a flat {dotted key: value} that a trial sets on top of its config.
"""

import copy
import inspect
import itertools
import math
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from experiments.errors import UserError, hint
from experiments.settings import check_key, plain
from experiments.settings.derived import leaders, without_derived
from experiments.settings.user_code import load_file

Point = Mapping[str, Any]


NAMES = {"label", "parts"}
"""What a point has beside its settings."""

MAX_POINTS = 100_000
"""The most points of a sweep: each is checked before the first is run."""


class SweepError(UserError):
    """Raised for a sweep that cannot be expanded; names the sweeps and what is known."""


def load_config(path: str) -> ModuleType:
    """Loads a config file as a module; it may lie anywhere.

    `path` is as for --config: what follows a colon is an argument of its get_config.
    Raises OutsideError for a file that fails, or ends the program.
    """
    module, _, _ = load_file(path.partition(":")[0])
    return module


def sweeps_of(module) -> dict[str, Callable[..., Iterable[Point]]]:
    """Returns the config's `sweep_<name>` generators, by name."""
    return {
        name.removeprefix("sweep_"): value
        for name, value in vars(module).items()
        if name.startswith("sweep_") and callable(value)
    }


def expand(
    known: Mapping[str, Callable[..., Iterable[Point]]],
    names: list[str],
    config=None,
    seeds: int | None = None,
) -> list[dict[str, Any]]:
    """Returns the product of the named sweeps; without names, the one empty point.

    A sweep that takes an argument gets `config`. `seeds` puts seeds 0 … seeds − 1 innermost.
    A point may have a "label", its row's name; in a product labels join, and a part without
    one is named by what it sets, but for what follows from that. Points get "parts",
    {heading: text}: of each sweep its label or its value.

    Raises SweepError for an unknown or empty sweep, and for two that set the same key.
    """
    sweeps = {name: _points_of(known, name, config) for name in names}
    if seeds is not None:
        # One more than is allowed is enough to be refused.
        count = min(seeds, MAX_POINTS + 1)
        sweeps[f"--seeds={seeds}"] = [{"seed": seed} for seed in range(count)]
    if math.prod(map(len, sweeps.values())) > MAX_POINTS:
        listed = " times ".join(sweeps)
        message = f"{listed} are more than {MAX_POINTS:,} points; sweep less at a time"
        raise SweepError(message)
    # Which of two values wins would depend on the order of names, so neither does.
    for a, b in itertools.combinations(sweeps, 2):
        if both := _keys(sweeps[a]) & _keys(sweeps[b]):
            keys = ", ".join(sorted(both))
            raise SweepError(
                f"sweeps {a!r} and {b!r} both set {keys}: their product would overwrite "
                "one with the other; sweep one of them, or write a third"
            )
    named = [_parts_of(name, points) for name, points in sweeps.items()]
    return [_joined(parts) for parts in itertools.product(*named)]


def select_points(points: list[Point], only: str) -> list[Point]:
    """Returns the points with `only` in their label or name.

    `only` is a part of the text, or a regular expression. Raises SweepError for no match.
    """
    try:
        expression = re.compile(only)
    except re.error:
        # "(A" is text that labels have, and no regular expression.
        expression = None
    selected = [point for point in points if _matches(point, only, expression)]
    if not selected:
        names = [point.get("label") or describe_point(point) for point in points]
        names = list(dict.fromkeys(names))
        shown = ", ".join(map(repr, names[:8])) + (", …" if len(names) > 8 else "")
        raise SweepError(
            f"--only={only} finds none of the {len(points)} points; their names are {shown}"
        )
    return selected


def describe_point(point: Point) -> str:
    """Says what a point sets, in a few words: "h=2 d_k=32 seed=1"."""
    parts = []
    for key, value in point.items():
        if key not in NAMES:
            _, _, name = check_key(key).rpartition(".")
            parts.append(f"{name}={value}")
    return " ".join(parts) or "base"


def _points_of(known, name, config):
    if name not in known:
        names = ", ".join(known) or "none"
        near = hint(name, known)
        raise SweepError(f"no sweep named {name!r} (known: {names}){near}")
    try:
        # At most one more point than allowed is drawn: a sweep may be endless.
        takes_config = inspect.signature(known[name]).parameters
        # A copy: a generator may change what it is given, which all rows are based on.
        arguments = [copy.deepcopy(config)] if takes_config else []
        generator = known[name](*arguments)
        some = itertools.islice(generator, MAX_POINTS + 1)
        points = [plain(dict(point)) for point in some]
    except (Exception, SystemExit) as error:
        # A sweep is a user's program: it may raise anything, and may call sys.exit().
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise SweepError(
            f"sweep {name!r} gives no points: {type(error).__name__}: {error} "
            f"({Path(place.filename).name}, line {place.lineno})"
        ) from error
    if not points:
        raise SweepError(f"sweep {name!r} has no points")
    for point in points:
        _check_point(name, point)
    return points


def _check_point(name, point):
    """Raises SweepError for a label that is no text, and for what no file can hold."""
    label = point.get("label", "")
    if not isinstance(label, str):
        message = f"sweep {name!r} has the label {label!r}, which is no text"
        raise SweepError(message)
    for key, value in point.items():
        if fault := _fault_of(value):
            raise SweepError(
                f"sweep {name!r} sets {key} to {fault}; give another value"
            )


def _fault_of(value) -> str:
    """Says why a value of a point cannot be written to a file, "" where it can be."""
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        return "a number beyond those of float"
    try:
        str(value).encode()
    except UnicodeEncodeError:
        return f"{value!r}, which has half of a character"
    except (ValueError, RecursionError) as error:
        # It has a number of more than 4,300 digits, or itself.
        return f"a value that cannot be written ({error})"
    return ""


def _keys(points):
    keys = set()
    for point in points:
        keys.update(point)
    # Labels join in a product, so two sweeps may both have them.
    return keys - NAMES


class _Part(NamedTuple):
    """Holds a point of one sweep as a part of those of a product."""

    point: Point
    name: str
    """Its label, else what it sets, but for what follows from that; "" for a seed alone."""
    heading: str
    """What stands above the parts of its sweep: the setting where that is one, else its name."""
    text: str
    """What stands there of this part."""


def _parts_of(sweep, points):
    """Returns the points of a sweep as parts of a product."""
    derived = leaders(points)
    shorts = []
    for point in points:
        # A row is named without its seed, as its trials differ in nothing else.
        short = without_derived(point, derived)
        shorts.append({k: v for k, v in short.items() if k not in (*NAMES, "seed")})
    keys = {key for short in shorts for key in short}
    labels = [point.get("label", "") for point in points]
    is_one = len(keys) == 1 and not any(labels)
    parts = []
    heading = sweep if keys or any(labels) else ""
    if is_one:
        heading = min(keys).rpartition(".")[2]
    for point, short, label in zip(points, shorts, labels, strict=True):
        described = describe_point(short)
        text = label or (described.partition("=")[2] if is_one and short else described)
        parts.append(_Part(point, label or (described if short else ""), heading, text))
    return parts


def _joined(parts):
    """Returns the product of points."""
    joined = {}
    for part in parts:
        joined |= part.point
    if "label" in joined:
        joined["label"] = ", ".join(part.name for part in parts if part.name)
    shown = [part for part in parts if part.heading]
    headings = {part.heading: part.text for part in shown}
    # Two sweeps may set what has the same name; then the row's own says more.
    if headings and len(shown) == len(headings):
        joined["parts"] = headings
    return joined


def _matches(point, only, expression):
    texts = (point.get("label", ""), describe_point(point))
    if any(only in text for text in texts):
        return True
    return expression is not None and any(expression.search(text) for text in texts)
