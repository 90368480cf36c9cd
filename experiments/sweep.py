"""A sweep: expand the named sweeps of a config into points, check them all, and run what is not finished.

Results are files, so the sweep keeps none: it starts trials in worker processes and reads what they wrote.
"""

import dataclasses
import functools
import importlib.util
import inspect
import itertools
import math
import re
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections

from attn import Shape
from experiments import trial
from experiments.batches import Batch
from experiments.files import DamagedError, inside, read_json, slug, write_json
from experiments.mistakes import Mistake
from experiments.records import ENDED, WorkdirError, differences
from experiments.settings import Settings, SettingsError, check_key, resolve

Point = Mapping[str, Any]

MOST = 100_000
"""Points of a sweep: each is checked before the first is run."""


class SweepError(Mistake):
    """A sweep that cannot be expanded; the message names the sweeps and what is known."""


class Planned(NamedTuple):
    """One trial to be."""

    name: str
    directory: str
    point: dict[str, Any]
    settings: Settings
    label: str = ""
    """Its row's name, where the sweep gives one; trials that differ in their seed share it."""


def load(path: str):
    """The module of a config file, given as for --config: what follows a colon is for its get_config."""
    spec = importlib.util.spec_from_file_location("config", path.split(":")[0])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sweeps(module) -> dict[str, Callable[..., Iterable[Point]]]:
    """The config's `sweep_<name>` generators, by name."""
    return {name.removeprefix("sweep_"): value for name, value in vars(module).items()
            if name.startswith("sweep_") and callable(value)}


def expand(known: Mapping[str, Callable[..., Iterable[Point]]], names: list[str], config=None,
           seeds: int | None = None) -> list[dict[str, Any]]:
    """The product of the named sweeps, each point one flat `{dotted key: value}`; no name gives the one empty point.

    A sweep that takes an argument is given `config`. `seeds` puts seeds 0 … seeds − 1 innermost. A point may have a
    "label", its row's name; in a product labels join, and a part without one is then named by what it sets.

    Raises SweepError for an unknown or empty sweep, and for two that set the same key.
    """
    drawn = {name: _draw(known, name, config) for name in names}
    if seeds is not None:
        drawn[f"--seeds={seeds}"] = [{"seed": seed} for seed in range(min(seeds, MOST + 1))]
    if math.prod(map(len, drawn.values())) > MOST:
        raise SweepError(f"{' times '.join(drawn)} are more than {MOST:,} points; sweep less at a time")
    for a, b in itertools.combinations(drawn, 2):
        if both := {key for p in drawn[a] for key in p} & {key for p in drawn[b] for key in p} - {"label"}:
            raise SweepError(f"sweeps {a!r} and {b!r} both set {', '.join(sorted(both))}: "
                             "their product would overwrite one with the other; sweep one of them, or write a third")
    return [_joined(points) for points in itertools.product(*drawn.values())]


def _draw(known, name, config):
    if name not in known:
        raise SweepError(f"no sweep named {name!r} (known: {', '.join(known) or 'none'})")
    try:
        arguments = (config,) if inspect.signature(known[name]).parameters else ()
        points = [dict(point) for point in itertools.islice(known[name](*arguments), MOST + 1)]
    except Exception as error:  # a sweep is a program, and may raise anything
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise SweepError(f"sweep {name!r} gives no points: {type(error).__name__}: {error} "
                         f"({Path(place.filename).name}, line {place.lineno})") from error
    if not points:
        raise SweepError(f"sweep {name!r} has no points")
    for point in points:
        if not isinstance(point.get("label", ""), str):
            raise SweepError(f"sweep {name!r} has the label {point['label']!r}, which is no text")
    return points


def _joined(points):
    joined = {key: value for point in points for key, value in point.items()}
    if "label" in joined:
        rows = [{key: value for key, value in point.items() if key != "seed"} for point in points]
        joined["label"] = ", ".join(row.get("label") or describe(row) for row in rows if row)
    return joined


def select(points: list[Point], only: str) -> list[Point]:
    """The points with `only`, a part of it or a regular expression, in their label or name. Raises SweepError for none.
    """
    try:
        search = re.compile(only).search
    except re.error:
        search = lambda text: None
    found = [point for point in points
             if any(only in text or search(text) for text in (point.get("label", ""), describe(point)))]
    if not found:
        rows = dict.fromkeys(point.get("label") or describe(point) for point in points)
        some = ", ".join(itertools.islice(map(repr, rows), 8)) + (", …" if len(rows) > 8 else "")
        raise SweepError(f"--only={only} finds none of the {len(points)} points; their names are {some}")
    return found


def plan(config, points: list[Point]) -> list[Planned]:
    """Each point checked and named; points of equal settings are one trial, the first of them.

    Raises SettingsError naming the point, and SweepError for a label that two rows have.
    """
    config = config.to_dict() if isinstance(config, ml_collections.ConfigDict) else config
    planned, rows = {}, {}
    for point in points:
        point, label = {key: value for key, value in point.items() if key != "label"}, point.get("label", "")
        name = describe(point)
        try:
            settings = resolve(config, point)
        except SettingsError as error:
            raise SettingsError(f"{error} (in the point {name})") from None
        row = dataclasses.replace(settings, seed=0)
        if label and rows.setdefault(label, row) != row:
            raise SweepError(f"two rows have the label {label!r}, one of them the point {name}: give each its own")
        if settings not in planned:
            planned[settings] = Planned(name, f"trials/{slug(name)}-{settings.digest()}", point, settings, label)
    return list(planned.values())


