"""The log of an entry: a directory that says what was run, with what, and what came out.

`entry.json` has the rest, `runs.csv` a line for each trial, classes of one's own lie beside
them as files, and `checksums.json` says whether anything has changed since.
"""

import csv
import datetime
import io
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.bar import entry, judge, rules
from experiments.errors import UserError
from experiments.sweep.plan import Trial
from experiments.system import checksums
from experiments.system.files import (
    read_json,
    slug,
    write_bytes,
    write_json,
    write_text,
)
from experiments.training.run_dir import read_result

ABOUT = "entry.json"
RUNS = "runs.csv"
FOLDER = Path(__file__).parent / "entries"
"""The logs of all entries, those of a size in a folder."""


class LogError(UserError):
    """Raised for a directory that holds no log, or one that is not what was written."""


class Run(NamedTuple):
    """Holds a trial of an entry."""

    task: str
    seed: int
    rate: float
    validation: float
    """The perplexity by which the rate is chosen; infinite for a run that diverged."""
    value: float
    """The metric that counts, of the test set; NaN for a run that diverged."""
    seconds: float


class Log(NamedTuple):
    """Holds an entry's log."""

    about: Mapping[str, Any]
    runs: tuple[Run, ...]
    directory: Path

    @property
    def name(self) -> str:
        """The name of the entry."""
        return self.about["name"]

    @property
    def tasks(self) -> tuple[rules.Task, ...]:
        """The tasks of its size."""
        return rules.tasks_of(self.about["size"])

    def chosen(self) -> dict[str, dict[int, Run]]:
        """Returns {task: {seed: the run of the rate that is best on validation}}."""
        return chosen(self.runs)

    def values(self) -> judge.Runs:
        """Returns what is judged: {task: {seed: value}}, larger values better."""
        return values_of(self.runs, self.tasks)


def chosen(runs: Iterable[Run]) -> dict[str, dict[int, Run]]:
    """Returns {task: {seed: the run of the rate that is best on validation}}."""
    found = {}
    for run in runs:
        of_task = found.setdefault(run.task, {})
        best = of_task.get(run.seed)
        if best is None or run.validation < best.validation:
            of_task[run.seed] = run
    return found


def values_of(runs: Iterable[Run], tasks: Sequence[rules.Task]) -> judge.Runs:
    """Returns what is judged: {task: {seed: value}}, larger values better."""
    best = chosen(runs)
    return {
        task.name: {
            seed: judge.oriented(run.value, task)
            for seed, run in sorted(best.get(task.name, {}).items())
        }
        for task in tasks
    }


def runs_of(workdir: Path, trials: Sequence[Trial], size: str) -> list[Run]:
    """Reads the runs of trials that have ended, whose labels begin with their task."""
    by_name = {task.name: task for task in rules.tasks_of(size)}
    runs = []
    for trial in trials:
        result = read_result(workdir / trial.directory) or {}
        if result.get("status") not in ("finished", "diverged"):
            raise LogError(
                f"{workdir / trial.directory} has no result: {result.get('error', 'run it again')}"
            )
        task = by_name[task_of(trial)]
        ended = result["status"] == "finished"
        runs.append(
            Run(
                task.name,
                trial.settings.seed,
                trial.settings.training.learning_rate,
                _finite(result["perplexity"]) if ended else math.inf,
                result[task.metric] if ended else math.nan,
                round(result.get("seconds") or 0.0, 1),
            )
        )
    return runs


def _finite(perplexity: float) -> float:
    # NaN is less than nothing, and would be chosen where it comes first.
    return perplexity if math.isfinite(perplexity) else math.inf


def task_of(trial: Trial) -> str:
    """Returns the name of a trial's task."""
    return trial.label.rpartition(entry.OF_RATE)[0]


