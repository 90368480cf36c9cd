"""Merges the trials of several workdirs into one table.

A sweep whose machines share no directory has a workdir for each part. Trials of equal
settings with equal results are one trial. What cannot stand in one table, because its base,
text, code or results contradict each other, is an error that names both directories.
"""

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from experiments.errors import UserError, one_line
from experiments.evaluation.metric_file import ENDED
from experiments.evaluation.metrics import METRICS, Metric
from experiments.report.results import (
    Results,
    TrialResult,
    flatten_settings,
    read_results,
)
from experiments.settings import schema
from experiments.system.files import read_json

CLOCKED = {"seconds", "tokens_per_second", "peak_memory", "training_flops"}
"""What differs between two runs of one trial: FLOPs do where one was interrupted."""

SHOWN = 3
"""The settings that a message names."""


class ConflictError(UserError):
    """Raised for trials that contradict each other; names both, and the remedy."""


def read_merged(
    workdirs: Sequence[str | Path],
    metrics: Sequence[Metric] = METRICS,
    mixed_code: bool = False,
) -> Results:
    """Reads one workdir, or the sweeps of several as one, see `merge`."""
    several = [read_results(workdir, metrics) for workdir in distinct(workdirs)]
    return merge(several, mixed_code) if len(several) > 1 else several[0]


def distinct(workdirs: Iterable[str | Path]) -> list[Path]:
    """Returns the directories, each once however often it is named."""
    firsts: dict[Path, Path] = {}
    for path in map(Path, workdirs):
        firsts.setdefault(path.resolve(), path)
    return list(firsts.values())


def merge(several: Sequence[Results], mixed_code: bool = False) -> Results:
    """Returns the trials of all sweeps, each once, in the order of the plan of their parts.

    Of two trials of equal settings the one that has ended is taken, and the first where both
    have. With `mixed_code` their commits may differ.

    Raises ConflictError where results, base configs, text or commits contradict each other,
    and for workdirs that are no sweep's or whose sweep looks at the whole table.
    """
    for results in several:
        _check_kind(results)
        _check_base(several[0], results)
    taken: dict[str, TrialResult] = {}
    for results in several:
        for trial in results.trials:
            key = identity(trial)
            taken[key] = _one_of(taken[key], trial) if key in taken else trial
    _check_text(several)
    if not mixed_code:
        _check_code(several)
    places = {key: i for i, key in enumerate(plan_of(several))}
    # Those of no plan stay behind the others, in their order.
    order = sorted(taken, key=lambda key: places.get(key, len(places)))
    sweeps = dict.fromkeys(name for results in several for name in results.sweeps)
    trials = tuple(taken[key] for key in order)
    return dataclasses.replace(several[0], trials=trials, sweeps=tuple(sweeps))


def identity(trial: TrialResult) -> str:
    """Returns eight hexadecimal digits that trials of equal settings share."""
    # A trial that has not started has only its directory's name, which ends with them.
    if not trial.config:
        return trial.directory.name.rpartition("-")[2]
    return schema.digest(trial.config)


def plan_of(several: Iterable[Results]) -> list[str]:
    """Returns the identities of all trials that parts were cut from, in order."""
    identities = {}
    for results in several:
        plan = (read_json(results.workdir / "sweep.json") or {}).get("plan", [])
        if isinstance(plan, list):
            identities.update(dict.fromkeys(map(str, plan)))
    return list(identities)


def _check_kind(results):
    if not results.base:
        raise ConflictError(
            f"{results.workdir} is the directory of a single trial; only sweeps can be merged"
        )
    if results.tuned or results.looks is not None:
        flag = "--tune" if results.tuned else "--seeds=auto"
        raise ConflictError(
            f"{results.workdir} is of a sweep with {flag}, which decides by its own whole "
            "table: leave it out"
        )


def _check_base(first, other):
    ours = flatten_settings(first.base)
    theirs = flatten_settings(other.base)
    keys = sorted(key for key in ours | theirs if ours.get(key) != theirs.get(key))
    if not keys:
        return
    shown = [
        f"{key} is {ours.get(key)!r} and {theirs.get(key)!r}" for key in keys[:SHOWN]
    ]
    more = f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
    raise ConflictError(
        f"{first.workdir} and {other.workdir} belong to sweeps of other configs: "
        f"{one_line(', '.join(shown))}{more}; leave one of them out"
    )


def _one_of(first, second):
    """Returns the trial to take, of two of equal settings."""
    ended = [trial for trial in (first, second) if trial.status in ENDED]
    if len(ended) == 2 and (different := _other_results(first, second)):
        raise ConflictError(
            f"{first.directory} and {second.directory} have equal settings and other "
            f"results ({different}): leave out one of the workdirs, or remove one of the two"
        )
    return ended[0] if ended else first


def _other_results(first, second):
    ours, theirs = (flatten_settings(trial.result) for trial in (first, second))
    for key in ours | theirs:
        a, b = ours.get(key), theirs.get(key)
        # repr, because NaN is not equal to itself.
        if key.rpartition(".")[2] not in CLOCKED and repr(a) != repr(b):
            return one_line(f"{key} is {a!r} and {b!r}")
    return ""


def _check_text(several):
    """Raises ConflictError for trials of one corpus that were trained with other text."""
    firsts = {}
    for trial in _started(several):
        data = json.dumps(trial.config.get("data"), sort_keys=True)
        first = firsts.setdefault(data, trial)
        for key in ("corpus", "vocabulary"):
            _check_same(
                first, trial, key, "its files have changed: leave one of them out"
            )


def _check_code(several):
    """Raises ConflictError for another commit in another workdir than the first."""
    first = None
    for results in several:
        for trial in _started([results]):
            first = first or (results, trial)
            # Within a workdir a sweep itself allows it.
            if results is not first[0]:
                _check_same(first[1], trial, "git", "--mixed_code takes them together")


def _started(several):
    for results in several:
        for trial in results.trials:
            if trial.record and trial.status in ENDED:
                yield trial


def _check_same(first, second, key, remedy):
    a, b = first.record.get(key), second.record.get(key)
    if a != b:
        names = {"git": "commits", "corpus": "text", "vocabulary": "vocabularies"}
        raise ConflictError(
            f"{first.directory} and {second.directory} were trained with other "
            f"{names[key]} ({one_line(a) or 'unknown'} and {one_line(b) or 'unknown'}); {remedy}"
        )
