"""Reads the trials of a sweep, or of one run, from the files of their workdir.

Files may be in any state that a killed run leaves: what is missing or cut short counts as
not there yet. What no run writes, such as a text for a number, is an error, so that the
rest of the code can trust what it reads. Nothing in a file is executed, nothing is written.
"""

import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from experiments.errors import UserError, one_line
from experiments.evaluation.metric_file import ENDED, is_number, read_metrics
from experiments.evaluation.metrics import METRICS, OF_ATTENTION, Metric
from experiments.system.checksums import changed_files, unseal
from experiments.system.files import DamagedError

ENDS = ("finished", "failed", "diverged")
"""The statuses that a result.json gives; of these only a failed trial is run again."""

STATUSES = (*ENDS, "unfinished")

ROLES = ("compared", "untuned", "tuning")
"""The purposes of a trial in a sweep with --tune, see `experiments.report.tuned_rows`."""

NUMBERS = (
    "parameters",
    "bleu_detokenized",
    *(metric.key for metric in OF_ATTENTION),
    "test_perplexity",
    "test_bits_per_character",
    "steps",
    "seconds",
    "tokens_per_second",
    "training_flops",
    "peak_memory",
    "real_tokens",
    "test_sentences",
    "chance",
)
"""The numbers of a result.json beside those of the metrics, each of which may be missing."""

LARGEST_DRAWN = 1e100
"""Larger numbers count as infinite in figures: axes with a log scale overflow."""


class ResultsError(UserError):
    """Raised for a workdir without readable results; the message gives the remedy."""


