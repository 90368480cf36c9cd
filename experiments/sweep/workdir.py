"""Keeps sweep.json, the list of a sweep's trials, and says which of them have ended."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.errors import WorkdirError, few
from experiments.evaluation.metric_file import ENDED
from experiments.settings import resolve, without_scoring
from experiments.settings.resolve import UNIONS
from experiments.sweep.plan import Trial
from experiments.system import code
from experiments.system.checksums import unseal, write_sealed
from experiments.system.files import (
    DamagedError,
    read_json,
    remove_leftovers,
    write_json,
)
from experiments.training.run_dir import differences, read_result

_TRIAL = dict(name=str, directory=str, point=dict, label=str, role=str, parts=dict)
"""What sweep.json says of a trial, beside its settings, and of which types."""

CANCELLED = "cancelled.json"
"""Where this file is, no process trains."""


def adopt_directories(workdir: Path, trials: list[Trial]) -> list[Trial]:
    """Returns `trials` with the directories that an earlier call gave to equal settings.

    So a table that is extended by --seeds does not train its first seed again under another
    name.
    """
    listed = (read_sweep_file(workdir) or {}).get("trials", [])
    # A directory's name ends with the digest of its settings.
    earlier = {entry["directory"].split("-")[-1]: entry for entry in listed}
    adopted = []
    for trial in trials:
        entry = earlier.get(trial.settings.digest())
        if entry and _may_hold(workdir / entry["directory"], trial):
            label = trial.label or entry.get("label", "")
            parts = trial.parts or entry.get("parts", {})
            trial = trial._replace(
                directory=entry["directory"], label=label, parts=parts
            )
        adopted.append(trial)
    return adopted


def read_sweep_file(workdir: Path) -> dict[str, Any] | None:
    """Reads sweep.json, None where there is none.

    Raises DamagedError for a file that no sweep wrote.
    """
    path = workdir / "sweep.json"
    sweep = read_json(path)
    if sweep is None:
        return None
    remedy = "remove it; the same call then keeps the finished trials"
    if not unseal(sweep):
        raise DamagedError(path, "it is not what was written", remedy)
    if not {"base", "trials"} <= sweep.keys():
        raise DamagedError(path, "it lists no trials", remedy)
    return sweep


def open_workdir(
    workdir: Path,
    config_path: str,
    config,
    names: list[str],
    trials: list[Trial],
    is_auto: bool = False,
    tuning: Mapping[str, Any] | None = None,
) -> None:
    """Writes sweep.json: the base config, and every trial that was ever asked for.

    `is_auto` is true of a sweep that chooses its seeds, see `set_looks`; `tuning` is what a
    sweep with --tune chooses from, {"grid": {key: values}, "seeds": seeds}.

    Raises WorkdirError where the workdir is another config's, or a single trial's, or of a
    sweep that was tuned in another way.
    """
    if (workdir / "config.json").exists():
        raise WorkdirError(
            f"{workdir} is the directory of a single trial; choose another --workdir for a "
            "sweep"
        )
    # Resolved, so that a config that spells a default out is no other config.
    base = resolve(config).to_dict()
    before = read_sweep_file(workdir) or dict(base=base, trials=[])
    if before["base"] != base:
        raise WorkdirError(
            f"{workdir} belongs to a sweep of another config: "
            f"{differences(before['base'], base)}. "
            "Choose another --workdir, or remove this one"
        )
    _check_tuning(workdir, before, tuning)
    entries = [_entry(trial, base) for trial in trials]
    # Trials of earlier calls stay listed, so that a report still shows them.
    directories = {trial.directory for trial in trials}
    earlier = [e for e in before["trials"] if e["directory"] not in directories]
    entries += _with_roles(earlier, entries, tuning) if tuning else earlier
    sweeps = list(dict.fromkeys([*before.get("sweeps", []), *names]))
    sweep = dict(config=config_path, base=base, sweeps=sweeps, trials=entries)
    if tuning:
        sweep["tuning"] = dict(tuning)
    if asked := before.get("question"):
        sweep["question"] = asked
    if is_auto:
        sweep["looks"] = before.get("looks", dict(count=0, interest={}))
    _write_sweep(workdir, sweep, before)


def _entry(trial, base):
    """Returns what sweep.json says of a trial."""
    entry = {name: getattr(trial, name) for name in _TRIAL}
    for name in ("role", "parts"):
        if not entry[name]:
            del entry[name]
    return entry | dict(settings=_changes(base, trial.settings.to_dict()))


def trained_alike(workdir: Path) -> dict[str, tuple[str, ...]]:
    """Returns {directory: all those of trials that train the same} of a sweep.

    Trials that train as no other are left out.
    """
    groups = {}
    for entry in (read_sweep_file(workdir) or {}).get("trials", []):
        key = json.dumps(without_scoring(entry["settings"]), sort_keys=True)
        groups.setdefault(key, []).append(entry["directory"])
    several = [tuple(group) for group in groups.values() if len(group) > 1]
    return {directory: group for group in several for directory in group}


def read_trials(workdir: Path) -> list[Trial]:
    """Returns the trials that sweep.json lists, for a process that did not plan them.

    Raises WorkdirError where there are none, and where this version of the code makes
    something else of their settings; OutsideError for code from outside that is not loaded.
    """
    sweep = read_sweep_file(workdir)
    if sweep is None:
        raise WorkdirError(
            f"{workdir} holds no sweep yet: begin one with launch.sweep --config=..., and "
            "join it then"
        )
    trials = []
    rows = {}
    for entry in sweep["trials"]:
        changes = dict(entry.get("settings", {}))
        seed = changes.pop("seed", sweep["base"].get("seed"))
        # Trials of a row differ in their seeds alone, and to resolve takes a while.
        row = json.dumps(changes, sort_keys=True)
        if row not in rows:
            values = _with_changes(sweep["base"], changes)
            rows[row] = resolve(values, trusted=False)
        settings = dataclasses.replace(rows[row], seed=seed)
        if settings.digest() != entry["directory"].split("-")[-1]:
            raise WorkdirError(
                f"{workdir}: the settings of {entry['name']} are others here than where the "
                "sweep was planned: use the same version of the code in both places"
            )
        values = {name: entry.get(name, kind()) for name, kind in _TRIAL.items()}
        trials.append(Trial(**values, settings=settings))
    return trials


def _changes(base, own):
    """Returns what differs from the base, {group: {name: value}}.

    Of a model or a corpus of another kind it is all.
    """
    changes = {}
    for group, values in own.items():
        before = base[group]
        if isinstance(values, dict) and not _is_other_kind(group, values, before):
            values = {key: x for key, x in values.items() if x != before[key]}
            if values:
                changes[group] = values
        elif values != before:
            changes[group] = values
    return changes


def _with_changes(base, changes):
    values = dict(base)
    for group, changed in changes.items():
        before = values.get(group)
        both = isinstance(before, dict) and isinstance(changed, dict)
        if both and not _is_other_kind(group, changed, before):
            changed = before | changed
        values[group] = changed
    return values


def _is_other_kind(group, values, base):
    if group not in UNIONS:
        return False
    key = UNIONS[group].key
    return values.get(key, base.get(key)) != base.get(key)


def cancel(workdir: Path, who: str) -> None:
    """Has all processes that train the sweep's trials save, and leave."""
    write_json(workdir / CANCELLED, dict(by=who))


