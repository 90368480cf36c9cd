"""A sweep: expand the named sweeps of a config into points, check them all, and run what is not finished.

Results are files, so the sweep keeps none: it starts trials in worker processes and reads what they wrote.
"""

import importlib.util
import itertools
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments import trial
from experiments.batches import Batch
from experiments.files import read_json, slug, write_json
from experiments.prepared import Prepared
from experiments.records import WorkdirError, differences
from experiments.settings import Settings, SettingsError, check_key, resolve

Point = Mapping[str, Any]


class SweepError(ValueError):
    """A sweep that cannot be expanded; the message names the sweeps and what is known."""


class Planned(NamedTuple):
    """One trial to be."""

    name: str
    directory: str
    point: dict[str, Any]
    settings: Settings


def load(path: str):
    """The module of a config file."""
    spec = importlib.util.spec_from_file_location("config", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sweeps(module) -> dict[str, Callable[[], Iterable[Point]]]:
    """The config's `sweep_<name>` generators, by name."""
    return {name.removeprefix("sweep_"): value for name, value in vars(module).items()
            if name.startswith("sweep_") and callable(value)}


def expand(known: Mapping[str, Callable[[], Iterable[Point]]], names: list[str]) -> list[dict[str, Any]]:
    """The product of the named sweeps, each point one flat `{dotted key: value}`; no name gives the one empty point.

    Raises SweepError for an unknown or empty sweep, and for two that set the same key.
    """
    drawn = {}
    for name in names:
        if name not in known:
            raise SweepError(f"no sweep named {name!r} (known: {', '.join(known) or 'none'})")
        drawn[name] = [dict(point) for point in known[name]()]
        if not drawn[name]:
            raise SweepError(f"sweep {name!r} has no points")
    for a, b in itertools.combinations(drawn, 2):
        if both := {key for p in drawn[a] for key in p} & {key for p in drawn[b] for key in p}:
            raise SweepError(f"sweeps {a!r} and {b!r} both set {', '.join(sorted(both))}: "
                             "their product would overwrite one with the other; sweep one of them, or write a third")
    return [{key: value for point in points for key, value in point.items()}
            for points in itertools.product(*drawn.values())]


def plan(config, points: list[Point]) -> list[Planned]:
    """Each point checked and named; points of equal settings are one trial. Raises SettingsError naming the point."""
    planned = {}
    for point in points:
        try:
            settings = resolve(config, point)
        except SettingsError as error:
            raise SettingsError(f"{error} (in the point {describe(point)})") from None
        digest = settings.digest()
        if digest not in planned:
            name = describe(point)
            planned[digest] = Planned(name, f"trials/{slug(name)}-{digest}", dict(point), settings)
    return list(planned.values())


def describe(point: Point) -> str:
    """A point in a few words: "h=2 d_k=32 seed=1"."""
    return " ".join(f"{check_key(key).split('.')[-1]}={value}" for key, value in point.items()) or "base"


def build(settings: Settings) -> None:
    """Builds the trial's program by shape only: what does not fit together fails here, in a second, for nothing."""
    t = settings.training
    program = trial.program(settings, settings.data.vocabulary, max(t.row_pieces, settings.evaluation.max_pieces))
    _build(program, t.rows, t.row_pieces)


def check_all(planned: list[Planned]) -> None:
    """Builds every distinct program by shape. Raises SettingsError naming the first trial that cannot be built."""
    built = set()
    for one in planned:
        shape = (one.settings.model, one.settings.training.rows, one.settings.training.row_pieces)
        if shape in built:
            continue
        try:
            build(one.settings)
        except (TypeError, ValueError) as error:
            raise SettingsError(f"{one.name} cannot be built: {error}") from error
        built.add(shape)


def _build(program, rows, row_pieces):
    batch = Batch(*[jax.ShapeDtypeStruct((rows, row_pieces), jnp.int32)] * len(Batch._fields))

    def loss(key, batch):
        variables = trial.initial_variables(program, key)
        return trial.piece_losses(program, trial.State(0, variables["params"], variables["positions"], None), batch)

    jax.eval_shape(loss, jax.eval_shape(lambda: jax.random.key(0)), batch)


def open_workdir(workdir: Path, config_path: str, config, names: list[str], planned: list[Planned]) -> None:
    """Writes sweep.json: the base config, and every trial that this workdir is asked for, now or before.

    Raises WorkdirError where the workdir is another config's, or a single trial's.
    """
    if (workdir / "config.json").exists():
        raise WorkdirError(f"{workdir} is the directory of a single trial; choose another --workdir for a sweep")
    base = resolve(config).to_dict()
    before = read_json(workdir / "sweep.json")
    if before and before["base"] != base:
        raise WorkdirError(f"{workdir} belongs to a sweep of another config: {differences(before['base'], base)}. "
                           "Choose another --workdir, or remove this one")
    trials = [dict(name=p.name, directory=p.directory, point=p.point) for p in planned]
    asked = {p.directory for p in planned}
    trials += [t for t in (before or {}).get("trials", []) if t["directory"] not in asked]
    names = list(dict.fromkeys([*(before or {}).get("sweeps", []), *names]))
    write_json(workdir / "sweep.json", dict(config=config_path, base=base, sweeps=names, trials=trials))


def finished(workdir: Path, one: Planned) -> bool:
    result = read_json(workdir / one.directory / "result.json")
    return result is not None and result["status"] == "finished"


def attempt(workdir: Path, one: Planned, prepared: Prepared) -> None:
    """Runs one trial; a failure is written to its result.json and goes no further."""
    from experiments import training

    try:
        training.run(one.settings, prepared, workdir / one.directory, name=one.name, point=one.point)
    except Exception as error:
        fail(workdir, one, f"{type(error).__name__}: {error}", traceback.format_exc())


def fail(workdir: Path, one: Planned, error: str, trace: str = "") -> None:
    line = " ".join(error.split())
    write_json(workdir / one.directory / "result.json", dict(status="failed", error=line, traceback=trace))