@dataclasses.dataclass(frozen=True)
class TrialResult:
    """Holds the files of a trial's directory; what they do not have yet is empty."""

    name: str
    point: Mapping[str, Any]
    """Flat {dotted key: value}: what the sweep set on top of its base, with the seed."""
    seed: int | None
    directory: Path
    config: Mapping[str, Any]
    """Resolved settings, nested."""
    record: Mapping[str, Any]
    """Where and with what it ran: versions, git commit, hashes, device, start."""
    metrics: tuple[Mapping[str, Any], ...]
    """Logged lines by rising step; if a resumed run logged a step twice, the later line."""
    result: Mapping[str, Any] | None
    status: str
    """One of STATUSES."""
    label: str = ""
    """The sweep's name for this trial's row; empty for a row named by what it changes."""
    parts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """{heading: text}: what each sweep of the product says of this trial's row."""
    role: str = ""
    """One of ROLES in a sweep that was tuned; empty in another."""
    log_damage: str = ""
    """What is wrong with metrics.jsonl."""

    @property
    def error(self) -> str:
        """Why there is no result, on one line; empty for a finished trial."""
        if self.status in ("failed", "diverged"):
            message = one_line(self.result.get("error"))
            # Reports have the status beside it.
            message = message.removeprefix(f"{self.status}: ")
            return message or f"{self.status} without a message"
        if self.status == "finished":
            return ""
        if not self.directory.is_dir():
            return "not started"
        last_step = max((line["step"] for line in self.metrics), default=0)
        steps = look_up_setting(self.config, "training.steps")
        of_steps = f" of {steps}" if steps else ""
        return f"stopped or still running, last logged at step {last_step}{of_steps}"

    def curve(self, split: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns (steps, values) of `metric` on the split "train" or "validation".

        Lines are left out where the value is no number that can be drawn.
        """
        steps = []
        values = []
        for line in self.metrics:
            value = line.get(metric)
            if line["split"] != split or not is_number(value):
                continue
            if abs(value) < LARGEST_DRAWN:
                steps.append(line["step"])
                values.append(value)
        return np.array(steps), np.array(values, float)


@dataclasses.dataclass(frozen=True)
class Results:
    """Holds the trials of a workdir, in the order of its sweep."""

    workdir: Path
    trials: tuple[TrialResult, ...]
    config: str = ""
    """The sweep's config file; empty for the workdir of a single run."""
    base: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The sweep's settings before any point is applied, nested; empty for a single run."""
    sweeps: tuple[str, ...] = ()
    looks: int | None = None
    """How often a sweep with --seeds=auto has looked at its table; None for another."""
    interest: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """The differences that mattered to it."""
    question: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What the sweep asks, by the fields of `experiments.report.questions.Question`."""
    tuned: tuple[str, ...] = ()
    """The dotted keys whose values were chosen for each row, with --tune."""
    metrics: tuple[Metric, ...] = METRICS
    """The metrics that its trials are read and compared by."""

    def with_status(self, status: str) -> tuple[TrialResult, ...]:
        """Returns the trials that have one of STATUSES."""
        return tuple(trial for trial in self.trials if trial.status == status)

    def changes(self, trial: TrialResult) -> dict[str, Any]:
        """Returns what a trial's point changes against the base, apart from the seed.

        The base itself changes nothing: {}.
        """
        return {
            key: value
            for key, value in trial.point.items()
            if key != "seed" and look_up_setting(self.base, key) != value
        }


def read_results(
    workdir: str | Path,
    metrics: Sequence[Metric] = METRICS,
    say: Callable[[str], None] | None = None,
) -> Results:
    """Reads a sweep's workdir (it has sweep.json) or a single run's (it has config.json).

    `say`, by default a print to stderr, gets a line for each trial whose files changed since
    it wrote them. Raises ResultsError for any other workdir, and for files that no run writes.
    """
    workdir = Path(workdir)
    metrics = tuple(metrics)
    if (workdir / "sweep.json").exists():
        results = _read_sweep(workdir, metrics)
    elif (workdir / "config.json").exists():
        record = read_json(workdir / "record.json")
        point = _expected(workdir / "record.json", record, "point", dict)
        name = record.get("name") or workdir.resolve().name
        trial = _read_trial(workdir, dict(name=name, point=point), {}, metrics)
        results = Results(workdir, (trial,), metrics=metrics)
    else:
        lack = (
            "has neither" if workdir.is_dir() else "is no directory, so it has neither"
        )
        raise ResultsError(
            f"workdir {str(workdir)!r} {lack} sweep.json nor config.json: no results to "
            "read; make some with `python -m launch.sweep "
            f"--config=experiments/configs/quick.py --sweep=table,seed --workdir={workdir}`"
        )
    _name_damages(results, say or functools.partial(print, file=sys.stderr, flush=True))
    return results


def look_up_setting(settings: Mapping[str, Any], key: str, default=None):
    """Returns the value of the dotted `key` in nested settings, else `default`."""
    for name in key.split("."):
        if not isinstance(settings, Mapping) or name not in settings:
            return default
        settings = settings[name]
    return settings


def flatten_settings(settings: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Returns nested settings as {dotted key: value}."""
    flat = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flatten_settings(value, f"{path}{name}.")
        else:
            flat[f"{path}{name}"] = value
    return flat


def _read_sweep(workdir, metrics):
    path = workdir / "sweep.json"
    sweep = read_json(path)
    try:
        if not unseal(sweep):
            raise DamagedError(path, "it is not what was written")
        base = {**sweep["base"]}
        trials = []
        for entry in sweep["trials"]:
            directory = workdir / entry["directory"]
            trials.append(_read_trial(directory, entry, base, metrics))
        looks = sweep.get("looks", {})
        return Results(
            workdir,
            tuple(trials),
            # Texts of files are shown in terminals, which obey control characters.
            config=one_line(sweep.get("config")),
            base=base,
            sweeps=tuple(map(one_line, sweep.get("sweeps", ()))),
            looks=int(looks["count"]) if looks else None,
            interest={k: float(size) for k, size in looks.get("interest", {}).items()},
            question={**sweep.get("question", {})},
            tuned=tuple(map(one_line, sweep.get("tuning", {}).get("grid", {}))),
            metrics=metrics,
        )
    except (AttributeError, KeyError, TypeError, ValueError, DamagedError) as error:
        raise ResultsError(
            f"{path} is damaged ({one_line(error)}): remove it and call launch.sweep on "
            "this workdir again, which writes it anew and keeps the finished trials"
        ) from error


def _read_trial(directory, entry, base, metrics):
    """Reads a trial; `entry` has what the sweep records of it."""
    point = {one_line(key): value for key, value in entry["point"].items()}
    config = read_json(directory / "config.json")
    # Each may be missing: a trial writes them at different times.
    record = read_json(directory / "record.json")
    result = read_json(directory / "result.json")
    for key in ("versions", "corpus_counts"):
        _expected(directory / "record.json", record, key, dict)
    for key in (*[metric.key for metric in metrics], *NUMBERS):
        _expected(directory / "result.json", result, key, (int, float))
    _expected(directory / "result.json", result, "beside", dict)
    # Points are keys of dictionaries later, so their values must be hashable.
    for key, value in point.items():
        if isinstance(value, (dict, list)):
            message = f"{directory}: its point has {key}={value!r}, which is no setting"
            raise ResultsError(message)
    log = read_metrics(directory / "metrics.jsonl")
    # If a resumed run logged a step twice, the later line counts.
    latest = {(line["step"], line["split"]): line for line in log.lines}
    # A point without a seed has that of its config, or of the sweep's base.
    seed = point.get("seed", config.get("seed", base.get("seed")))
    status = result.get("status")
    role = entry.get("role")
    return TrialResult(
        name=one_line(entry["name"]),
        point=point,
        seed=_expected(directory, {"seed": seed}, "seed", int, None),
        directory=directory,
        config=config,
        record=record,
        metrics=tuple(latest[key] for key in sorted(latest)),
        result=result or None,
        # No result yet, or one that was cut short, is an unfinished trial.
        status=status if status in ENDS else "unfinished",
        label=one_line(entry.get("label")),
        parts={one_line(k): one_line(x) for k, x in entry.get("parts", {}).items()},
        role=role if role in ROLES else "",
        log_damage=log.damage,
    )


def _expected(path, values, key, kinds, default=MappingProxyType({})):
    """Returns values[key], or `default` where there is none.

    Raises ResultsError for a value of other types than `kinds`.
    """
    value = values.get(key)
    if value is None:
        return default
    # Python's bool is an int.
    if not isinstance(value, kinds) or isinstance(value, bool):
        text = one_line(repr(value))[:100]
        raise ResultsError(
            f"{path}: {key} is {text}, which no run writes; restore the file"
        )
    return value


def read_json(path: Path, kind: type = dict):
    """Reads a JSON file; an empty `kind` if it is missing, cut short, or of another kind."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return kind()
    return value if isinstance(value, kind) else kind()


def _name_damages(results, say):
    """Names files that are not what their trials wrote; raises ResultsError for a result."""
    for trial in results.trials:
        ended = trial.status in ENDED
        changed = changed_files(trial.directory) if ended else []
        if "result.json" in changed:
            raise ResultsError(
                f"{trial.directory}/result.json is not what the trial wrote: restore it, "
                "or remove it and train there again, which makes it from the checkpoints"
            )
        if trial.log_damage:
            changed = [name for name in changed if name != "metrics.jsonl"]
            changed.append(f"metrics.jsonl ({trial.log_damage})")
        if changed:
            names = one_line(", ".join(changed))
            say(f"{trial.directory}: changed since the trial wrote it: {names}")