def is_cancelled(workdir: Path) -> bool:
    """Whether `cancel` was called, and the sweep was not begun again since."""
    return (workdir / CANCELLED).exists()


def begin_again(workdir: Path) -> None:
    """Takes back what `cancel` did."""
    (workdir / CANCELLED).unlink(missing_ok=True)


def _check_tuning(workdir, before, tuning):
    """Raises WorkdirError for a sweep that an earlier call tuned in another way."""
    earlier = before.get("tuning")
    # A sweep that was not tuned may be tuned later: its trials are the untuned ones.
    if earlier is None or earlier == tuning:
        return
    flags = [
        f"--tune={key}:{','.join(map(str, values))}"
        for key, values in earlier["grid"].items()
    ]
    flags.append(f"--tune_seeds={len(earlier['seeds'])}")
    raise WorkdirError(
        f"{workdir} belongs to a sweep with {' '.join(flags)}: give the same, or choose "
        "another --workdir"
    )


def _with_roles(earlier, entries, tuning):
    """Returns entries of earlier calls with the roles that they have beside `entries`."""
    planned = {_row_and_seed(e, tuning) for e in entries if e["role"] != "tuning"}
    updated = []
    for entry in earlier:
        role = entry.get("role")
        if role == "compared" and _row_and_seed(entry, tuning) in planned:
            # Its row has got other values since, as tuning trials were run anew.
            role = "tuning"
        if not role:
            # Of a call that did not tune, and may have swept what is tuned now.
            is_own = not tuning["grid"].keys() & entry["point"].keys()
            role = "untuned" if is_own else "tuning"
        updated.append(dict(entry, role=role))
    return updated