def describe(
    name: str, size: str, changes: entry.Changes, record: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns what a log says of its entry; `record` is the record.json of one of its trials."""
    taken = ("device", "versions", "python", "git", "code")
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    return dict(
        name=name,
        size=size,
        rules=rules.VERSION,
        changes=named(changes),
        date=now.isoformat(),
        parameters=entry.parameters(size, changes),
        **{key: record[key] for key in taken},
    )


def named(changes: entry.Changes) -> dict[str, Any]:
    """Returns changes as a log has them, which names files without their folders."""
    found = {}
    for option, value in changes.items():
        for origin in _origins(option, value):
            value = value.replace(origin.place, Path(origin.file).name)
        found[option] = value
    return found


def write(
    directory: Path,
    about: Mapping[str, Any],
    runs: Iterable[Run],
    changes: entry.Changes,
) -> None:
    """Writes a log, with the sources of the classes that `changes` name."""
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / ABOUT, about)
    lines = io.StringIO()
    table = csv.writer(lines, lineterminator="\n")
    table.writerow(Run._fields)
    table.writerows(sorted(runs))
    write_text(directory / RUNS, lines.getvalue())
    names = [ABOUT, RUNS]
    for option, value in changes.items():
        for origin in _origins(option, value):
            names.append(Path(origin.file).name)
            write_bytes(directory / names[-1], origin.source)
    checksums.write_checksums(directory, names)


def read(directory: Path) -> Log:
    """Reads a log. Raises LogError where there is none, or not what was written."""
    if not (directory / ABOUT).is_file():
        near = directory / "log"
        hint = f"; give {near}" if (near / ABOUT).is_file() else ""
        raise LogError(
            f"{directory} holds no {ABOUT}, as the log of an entry that has ended{hint}"
        )
    kept = directory / checksums.NAME
    changed = [kept.name] if not kept.is_file() else []
    # Sources too, beside what every log has.
    changed += checksums.changed_files(directory, (ABOUT, RUNS))
    changed += checksums.changed_files(directory)
    if changed:
        names = ", ".join(dict.fromkeys(changed))
        raise LogError(
            f"{directory}: {names} is not what was written: restore it, or run the entry "
            "again, which writes its log anew and trains nothing where its runs are"
        )
    about = read_json(directory / ABOUT)
    if about["rules"] != rules.VERSION:
        raise LogError(
            f"{directory} is of version {about['rules']} of the rules, and these are "
            f"{rules.VERSION}: enter it again"
        )
    kinds = Run.__annotations__
    with (directory / RUNS).open(newline="") as file:
        rows = [
            Run(**{k: kinds[k](x) for k, x in row.items()})
            for row in csv.DictReader(file)
        ]
    return Log(about, tuple(rows), directory)


def copy(log: Log, folder: Path) -> Path:
    """Copies a log into the folder of all, under its name; returns its place.

    Raises LogError where another entry has the name.
    """
    target = folder / log.about["size"] / slug(log.name)
    if target.exists():
        raise LogError(
            f"{target} is there: run the entry again with another --name, which trains "
            "nothing, and enter that log"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(log.directory, target)
    return target


def read_all(size: str, folder: Path | None = None) -> list[Log]:
    """Returns the logs of a size in the order of their dates, base first."""
    paths = sorted(((folder or FOLDER) / size).glob(f"*/{ABOUT}"))
    logs = [read(path.parent) for path in paths]
    return sorted(logs, key=lambda log: (bool(log.about["changes"]), log.about["date"]))


def changes_of(log: Log) -> dict[str, Any]:
    """Returns the changes of a log's entry, with the places of the files beside it."""
    changes = {}
    for option, value in log.about["changes"].items():
        for path in log.directory.glob("*.py"):
            if isinstance(value, str):
                value = value.replace(f"{path.name}:", f"{path.resolve()}:")
        changes[option] = value
    return changes


def _origins(option, value):
    choices = entry.KINDS.get(option)
    return choices.origins_of(value) if choices else ()
