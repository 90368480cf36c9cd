"""Copies the finished trials of several workdirs into one."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.errors import UserError
from experiments.evaluation.metric_file import ENDED
from experiments.report.merge import distinct, identity, merge, plan_of
from experiments.report.results import Results, read_results
from experiments.system.checksums import changed_files, read_sealed, write_sealed
from experiments.system.files import lock, remove, sync


class Collected(NamedTuple):
    """Counts trials."""

    copied: int
    kept: int
    """Were there already."""
    unfinished: int
    """Of which no workdir has a result."""
    missing: int
    """Of the plan whose parts these are, but in none of the workdirs."""


def collect(
    workdirs: Sequence[str | Path],
    target: str | Path,
    checkpoints: bool = True,
    mixed_code: bool = False,
) -> Collected:
    """Copies the trials that have ended into `target`, each whole or not at all.

    `target` may hold trials already, which are kept; its sweep.json lists all trials of all
    workdirs. A call that was killed is made again. Files of the workdirs are read alone;
    links among them, and files whose names begin with a dot, are left out, and so are
    checkpoints where `checkpoints` is false.

    Raises ConflictError as `merge.merge` does and UserError for a damaged trial, both before
    anything is written.
    """
    target = Path(target)
    with lock(target):
        # First, so that what is there is kept where others have it too.
        there = [target] if _holds_results(target) else []
        several = [_read(path) for path in distinct([*there, *workdirs])]
        merged = merge(several, mixed_code)
        ended = [trial for trial in merged.trials if trial.status in ENDED]
        for trial in ended:
            _check_whole(trial.directory, trial.directory)
        places = _places(target, several, merged)
        entries = [dict(entry, directory=place) for entry, place in places.values()]
        _list(target, several, entries)
        copied = 0
        for trial in ended:
            place = target / places[identity(trial)][1]
            if trial.directory != place:
                _copy(trial.directory, place, checkpoints)
                copied += 1
    return Collected(
        copied=copied,
        kept=len(ended) - copied,
        unfinished=len(merged.trials) - len(ended),
        missing=len({*plan_of(several)} - {*places}),
    )


def _holds_results(target):
    return any((target / name).exists() for name in ("sweep.json", "config.json"))


def _read(workdir):
    # Damages are named below, and end the call.
    return read_results(workdir, say=lambda line: None)


def _check_whole(directory, source):
    if changed := changed_files(directory):
        raise UserError(
            f"{source} is damaged ({', '.join(changed)} changed since the trial ended): "
            "restore it, or remove result.json and train there again"
        )


def _places(target, several: Sequence[Results], merged: Results):
    """Returns {identity: (entry of sweep.json, directory in `target`)}, in order."""
    entries = {}
    there = {}
    for results in several:
        sweep = read_sealed(results.workdir / "sweep.json") or {}
        for trial, entry in zip(results.trials, sweep["trials"], strict=True):
            entries[trial.directory] = entry
            if results.workdir == target:
                there[identity(trial)] = entry["directory"]
    places = {}
    for trial in merged.trials:
        entry = entries[trial.directory]
        key = identity(trial)
        # Equal settings may have another name in `target`.
        places[key] = entry, there.get(key, entry["directory"])
    return places


def _list(target, several, entries):
    """Writes sweep.json, before the trials: those that are not copied yet have no files."""
    first = read_sealed(several[0].workdir / "sweep.json") or {}
    sweeps = dict.fromkeys(name for results in several for name in results.sweeps)
    sweep = dict(first, sweeps=list(sweeps), trials=entries)
    if plan := plan_of(several):
        sweep["plan"] = plan
    if sweep != read_sealed(target / "sweep.json"):
        write_sealed(target / "sweep.json", sweep)


def _copy(source: Path, place: Path, checkpoints: bool):
    """Copies a trial's directory; another process sees all of it or nothing."""

    def left_out(folder, names):
        without = {name for name in names if name.startswith(".")}
        without |= {name for name in names if (Path(folder) / name).is_symlink()}
        if not checkpoints and Path(folder) == source:
            without.add("checkpoints")
        return without

    # A stranger's sweep.json may call a trial as another file or folder is called.
    if place.exists() and not (place / "config.json").is_file():
        raise UserError(f"{place} is in the place of {source}: move it away")
    # In the same directory: only there is a rename one step.
    temporary = place.with_name(f".{place.name}.collected")
    remove(temporary)
    shutil.copytree(source, temporary, ignore=left_out)
    _check_whole(temporary, source)
    for path in temporary.rglob("*"):
        sync(path)
    # An unfinished trial of the same settings, which this one ends.
    remove(place)
    os.rename(temporary, place)
    sync(place.parent)