def _row_and_seed(entry, tuning):
    point = entry["point"].items()
    return frozenset((key, value) for key, value in point if key not in tuning["grid"])


def set_looks(workdir: Path, looks: int, interest: Mapping[str, float]) -> None:
    """Notes in sweep.json how often a table was looked at, and what mattered.

    A table that is looked at more than once is judged at each look.
    """
    before = read_sweep_file(workdir)
    looked = dict(count=looks, interest=dict(interest))
    _write_sweep(workdir, before | dict(looks=looked), before)


def set_question(workdir: Path, question: Mapping[str, Any]) -> None:
    """Notes in sweep.json which rows its report compares with which."""
    before = read_sweep_file(workdir)
    _write_sweep(workdir, before | dict(question=dict(question)), before)


def _write_sweep(workdir, sweep, before):
    if sweep == before:
        return
    # Of a writer that was killed; whoever calls this has the directory locked.
    remove_leftovers(workdir, ("sweep.json", "schedule.json"))
    write_sealed(workdir / "sweep.json", sweep)


def is_finished(workdir: Path, trial: Trial) -> bool:
    """Returns whether a trial has ended for good.

    A failure is tried again, a divergence would only repeat itself.
    """
    result = read_result(workdir / trial.directory)
    return result is not None and result.get("status") in ENDED


def check_one_code(
    workdir: Path,
    trials: Sequence[Trial],
    say: Callable[[str], None],
    *,
    mixed_code: bool,
    decides: bool,
) -> None:
    """Says how many of the trials were begun by other code than this process runs.

    Raises WorkdirError for them where their results decide what is trained next, unless
    `mixed_code` takes them together.
    """
    others = []
    for trial in trials:
        record = read_json(workdir / trial.directory / "record.json")
        if isinstance(record, dict) and code.of(record) != code.now():
            others.append(trial.name)
    if not others:
        return
    what = (
        f"{len(others)} of {len(trials)} trials were made by other code than this "
        f"({few(others)})"
    )
    if mixed_code:
        say(f"{what}, and are compared all the same (--mixed_code)")
    elif decides:
        raise WorkdirError(
            f"{what}, and what to train next would depend on both: give --mixed_code, or "
            "another --workdir"
        )
    else:
        say(
            f"{what}: only trials of one code are compared. --mixed_code takes them "
            "together, and without their directories they are trained anew"
        )


def record_failure(workdir: Path, trial: Trial, error: str, trace: str = "") -> None:
    """Writes the result.json of a failed trial, its error on one line."""
    line = " ".join(error.split())
    result = dict(status="failed", error=line, traceback=trace)
    write_json(workdir / trial.directory / "result.json", result)


def _may_hold(directory, trial):
    """Returns whether a directory is the trial's: eight digits may be another's too."""
    config = read_json(directory / "config.json")
    # A trial that was listed and never started has no config yet.
    return config is None or config == trial.settings.to_dict()
