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
from typing import Any

from experiments.errors import UserError, hint
from experiments.settings import check_key, plain
from experiments.settings.derived import leaders, without_derived
from experiments.settings.user_code import load_file

Point = Mapping[str, Any]


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
    one is named by what it sets, but for what follows from that.

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
    named = []
    for points in sweeps.values():
        derived = leaders(points)
        named.append([(point, without_derived(point, derived)) for point in points])
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
        if key != "label":
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
    return keys - {"label"}


def _joined(parts):
    """Returns the product of points, of pairs (point, the same without what is derived)."""
    joined = {}
    for point, _ in parts:
        joined |= point
    if "label" not in joined:
        return joined
    labels = []
    for point, short in parts:
        # A row is named without its seed, as its trials differ in nothing else.
        row = {key: value for key, value in short.items() if key != "seed"}
        if label := point.get("label"):
            labels.append(label)
        elif row:
            labels.append(describe_point(row))
    return {**joined, "label": ", ".join(labels)}


def _matches(point, only, expression):
    texts = (point.get("label", ""), describe_point(point))
    if any(only in text for text in texts):
        return True
    return expression is not None and any(expression.search(text) for text in texts)