def describe(point: Point) -> str:
    """What a point sets, in a few words: "h=2 d_k=32 seed=1"."""
    return " ".join(f"{check_key(key).split('.')[-1]}={value}" for key, value in point.items()
                    if key != "label") or "base"


def program(settings: Settings) -> trial.Program:
    """The trial's program, as far as it is known without its corpus, which may have longer sentences."""
    t, data = settings.training, settings.data
    return trial.program(settings, data.vocabulary, max(t.row_pieces, settings.evaluation.max_pieces))


def together(settings: Settings):
    """What trials have in common that can be lanes of one compiled program."""
    d, t, e = settings.data, settings.training, settings.evaluation
    return (program(settings), d, t.rows, t.strategy, t.ema > 0, (e.rows, e.max_pieces, e.extra, e.beam, e.alpha))


def groups(planned: Iterable[Planned]) -> list[list[Planned]]:
    """Trials that can be lanes of one compiled program, together, in the order of their first."""
    found = {}
    for one in planned:
        found.setdefault(together(one.settings), []).append(one)
    return list(found.values())


def check_all(planned: list[Planned]) -> None:
    """Builds by shape: each size of model as it is initialised, and a loss for each design. What does not fit together
    fails here, for nothing.

    Raises SettingsError naming the first trial that cannot be built.
    """
    for one in planned:
        try:
            variables(program(one.settings))
            _loss(program(one.settings)._replace(shape=Shape(1, 2, 2, 2, 2, 2)))
        except (TypeError, ValueError) as error:
            raise SettingsError(f"{one.name} cannot be built: {error}") from error


def variables(program: trial.Program):
    """Shapes of what a program's initialisation gives, of its first layers alone: all others are like them."""
    return _variables(program._replace(shape=program.shape._replace(N=1)))


@functools.cache
def _variables(program):
    key = jax.eval_shape(lambda: jax.random.key(0))
    return jax.eval_shape(functools.partial(trial.initial_variables, program), key)


@functools.cache
def _loss(program):
    batch = Batch(*[jax.ShapeDtypeStruct((1, program.row_pieces), jnp.int32)] * len(Batch._fields))
    state = trial.State(0, **_variables(program), moments=())
    jax.eval_shape(functools.partial(trial.piece_losses, program), state, batch)


def adopt(workdir: Path, planned: list[Planned]) -> list[Planned]:
    """`planned`, where trials of equal settings keep the directory that an earlier call in `workdir` gave them.

    So a table that is extended by --seeds does not train its first seed again under another name.
    """
    there = {t["directory"].split("-")[-1]: t for t in (recorded(workdir) or {}).get("trials", [])}

    def adopted(one):
        before = there.get(one.settings.digest())
        if before and read_json(workdir / before["directory"] / "config.json") in (None, one.settings.to_dict()):
            return one._replace(directory=before["directory"], label=one.label or before.get("label", ""))
        return one

    return [adopted(one) for one in planned]


def recorded(workdir: Path) -> dict[str, Any] | None:
    """What sweep.json says, None where there is none. Raises DamagedError for a file that no sweep wrote."""
    path = workdir / "sweep.json"
    if (found := read_json(path)) is None:
        return None
    kinds = dict(name=str, directory=str, point=dict, label=str)
    if not (isinstance(found.get("base"), dict) and isinstance(found.get("trials"), list) and all(
            isinstance(t, dict) and all(isinstance(t.get(name, kind()), kind) for name, kind in kinds.items())
            for t in found["trials"])):
        raise DamagedError(path, "it lists no trials", "remove it; the same call then keeps the finished trials")
    for t in found["trials"]:
        inside(workdir, t.get("directory"), path)
    return found


def open_workdir(workdir: Path, config_path: str, config, names: list[str], planned: list[Planned]) -> None:
    """Writes sweep.json: the base config, and every trial that this workdir is asked for, now or before.

    Raises WorkdirError where the workdir is another config's, or a single trial's.
    """
    if (workdir / "config.json").exists():
        raise WorkdirError(f"{workdir} is the directory of a single trial; choose another --workdir for a sweep")
    base = resolve(config).to_dict()
    before = recorded(workdir)
    if before and before["base"] != base:
        raise WorkdirError(f"{workdir} belongs to a sweep of another config: {differences(before['base'], base)}. "
                           "Choose another --workdir, or remove this one")
    trials = [dict(name=p.name, directory=p.directory, point=p.point, label=p.label) for p in planned]
    asked = {p.directory for p in planned}
    trials += [t for t in (before or {}).get("trials", []) if t["directory"] not in asked]
    names = list(dict.fromkeys([*(before or {}).get("sweeps", []), *names]))
    write_json(workdir / "sweep.json", dict(config=config_path, base=base, sweeps=names, trials=trials))


def finished(workdir: Path, one: Planned) -> bool:
    """Whether a trial is done with, for better or for worse: a failure is tried again, a divergence would repeat."""
    result = read_json(workdir / one.directory / "result.json")
    return result is not None and result.get("status") in ENDED


def fail(workdir: Path, one: Planned, error: str, trace: str = "") -> None:
    line = " ".join(error.split())
    write_json(workdir / one.directory / "result.json", dict(status="failed", error=line, traceback=trace))
