"""A trial's directory: who it belongs to, what is known of it, and every file written so that a crash leaves no half.

`config.json` is written first and `result.json` last; the directory of a trial that has ended is never written again.
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

from experiments.data.dataset import Prepared
from experiments.errors import WorkdirError
from experiments.settings import Settings
from experiments.system import machine
from experiments.system.files import read_json, write_bytes, write_json, write_text

ENDED = ("finished", "diverged")
"""What result.json calls a trial that is not to be run again."""


class Directory:
    """The files of one trial."""

    def __init__(self, path: str | Path):
        self.path = Path(path)

    def open(self, settings: Settings) -> dict[str, Any] | None:
        """Makes the directory `settings`' own. Returns the result if the trial has ended, None if it is to be run.

        Raises WorkdirError for a directory of other settings, naming what differs, and for a sweep's directory.
        """
        if (self.path / "sweep.json").exists():
            raise WorkdirError(
                f"{self.path} is the directory of a sweep; choose another --workdir for a single trial"
            )
        if self.path.exists() and not self.path.is_dir():
            raise WorkdirError(f"{self.path} is a file; choose another --workdir")
        mine = settings.to_dict()
        theirs = read_json(self.path / "config.json")
        if theirs is None:
            write_json(self.path / "config.json", mine)
        elif theirs != mine:
            raise WorkdirError(
                f"{self.path} belongs to another config: {differences(theirs, mine)}. "
                "Choose another --workdir, or remove this one"
            )
        result = read_json(self.path / "result.json")
        return result if result and result.get("status") in ENDED else None

    def check_data(self, prepared: Prepared) -> None:
        """Raises WorkdirError if the trial was begun with other text or another vocabulary."""
        before = read_json(self.path / "record.json")
        if before is not None and (was := other_data(before, prepared)):
            raise WorkdirError(
                f"{self.path} was begun with other data: {was}. "
                "Restore the files it was begun with, or choose another --workdir"
            )

    def describe(
        self,
        name: str,
        point: dict,
        settings: Settings,
        prepared: Prepared,
        length: int,
        begun: dict | None,
    ) -> None:
        """Writes record.json where there is none, and the vocabulary that the trial's ids are in.

        `length` is the model's longest row; `begun` what other trial this one began from, None for a fresh start and
        for one that goes on.
        """
        before = read_json(self.path / "record.json")
        if before is not None:
            if begun:
                write_json(self.path / "record.json", before | dict(begun=begun))
            return
        write_bytes(self.path / "vocabulary.model", prepared.vocabulary_model)
        write_json(
            self.path / "record.json",
            dict(
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
                begun=begun,
                started=datetime.datetime.now(datetime.UTC).isoformat(
                    timespec="seconds"
                ),
            ),
        )

    def _keep_sources(self, settings: Settings) -> dict[str, str]:
        """Writes the source of each class from outside. Returns their SHA-256 by name."""
        hashes = {}
        for outside in settings.outside():
            name = outside.file.name
            if hashes.get(name, outside.sha256) != outside.sha256:
                name = f"{outside.sha256}-{name}"
            hashes[name] = outside.sha256
            folder = self.path / "outside"
            folder.mkdir(exist_ok=True)
            write_bytes(folder / name, outside.source)
        return hashes

    def resume(self, step: int) -> Callable[[], float]:
        """Forgets metrics of steps after `step`. Returns a clock: seconds of work, counted on from before."""
        kept = [line for line in self.metrics() if line["step"] <= step]
        write_text(
            self.path / "metrics.jsonl",
            "".join(json.dumps(line) + "\n" for line in kept),
        )
        before, start = (kept[-1]["seconds"] if kept else 0.0), time.perf_counter()
        return lambda: before + time.perf_counter() - start

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; a last one that was cut off by a crash is left out."""
        lines = []
        if (self.path / "metrics.jsonl").exists():
            for line in (self.path / "metrics.jsonl").read_text().splitlines():
                with contextlib.suppress(json.JSONDecodeError):
                    lines.append(json.loads(line))
        return lines

    def append_metrics(self, line: dict[str, Any]) -> None:
        with open(self.path / "metrics.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")

    def last(self, split: str) -> dict[str, Any]:
        return [line for line in self.metrics() if line["split"] == split][-1]

    def evaluated(self, step: int) -> bool:
        return any(
            line["step"] == step and line["split"] == "validation"
            for line in self.metrics()
        )

    def speed(self) -> float:
        """Median target tokens a second: the first lines include compilation."""
        return float(
            np.median(
                [
                    line["tokens_per_second"]
                    for line in self.metrics()
                    if line["split"] == "train"
                ]
            )
        )

    def write_text(self, name: str, text: str) -> None:
        write_text(self.path / name, text)

    def write_arrays(self, name: str, arrays: dict[str, np.ndarray]) -> None:
        packed = io.BytesIO()
        np.savez_compressed(packed, **arrays)
        write_bytes(self.path / name, packed.getvalue())

    def write_examples(self, records: list, arrays: dict[str, np.ndarray]) -> None:
        self.write_arrays("examples.npz", arrays)
        write_json(self.path / "examples.json", records)

    def finish(self, result: dict[str, Any]) -> None:
        write_json(self.path / "result.json", result)


def not_a_trial(path: Path) -> str:
    """What is wrong with a directory that has no record.json, and the remedy."""
    if sweep := read_json(path / "sweep.json"):
        trials = sweep.get("trials") if isinstance(sweep.get("trials"), list) else []
        trials = ", ".join(
            f"{path}/{t.get('directory')}" for t in trials[:3] if isinstance(t, dict)
        )
        return f"{path} holds a whole sweep; name one of its trials: {trials}, ..."
    return f"{path} holds no trained model (no record.json): train one there with python -m launch.train"


def other_data(record: dict, prepared: Prepared) -> str:
    """In what the data of a record.json are not `prepared`, as "corpus 1f, now 2e"."""
    return ", ".join(
        f"{key} {record.get(key)}, now {now}"
        for key, now in _data(prepared).items()
        if record.get(key) != now
    )


def _data(prepared):
    return dict(corpus=prepared.corpus_digest, vocabulary=prepared.vocabulary().digest)


def differences(theirs: dict, mine: dict, path: str = "") -> str:
    """The settings in which two configs differ, as "model.h is 4, asked for 2"."""
    found = []
    for key in sorted(theirs.keys() | mine.keys()):
        a, b = theirs.get(key), mine.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found += [differences(a, b, f"{path}{key}.")]
        elif a != b:
            found.append(f"{path}{key} is {a!r}, asked for {b!r}")
    return ", ".join(filter(None, found))
