"""A trial's directory: whose it is, what is known of it, and its files.

Every file is written so that a crash leaves no half. `config.json` is written first and
`result.json` last; the directory of a trial that has ended is never written again.
"""

import contextlib
import datetime
import io
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.data.dataset import Dataset
from experiments.errors import WorkdirError
from experiments.settings import Settings
from experiments.system import machine
from experiments.system.files import read_json, write_bytes, write_json, write_text

ENDED = ("finished", "diverged")
"""The statuses in result.json of a trial that is not run again."""


class RunDir:
    """Reads and writes the files of one trial."""

    def __init__(self, path: str | Path):
        self.path = Path(path)

    def open(self, settings: Settings) -> dict[str, Any] | None:
        """Makes the directory that of `settings`.

        Returns the result if the trial has ended, None if it is to be run. Raises
        WorkdirError for a directory of other settings, naming what differs, and for a
        sweep's directory.
        """
        if (self.path / "sweep.json").exists():
            raise WorkdirError(
                f"{self.path} is the directory of a sweep; choose another --workdir for "
                "a single trial"
            )
        if self.path.exists() and not self.path.is_dir():
            raise WorkdirError(f"{self.path} is a file; choose another --workdir")
        ours = settings.to_dict()
        theirs = read_json(self.path / "config.json")
        if theirs is None:
            write_json(self.path / "config.json", ours)
        elif theirs != ours:
            raise WorkdirError(
                f"{self.path} belongs to another config: {differences(theirs, ours)}. "
                "Choose another --workdir, or remove this one"
            )
        result = read_json(self.path / "result.json")
        return result if result and result.get("status") in ENDED else None

    def check_data(self, prepared: Dataset) -> None:
        """Raises WorkdirError if the trial began with other text or another vocabulary."""
        record = read_json(self.path / "record.json")
        if record is not None and (changed := other_data(record, prepared)):
            raise WorkdirError(
                f"{self.path} was begun with other data: {changed}. "
                "Restore the files it was begun with, or choose another --workdir"
            )

    def describe(
        self,
        name: str,
        point: dict,
        settings: Settings,
        prepared: Dataset,
        length: int,
        origin: dict | None,
    ) -> None:
        """Writes record.json where there is none, and the vocabulary of the trial's ids.

        `length` is the model's longest row; `origin` names the other trial that this one
        started from, None for a fresh start and for one that goes on.
        """
        record = read_json(self.path / "record.json")
        if record is not None:
            # An earlier start from the other trial ended before its first checkpoint.
            if origin:
                write_json(self.path / "record.json", record | dict(begun=origin))
            return
        # Before record.json, which makes the directory a trial's for those who read it.
        write_bytes(self.path / "vocabulary.model", prepared.vocabulary_model)
        now = datetime.datetime.now(datetime.UTC)
        record = dict(
            name=name,
            point=point,
            settings_digest=settings.digest(),
            length=length,
            versions=machine.versions(),
            python=platform.python_version(),
            git=machine.git_commit(),
            **_data(prepared),
            outside=self._keep_sources(settings),
            corpus_counts=prepared.counts,
            device=machine.device(),
            devices=jax.device_count(),
            processes=jax.process_count(),
            begun=origin,
            started=now.isoformat(timespec="seconds"),
        )
        write_json(self.path / "record.json", record)

    def _keep_sources(self, settings: Settings) -> dict[str, str]:
        """Writes the source of each class from outside. Returns their SHA-256 by name."""
        hashes = {}
        for outside in settings.outside():
            name = outside.file.name
            # Files of one name, from different folders, must not overwrite each other.
            if hashes.get(name, outside.sha256) != outside.sha256:
                name = f"{outside.sha256}-{name}"
            hashes[name] = outside.sha256
            folder = self.path / "outside"
            folder.mkdir(exist_ok=True)
            write_bytes(folder / name, outside.source)
        return hashes

    def resume(self, step: int) -> Callable[[], float]:
        """Removes metrics of steps after `step`.

        Returns a clock: seconds of work, which go on from those up to that step.
        """
        # A killed run may have logged steps that no checkpoint holds: they come again.
        kept = [line for line in self.metrics() if line["step"] <= step]
        text = "".join(json.dumps(line) + "\n" for line in kept)
        write_text(self.path / "metrics.jsonl", text)
        before = kept[-1]["seconds"] if kept else 0.0
        start = time.perf_counter()
        return lambda: before + time.perf_counter() - start

    def metrics(self) -> list[dict[str, Any]]:
        """Returns the lines of metrics.jsonl without a last one that a crash cut off."""
        path = self.path / "metrics.jsonl"
        lines = []
        if path.exists():
            for line in path.read_text().splitlines():
                with contextlib.suppress(json.JSONDecodeError):
                    lines.append(json.loads(line))
        return lines

    def append_metrics(self, line: dict[str, Any]) -> None:
        with open(self.path / "metrics.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")

    def last(self, split: str) -> dict[str, Any]:
        """Returns the last line of a split, "train" or "validation"."""
        return [line for line in self.metrics() if line["split"] == split][-1]

    def evaluated(self, step: int) -> bool:
        """Whether the validation scores of a step are logged."""
        steps = [
            line["step"] for line in self.metrics() if line["split"] == "validation"
        ]
        return step in steps

    def speed(self) -> float:
        """Returns target tokens a second: the median, for first lines include compilation."""
        lines = [line for line in self.metrics() if line["split"] == "train"]
        return float(np.median([line["tokens_per_second"] for line in lines]))

    def write_text(self, name: str, text: str) -> None:
        write_text(self.path / name, text)

    def write_arrays(self, name: str, arrays: dict[str, np.ndarray]) -> None:
        # In memory first, so that the file is written whole or not at all.
        packed = io.BytesIO()
        np.savez_compressed(packed, **arrays)
        write_bytes(self.path / name, packed.getvalue())

    def write_examples(self, records: list, arrays: dict[str, np.ndarray]) -> None:
        self.write_arrays("examples.npz", arrays)
        write_json(self.path / "examples.json", records)

    def finish(self, result: dict[str, Any]) -> None:
        """Writes result.json, after which the trial has ended."""
        write_json(self.path / "result.json", result)


