"""TODO."""

import importlib.util
import inspect
import itertools
import math
import re
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from experiments.errors import UserError
from experiments.settings import check_key, plain

Point = Mapping[str, Any]


MOST = 100_000
"""Points of a sweep: each is checked before the first is run."""


class SweepError(UserError):
    """A sweep that cannot be expanded; the message names the sweeps and what is known."""


def load_config(path: str):
    """The module of a config file, given as for --config: what follows a colon is for its get_config."""
    spec = importlib.util.spec_from_file_location("config", path.split(":")[0])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sweeps_of(module) -> dict[str, Callable[..., Iterable[Point]]]:
    """The config's `sweep_<name>` generators, by name."""
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
    """The product of the named sweeps, each point one flat `{dotted key: value}`; no name gives the one empty point.

    A sweep that takes an argument is given `config`. `seeds` puts seeds 0 … seeds − 1 innermost. A point may have a
    "label", its row's name; in a product labels join, and a part without one is then named by what it sets.

    Raises SweepError for an unknown or empty sweep, and for two that set the same key.
    """
    drawn = {name: _draw(known, name, config) for name in names}
    if seeds is not None:
        drawn[f"--seeds={seeds}"] = [
            {"seed": seed} for seed in range(min(seeds, MOST + 1))
        ]
    if math.prod(map(len, drawn.values())) > MOST:
        raise SweepError(
            f"{' times '.join(drawn)} are more than {MOST:,} points; sweep less at a time"
        )
    for a, b in itertools.combinations(drawn, 2):
        if both := {key for p in drawn[a] for key in p} & {
            key for p in drawn[b] for key in p
        } - {"label"}:
            raise SweepError(
                f"sweeps {a!r} and {b!r} both set {', '.join(sorted(both))}: "
                "their product would overwrite one with the other; sweep one of them, or write a third"
            )
    return [_joined(points) for points in itertools.product(*drawn.values())]


def _draw(known, name, config):
    if name not in known:
        raise SweepError(
            f"no sweep named {name!r} (known: {', '.join(known) or 'none'})"
        )
    try:
        arguments = (config,) if inspect.signature(known[name]).parameters else ()
        points = [
            plain(dict(point))
            for point in itertools.islice(known[name](*arguments), MOST + 1)
        ]
    except Exception as error:  # a sweep is a program, and may raise anything
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise SweepError(
            f"sweep {name!r} gives no points: {type(error).__name__}: {error} "
            f"({Path(place.filename).name}, line {place.lineno})"
        ) from error
    if not points:
        raise SweepError(f"sweep {name!r} has no points")
    for point in points:
        if not isinstance(point.get("label", ""), str):
            raise SweepError(
                f"sweep {name!r} has the label {point['label']!r}, which is no text"
            )
    return points


def _joined(points):
    joined = {key: value for point in points for key, value in point.items()}
    if "label" in joined:
        rows = [
            {key: value for key, value in point.items() if key != "seed"}
            for point in points
        ]
        joined["label"] = ", ".join(
            row.get("label") or describe_point(row) for row in rows if row
        )
    return joined


def select_points(points: list[Point], only: str) -> list[Point]:
    """The points with `only`, a part of it or a regular expression, in their label or name. Raises SweepError for none."""
    try:
        search = re.compile(only).search
    except re.error:
        search = lambda text: None
    found = [
        point
        for point in points
        if any(
            only in text or search(text)
            for text in (point.get("label", ""), describe_point(point))
        )
    ]
    if not found:
        rows = dict.fromkeys(
            point.get("label") or describe_point(point) for point in points
        )
        some = ", ".join(itertools.islice(map(repr, rows), 8)) + (
            ", …" if len(rows) > 8 else ""
        )
        raise SweepError(
            f"--only={only} finds none of the {len(points)} points; their names are {some}"
        )
    return found


def describe_point(point: Point) -> str:
    """What a point sets, in a few words: "h=2 d_k=32 seed=1"."""
    return (
        " ".join(
            f"{check_key(key).split('.')[-1]}={value}"
            for key, value in point.items()
            if key != "label"
        )
        or "base"
    )