def not_a_trial(path: Path) -> str:
    """Explains a directory that has no record.json, with the remedy."""
    if sweep := read_json(path / "sweep.json"):
        trials = sweep.get("trials")
        first = trials[:3] if isinstance(trials, list) else []
        named = [trial.get("directory") for trial in first if isinstance(trial, dict)]
        names = ", ".join(f"{path}/{name}" for name in named)
        return f"{path} holds a whole sweep; name one of its trials: {names}, ..."
    return (
        f"{path} holds no trained model (no record.json): "
        "train one there with python -m launch.train"
    )


def other_data(record: dict, prepared: Dataset) -> str:
    """Lists in what the data of a record.json differ from `prepared`: "corpus 1f, now 2e"."""
    changed = []
    for key, now in _data(prepared).items():
        if record.get(key) != now:
            changed.append(f"{key} {record.get(key)}, now {now}")
    return ", ".join(changed)


def _data(prepared):
    return dict(corpus=prepared.corpus_digest, vocabulary=prepared.vocabulary().digest)


def differences(theirs: dict, ours: dict, path: str = "") -> str:
    """Lists the settings in which two configs differ: "model.h is 4, asked for 2"."""
    parts = []
    for key in sorted(theirs.keys() | ours.keys()):
        a = theirs.get(key)
        b = ours.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            parts.append(differences(a, b, f"{path}{key}."))
        elif a != b:
            parts.append(f"{path}{key} is {a!r}, asked for {b!r}")
    return ", ".join(filter(None, parts))
